from netstack_gro cimport codes, headers, records, wire
from netstack_gro.records cimport Head
from netstack_gro.wire cimport byte
cimport cython

@cython.locals(total=cython.ulonglong)
cdef unsigned int constant_sum(Head *head) noexcept
