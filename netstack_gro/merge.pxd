from netstack_gro cimport codes, headers, records, tcp, udp, wire
from netstack_gro.records cimport Head, Parsed, Slot, SlotPointer
from netstack_gro.wire cimport ConstBytePointer, byte
cimport cython


@cython.locals(
    slot=SlotPointer, last=SlotPointer, base=ConstBytePointer, first=ConstBytePointer,
    network=cython.Py_ssize_t, transport=cython.Py_ssize_t, at=cython.Py_ssize_t,
    extensions=cython.int, payload=cython.int, size=cython.int, index=cython.int,
    total=cython.int, count=cython.int, sequence=cython.uint, ip_id=cython.uint,
    number=cython.uint, mode=cython.int, modes=cython.int, flags=cython.int, check=cython.uint,
    even=cython.ulonglong, odd=cython.ulonglong, covered=cython.ulonglong, data=cython.uint,
    reason=cython.int, tcp=cython.bint, four=cython.bint, refused=cython.bint
)
cdef int run(
    Slot *slots, Head *head, int start, int stop, bint known, int fixed_ids
) noexcept

@cython.locals(why=cython.int)
cdef int difference(
    Head *head, Slot *slot, Parsed *parsed, int state, int fixed_ids
) noexcept

cdef int close(Head *head, int reason) noexcept

@cython.locals(ip_id=cython.uint, mode=cython.int)
cdef int _continues(Head *head, Slot *slot, int payload, int fixed_ids) noexcept

cdef int _id_modes(Head *head, int fixed_ids) noexcept

@cython.locals(first=SlotPointer)
cdef bint _verify_first(Slot *slots, Head *head) noexcept

cdef bint _is_right(Head *head, const byte *base, Py_ssize_t offset, int length) noexcept

@cython.locals(base=ConstBytePointer, at=cython.Py_ssize_t, total=cython.ulonglong)
cdef int _prepare(Head *head) noexcept
