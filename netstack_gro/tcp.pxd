from netstack_gro cimport codes, headers, records, wire
from netstack_gro.records cimport Head, Parsed
from netstack_gro.wire cimport byte
cimport cython


@cython.locals(h=cython.Py_ssize_t, at=cython.Py_ssize_t, size=cython.int)
cdef int difference(Head *head, const byte *base, Py_ssize_t offset, Parsed *found) noexcept

@cython.locals(at=cython.Py_ssize_t, total=cython.ulonglong, count=cython.int)
cdef unsigned int constant_sum(Head *head) noexcept
