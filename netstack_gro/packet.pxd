from netstack_gro cimport codes, describe, gso, records, wire
from netstack_gro.batch cimport Batch
from netstack_gro.delivery cimport Delivery
from netstack_gro.records cimport Head, HeadPointer, ParsedPointer, SlotPointer
from netstack_gro.wire cimport byte
cimport cython


@cython.final
cdef class Packet:
    cdef Delivery _delivery
    cdef int _index
    cdef int _space
    cdef int _header_length
    cdef bint _completed
    cdef bint _lent
    cdef object _facts
    cdef object _own

    cdef Head *_head(self, Delivery delivery) noexcept
    @cython.locals(delivery=Delivery, slot=SlotPointer)
    cdef object _describe(self)
    cdef int _live(self) except -1
    cdef int _settle(self) except -1
    @cython.locals(head=HeadPointer)
    cdef int _size(self) noexcept
    @cython.locals(size=cython.Py_ssize_t)
    cdef Py_ssize_t _fit(self, object start, Py_ssize_t room) except -1
    @cython.locals(
        slot=SlotPointer, index=cython.int, position=cython.Py_ssize_t, size=cython.int,
        start=cython.int
    )
    cdef int _write(self, byte *target, Py_ssize_t at) except -1
    @cython.locals(slot=SlotPointer, parsed=ParsedPointer)
    cdef int _own_header(self) except -1

@cython.locals(packet=Packet)
cpdef Packet make_packet(Delivery delivery)
