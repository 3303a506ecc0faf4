from netstack_gro cimport codes, headers, records, tcp, udp, wire
from netstack_gro.records cimport Head, Parsed, Slot, SlotPointer
from netstack_gro.wire cimport ConstBytePointer, byte
cimport cython


@cython.locals(payload=cython.int, why=cython.int)
cdef int follow(
    Slot *slots, Head *head, Slot *slot, int index, int fixed_ids, bint sums
) noexcept

@cython.locals(why=cython.int)
cdef int difference(
    Head *head, Slot *slot, Parsed *parsed, int state, int fixed_ids
) noexcept

@cython.locals(why=cython.int)
cdef int extend(Slot *slots, Head *head, Slot *slot, int index, int payload, bint sums) noexcept

cdef int close(Head *head, int reason) noexcept

@cython.locals(
    base=ConstBytePointer, at=cython.Py_ssize_t, size=cython.int, total=cython.int,
    check=cython.uint, extensions=cython.int
)
cdef bint _repeats(Head *head, Slot *slot, bint sums) noexcept

@cython.locals(ip_id=cython.uint)
cdef int _continues(Head *head, Slot *slot, int payload, int fixed_ids) noexcept

@cython.locals(first=SlotPointer, partial=cython.bint)
cdef int _challenge(Slot *slots, Head *head, Slot *slot) noexcept

@cython.locals(at=cython.Py_ssize_t, total=cython.ulonglong)
cdef int _prepare(Head *head, bint sums) noexcept

@cython.locals(at=cython.Py_ssize_t, covered=cython.ulonglong)
cdef unsigned long long _covered(
    Head *head, const byte *base, Py_ssize_t offset, int payload
) noexcept

@cython.locals(
    last=SlotPointer, ip_id=cython.uint, covered=cython.ulonglong, flags=cython.uint
)
cdef int _append(
    Slot *slots, Head *head, Slot *slot, int index, int payload, bint sums
) noexcept
