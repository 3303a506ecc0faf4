from netstack_gro cimport codes, gso, headers, records, wire
from netstack_gro.batch cimport Batch
from netstack_gro.delivery cimport Delivery
from netstack_gro.records cimport Head, HeadPointer, Parsed, ParsedPointer, Slot, SlotPointer
from netstack_gro.wire cimport byte
cimport cython


@cython.final
cdef class Packet:
    cdef Delivery _delivery
    cdef int _index
    cdef int _space
    cdef int _header_length
    cdef bint _completed
    cdef object _facts
    cdef object _own

    cdef Head *_head(self, Delivery delivery) noexcept
    @cython.locals(delivery=Delivery, slot=SlotPointer)
    cdef object _describe(self)
    @cython.locals(head=HeadPointer, slot=SlotPointer, tcp=cython.bint)
    cdef object _describe_merged(self, Delivery delivery, Batch batch, int index)
    @cython.locals(
        slot=SlotPointer, parsed=ParsedPointer, state=cython.int, reason=cython.int,
        fits=cython.bint, network=cython.int, transport=cython.int, header_length=cython.int,
        payload=cython.int, version=cython.int, protocol=cython.int, ip_length=cython.int,
        closed=cython.int, start=cython.int, offset=cython.int, segments=cython.int
    )
    cdef object _describe_lone(self, Delivery delivery, Batch batch, int index)
    cdef int _live(self) except -1
    cdef int _settle(self) except -1
    cdef int _forget(self) except -1
    @cython.locals(head=HeadPointer)
    cdef int _size(self) noexcept
    @cython.locals(
        slot=SlotPointer, index=cython.int, position=cython.Py_ssize_t, size=cython.int
    )
    cdef int _write(self, byte *target, Py_ssize_t at) except -1
    @cython.locals(slot=SlotPointer, parsed=ParsedPointer)
    cdef int _own_header(self) except -1

cpdef Packet make_packet()

@cython.locals(slot=SlotPointer)
cdef object _timestamps(Batch batch, int index)
