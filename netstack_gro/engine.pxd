from netstack_gro cimport codes, gso, headers, merge, records, wire
from netstack_gro.records cimport Head, HeadPointer, Parsed, ParsedPointer, Slot, SlotPointer
from netstack_gro.table cimport FlowTable
from netstack_gro.wire cimport byte
cimport cython


@cython.final
cdef class Engine:
    cdef Slot *slots
    cdef Head *heads
    cdef int *out
    cdef int out_count
    cdef unsigned int barrier
    cdef bint enabled
    cdef bint tcp
    cdef bint udp
    cdef int fixed_ids
    cdef int max_size
    cdef int max_frame
    cdef int tcp_limit
    cdef int udp_limit
    cdef object never_merge
    cdef object failure
    cdef int _layout
    cdef int _default
    cdef int _head_count
    cdef int _recent
    cdef Parsed *_parsed
    cdef const byte *_port_table
    cdef object _ports
    cdef FlowTable _table

    cdef int attach(self, Head *heads, Parsed *parsed) noexcept
    @cython.locals(slot=SlotPointer)
    cdef int pass_alone(self, int index) noexcept
    @cython.locals(index=cython.int, slot=SlotPointer, head=HeadPointer)
    cdef int take(self, int start, int stop) except -1
    @cython.locals(number=cython.int)
    cdef int reset(self) noexcept
    @cython.locals(
        parsed=ParsedPointer, head=HeadPointer, reason=cython.int, number=cython.int,
        why=cython.int, state=cython.int, following=cython.int
    )
    cdef int _admit(self, Slot *slot, int index) except -1
    cdef int _refuse(self, Head *head, Slot *slot, int index) noexcept
    @cython.locals(parsed=ParsedPointer)
    cdef int _policy(self, Slot *slot) noexcept
    cdef int _limit(self) noexcept
    @cython.locals(parsed=ParsedPointer, head=HeadPointer, number=cython.int)
    cdef int _pass(self, Slot *slot, int index, int verdict) noexcept
    @cython.locals(
        parsed=ParsedPointer, head=HeadPointer, number=cython.int, flags=cython.uint,
        barrier=cython.uint
    )
    cdef int _open(self, Slot *slot, int index, int state) except -1
    @cython.locals(parsed=ParsedPointer, at=cython.Py_ssize_t, size=cython.int)
    cdef bint _claimed(self, object predicate, Slot *slot) except -1
