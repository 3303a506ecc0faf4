from netstack_gro cimport codes, records, wire
from netstack_gro.dispatchers cimport native
from netstack_gro.records cimport Slot
from netstack_gro.wire cimport byte
cimport cython

cdef int GSO_TYPE, NEEDS_CSUM, DATA_VALID


@cython.locals(flags=cython.int, kind=cython.int)
cdef void describe(Slot *slot, const byte *base, Py_ssize_t at) noexcept
