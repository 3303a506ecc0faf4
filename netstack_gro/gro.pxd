from netstack_gro cimport gso, headers, records, tcp, udp, wire
from netstack_gro.batch cimport Batch
from netstack_gro.packet cimport Delivery, Packet
from netstack_gro.records cimport Bucket, BucketPointer, Head, HeadPointer, Parsed, ParsedPointer, Slot, SlotPointer
from netstack_gro.wire cimport ConstBytePointer, byte
cimport cython

cdef int IDLE, BUSY, CLOSED
cdef int UNKNOWN, VERIFIED, PARTIAL
cdef int NO_ID, FIXED, INCREMENT
cdef int MERGE, DF_ONLY, REFUSE
cdef int ALONE, DISABLED, UDP_PORT, ALREADY_AGGREGATED, BAD_VNET_HEADER, PROTOCOL_OFF
cdef int NEVER_MERGE, TOO_LARGE, BAD_CHECKSUM, MERGED, OPENED
cdef int CLOSED_PASSED, CLOSED_SHORT, CLOSED_PSH, CLOSED_FIN, CLOSED_LINK_HEADER
cdef int CLOSED_SEQUENCE, CLOSED_IP_ID, CLOSED_CHECKSUM_STATE, CLOSED_LARGER, CLOSED_SIZE
cdef int CLOSED_COUNT, CLOSED_BAD_CHECKSUM
cdef unsigned int VLAN_KEY, _GENERATIONS


@cython.final
cdef class GroDispatcher:
    cdef int _state
    cdef int _capacity
    cdef int _layout
    cdef int _default
    cdef int _fixed_ids
    cdef int _max_size
    cdef int _max_frame
    cdef int _tcp_limit
    cdef int _udp_limit
    cdef bint _tcp
    cdef bint _udp
    cdef bint _sums
    cdef bint _enabled
    cdef bint _sink
    cdef int _taken
    cdef int _head_count
    cdef int _out_count
    cdef int _recent
    cdef int _bucket
    cdef unsigned int _digest
    cdef unsigned int _mask
    cdef unsigned int _generation
    cdef unsigned int _barrier
    cdef unsigned long long _seed
    cdef unsigned long long _stir
    cdef Slot *_slots
    cdef Head *_heads
    cdef Bucket *_buckets
    cdef int *_out
    cdef unsigned long long *_verdicts
    cdef unsigned long long *_reasons
    cdef unsigned long long _batches
    cdef unsigned long long _packets_in
    cdef unsigned long long _bytes_in
    cdef unsigned long long _packets_out
    cdef unsigned long long _bytes_out
    cdef unsigned long long _super_packets
    cdef unsigned long long _segments
    cdef const byte *_port_table
    cdef Delivery _delivery
    cdef Batch _own
    cdef Batch _batch
    cdef list _free
    cdef object _ports
    cdef object _hook
    cdef object _config
    cdef object _limits
    cdef object _never_merge
    cdef object _failure

    cdef int _enter(self) except -1
    cdef int _leave(self) except -1
    cdef int _apply(self, object limits) except -1
    cdef int _begin(self, Batch batch) except -1
    cdef int _room(self) except -1
    @cython.locals(count=cython.int, start=cython.int, stop=cython.int, index=cython.int)
    cdef int _dispatch_batch(self, Batch batch) except -1
    @cython.locals(index=cython.int, count=cython.int)
    cdef int _continue_with(self, Batch batch) except -1
    @cython.locals(own=Batch, count=cython.int, delivering=cython.bint)
    cdef int _dispatch_iterable(self, object packets) except -1
    cdef int _deliver_own(self) except -1
    cdef int _run(self) except -1
    @cython.locals(slot=SlotPointer)
    cdef int _alone(self, int index) noexcept

    @cython.locals(slot=SlotPointer, head=HeadPointer)
    cdef int _take(self, int index) except -1
    @cython.locals(
        base=ConstBytePointer, at=cython.Py_ssize_t, size=cython.int, total=cython.int,
        check=cython.uint, extensions=cython.int
    )
    cdef inline bint _repeats(self, Head *head, Slot *slot) noexcept
    @cython.locals(payload=cython.int, answer=cython.int)
    cdef inline bint _extend(self, Head *head, Slot *slot, int index) noexcept
    @cython.locals(ip_id=cython.uint)
    cdef inline int _continues(self, Head *head, Slot *slot, int payload) noexcept
    @cython.locals(first=SlotPointer, partial=cython.bint)
    cdef int _challenge(self, Head *head, Slot *slot) noexcept
    @cython.locals(at=cython.Py_ssize_t, total=cython.ulonglong)
    cdef int _prepare(self, Head *head) noexcept
    @cython.locals(at=cython.Py_ssize_t, covered=cython.ulonglong)
    cdef inline unsigned long long _covered(
        self, Head *head, const byte *base, Py_ssize_t offset, int payload
    ) noexcept
    @cython.locals(
        last=SlotPointer, ip_id=cython.uint, covered=cython.ulonglong, flags=cython.uint
    )
    cdef inline int _append(self, Head *head, Slot *slot, int index, int payload) noexcept
    cdef inline int _close(self, Head *head, int reason) noexcept

    @cython.locals(
        parsed=ParsedPointer, head=HeadPointer, reason=cython.int,
        number=cython.int, why=cython.int, state=cython.int, answer=cython.int
    )
    cdef int _admit(self, Slot *slot, int index) except -1
    cdef inline int _limit(self, Parsed *parsed) noexcept
    cdef int _policy(self, Slot *slot, Parsed *parsed) noexcept
    @cython.locals(why=cython.int)
    cdef int _difference(self, Head *head, Slot *slot, Parsed *parsed, int state) noexcept
    @cython.locals(head=HeadPointer, number=cython.int)
    cdef int _pass(self, Slot *slot, int index, Parsed *parsed, int verdict) noexcept
    @cython.locals(
        head=HeadPointer, bucket=BucketPointer, number=cython.int,
        flags=cython.uint
    )
    cdef int _open(self, Slot *slot, int index, Parsed *parsed, int state) except -1
    @cython.locals(at=cython.Py_ssize_t, size=cython.int)
    cdef bint _claimed(self, object predicate, Slot *slot, Parsed *parsed) except -1
    @cython.locals(
        head=HeadPointer, bucket=BucketPointer, position=cython.uint,
        key=cython.uint, digest=cython.ulonglong
    )
    cdef int _lookup(self, Slot *slot, Parsed *parsed) noexcept

    @cython.locals(
        packets=list, packet=Packet, slot=SlotPointer, head=HeadPointer,
        index=cython.int, position=cython.int, place=cython.int, count=cython.int,
        delivery=Delivery, inputs=cython.ulonglong
    )
    cdef int _flush(self) except -1
    @cython.locals(packet=Packet, position=cython.int)
    cdef int _release(self, int count) except -1
    @cython.locals(position=cython.uint, bucket=BucketPointer)
    cdef int _reset(self) except -1
