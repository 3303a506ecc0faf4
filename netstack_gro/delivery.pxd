from netstack_gro cimport codes, gso, headers, records, wire
from netstack_gro.batch cimport Batch
from netstack_gro.records cimport Head, HeadPointer, Parsed, ParsedPointer, Slot, SlotPointer
from netstack_gro.wire cimport byte
cimport cython


@cython.final
cdef class Delivery:
    cdef Slot *slots
    cdef Head *heads
    cdef Parsed *parsed
    cdef byte *space
    cdef Batch batch
    cdef object link
    cdef object memory
    cdef object view
    cdef object pool
    cdef int layout
    cdef int used
    cdef int capacity
    cdef unsigned int barrier
    cdef int default
    cdef bint partial
    cdef bint viewed

    @cython.locals(slot=SlotPointer)
    cdef int parse(self, int index) noexcept
    @cython.locals(slot=SlotPointer)
    cdef int reason(self, int index) noexcept
    @cython.locals(slot=SlotPointer, head=HeadPointer, state=cython.int)
    cdef int state(self, int index) noexcept
    @cython.locals(at=cython.int)
    cdef int take_space(self) noexcept
    cdef int renew(self) except -1
    @cython.locals(head=HeadPointer, slot=SlotPointer, at=cython.int, length=cython.int)
    cdef int write_header(self, int index) noexcept
    @cython.locals(
        at=cython.int, count=cython.int, field=cython.int, check=cython.uint,
        covered=cython.ulonglong
    )
    cdef int write_checksum(self, Head *head) noexcept
    @cython.locals(
        slot=SlotPointer, index=cython.int, position=cython.int, size=cython.int,
        total=cython.ulonglong, part=cython.uint
    )
    cdef unsigned int sum_payload(self, Head *head) noexcept
    @cython.locals(
        slot=SlotPointer, parsed=ParsedPointer, at=cython.int, count=cython.int,
        field=cython.int, check=cython.uint, reason=cython.int, place=cython.int
    )
    cdef int complete(self, int index) noexcept
