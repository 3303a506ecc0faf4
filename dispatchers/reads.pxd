from netstack_gro cimport records
from netstack_gro.batch cimport Batch
from netstack_gro.dispatchers cimport frames, native
from netstack_gro.records cimport SlotPointer
from netstack_gro.wire cimport byte
cimport cython

cdef int AGAIN, INTERRUPTED


@cython.final
cdef class Reads:
    cdef int *_lengths
    cdef int _capacity
    cdef Py_ssize_t _stride
    cdef int _vnet
    cdef bint _trust
    cdef unsigned long long _runts
    cdef unsigned long long _truncated

    @cython.locals(
        base=native.BytePointer, slot=SlotPointer, done=cython.int, index=cython.int,
        got=cython.int, at=cython.Py_ssize_t, failure=cython.int
    )
    cdef int _fill(self, int descriptor, Batch batch) except? -2
