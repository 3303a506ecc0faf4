"""Batch: the packets that one read of a dispatcher returned.

A batch is allocated once for its capacity and used again and again. Its packets are ranges of
one slab (a receive buffer, a mapped ring) or buffers of others that it borrows until it is
cleared; neither is ever written to.
"""

from typing import TYPE_CHECKING, Any, NoReturn

from netstack_gro import records
from netstack_gro.buffers import contiguous, exact
from netstack_gro.config import MAX_CAPACITY, MAX_PACKET, ChecksumState
from netstack_gro.errors import EngineStateError
from netstack_gro.slabs import SlabPool
from netstack_gro.virtio import NEEDS_CSUM as VIRTIO_NEEDS_CSUM
from netstack_gro.virtio import VirtioHeader
from netstack_gro.wire import Base

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Batch"]

_MAX_TIME = 2**63 - 1
_LONGEST = MAX_PACKET  # typed in the .pxd


class Batch:
    """Batch(slab=None, *, capacity=1024, max_slabs=8): packets and their metadata.

    They are ranges of ``slab`` or borrowed buffers, up to ``capacity`` of them.

    slab: a bytes-like object, writable or not, that `add` takes ranges of. It is locked against
    resizing for as long as the batch lives. None: the batch only borrows buffers (`append`).
    capacity: the largest number of packets, 1 to 65,536.
    max_slabs: how many slabs `recycle` may let kept views pin, 1 to 1,024.

    Each packet has, beside its bytes, these metadata keywords in `add` and `append`:

    wire_length: bytes it had on the wire, before it was cut off (snap length, MSG_TRUNC); its
        length if None. A packet whose two lengths differ is passed through.
    timestamp_ns: arrival time, integer nanoseconds, signed 64 bits.
    interface: number of the interface, unsigned 32 bits; part of the flow.
    checksum: `ChecksumState`, or None for what virtio or else the engine's configuration says.
    vlan, vlan_tpid: the tag control information (16 bits) of a VLAN tag that is not in the
        packet, and its TPID; None for no tag.
    virtio: the packet's `VirtioHeader`, where it came with one that may be believed.
    aggregated: the packet is a super-packet of unknown gso_size.
    """

    __slots__ = (
        "_base",
        "_busy",
        "_count",
        "_held",
        "_limit",
        "_max_slabs",
        "_owners",
        "_pool",
        "_size",
        "_slab",
        "_slots",
        "_view",
    )

    _base: Base
    _busy: bool
    _count: int
    _held: list[Any] | None
    _limit: int
    _max_slabs: int
    _owners: list[Any]
    _pool: SlabPool | None
    _size: int
    _slab: Any
    _slots: list[records.Slot]
    _view: memoryview

    def __init__(
        self, slab: "Buffer | None" = None, *, capacity: int = 1024, max_slabs: int = 8
    ) -> None:
        if self._limit:
            raise EngineStateError("a batch is initialised once")
        capacity = _field("capacity", capacity, 1, MAX_CAPACITY)
        max_slabs = _field("max_slabs", max_slabs, 1, 1024)
        if self._limit:  # by the caller's own code, which the conversions ran
            raise EngineStateError("a batch is initialised once")
        self._max_slabs = max_slabs
        self._view = memoryview(b"")
        self._pool = None
        self._exchange(slab)
        self._slots = records.slots(capacity)
        self._owners = [None] * capacity
        self._held = None
        self._count = 0
        self._busy = False
        self._limit = capacity

    def __dealloc__(self) -> None:
        records.release(self._slots)

    def __len__(self) -> int:
        """How many packets the batch holds."""
        return self._count

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'Batch' object")

    def __repr__(self) -> str:
        slab = f", slab of {self._size} bytes" if self._slab is not None else ""
        return f"<Batch of {self._count} packets, capacity {self._limit}{slab}>"

    @property
    def capacity(self) -> int:
        """The largest number of packets."""
        return self._limit

    @property
    def slab(self) -> Any:
        """The slab that `add` takes ranges of, or None. `recycle` may replace it."""
        return self._slab

    @property
    def slabs_replaced(self) -> int:
        """How often `recycle` found the slab pinned by a view and took another."""
        return self._pool.replaced if self._pool is not None else 0

    def add(
        self,
        offset: int,
        length: int,
        *,
        wire_length: int | None = None,
        timestamp_ns: int = 0,
        interface: int = 0,
        checksum: ChecksumState | None = None,
        vlan: int | None = None,
        vlan_tpid: int = 0x8100,
        virtio: VirtioHeader | None = None,
        aggregated: bool = False,
    ) -> None:
        """Add the ``length`` bytes at ``offset`` of the slab as the next packet.

        Raises ValueError for a range outside the slab, a full batch or metadata out of range,
        TypeError for metadata of a wrong type; the batch is unchanged then.
        """
        if self._slab is None:
            raise ValueError("the batch has no slab to add a range of; append borrows a buffer")
        start = _field("offset", offset, 0, self._size)
        size = _field("length", length, 0, min(self._size - start, MAX_PACKET))
        if self._count >= self._limit or self._busy:
            self._refuse()
        self._busy = True  # metadata may run code of the caller's when it is converted
        try:
            slot = records.slot_at(self._slots, self._count)
            slot.base = self._base
            slot.offset = start
            slot.length = size
            self._describe(
                slot,
                wire_length,
                timestamp_ns,
                interface,
                checksum,
                vlan,
                vlan_tpid,
                virtio,
                aggregated,
            )
            self._count += 1
        finally:
            self._busy = False

    def append(
        self,
        packet: "Buffer",
        *,
        wire_length: int | None = None,
        timestamp_ns: int = 0,
        interface: int = 0,
        checksum: ChecksumState | None = None,
        vlan: int | None = None,
        vlan_tpid: int = 0x8100,
        virtio: VirtioHeader | None = None,
        aggregated: bool = False,
    ) -> None:
        """Borrow the bytes-like ``packet`` as the next packet, until the batch is cleared.

        Raises TypeError for an object without a contiguous buffer, and as `add` does.
        """
        if self._count >= self._limit or self._busy:
            self._refuse()
        self._store(
            packet,
            wire_length,
            timestamp_ns,
            interface,
            checksum,
            vlan,
            vlan_tpid,
            virtio,
            aggregated,
        )

    def clear(self) -> None:
        """Forget all packets and give back the borrowed buffers."""
        if self._busy:
            self._refuse()
        self._busy = True  # a buffer that is given back may run code of the caller's
        try:
            self._drop()
        finally:
            self._busy = False

    def recycle(self) -> bool:
        """Clear, and make the slab safe to overwrite; whether it had to be replaced.

        A slab that is a bytearray and of which a view still exists (from `Packet.buffers`) is
        set aside, and ``slab`` is another of its size from now on. Raises PinnedError when
        ``max_slabs`` are pinned. Other slabs are not looked at: their owner knows.
        """
        self.clear()
        if self._pool is None:
            return False
        self._busy = True
        try:
            self._view.release()
            try:
                self._pool.renew()
            finally:
                replaced = self._pool.current is not self._slab
                self._attach(self._pool.current)
        finally:
            self._busy = False
        return replaced

    def attach(self, slab: "Buffer | None") -> None:
        """Clear, and take ``slab`` (or None) as the memory of the packets to come.

        The batch keeps no view of the former one, so whoever owns that can tell from its
        references whether somebody else does. Raises TypeError for an object without a contiguous
        buffer; the batch has no slab then.
        """
        self.clear()
        self._busy = True  # a slab that is given back may run code of the caller's
        try:
            self._exchange(slab)
        finally:
            self._busy = False

    def _exchange(self, slab: Any) -> int:
        """Let go of the slab, and take another with a pool of its own where it needs one."""
        self._slab = None
        self._size = 0
        self._pool = None
        self._view.release()
        self._view = memoryview(b"")
        self._attach(slab)
        if type(slab) is bytearray:
            self._pool = SlabPool(slab, self._max_slabs)
        return 0

    def _place(self, offset: int, length: int) -> records.Slot:
        """The next slot, for a range of the slab, with the metadata of a packet without any.

        For dispatchers, which fill it in. They have seen to it that the range lies in the slab
        and that the batch has room.
        """
        slot = records.slot_at(self._slots, self._count)
        slot.base = self._base
        slot.offset = offset
        slot.length = length
        self._plain(slot)
        self._count += 1
        return slot

    def _attach(self, slab: Any) -> int:
        """Take a slab, or None, as the memory of the packets to come."""
        self._slab = slab
        self._size = 0
        if slab is None:
            return 0
        self._view = contiguous(slab)
        self._size = len(self._view)
        self._base = records.view_base(slab, self._view)
        return 0

    def _refuse(self) -> NoReturn:
        if self._busy:
            raise EngineStateError(
                "the batch is being dispatched, or in the middle of another call"
            )
        raise ValueError(f"the batch is full: {self._limit} packets")

    def _borrow(self, packet: Any) -> int:
        """Point the next slot at a buffer and keep the buffer alive; the count stays."""
        self._forget_list()
        slot = records.slot_at(self._slots, self._count)
        if type(packet) is bytes:
            self._owners[self._count] = packet
            slot.base = records.bytes_base(packet)
            size = len(packet)
        else:
            view = contiguous(packet)
            self._owners[self._count] = view
            slot.base = records.view_base(packet, view)
            size = len(view)
        if size > _LONGEST:
            self._owners[self._count] = None
            raise ValueError(f"a packet of {size} bytes is longer than {MAX_PACKET}")
        slot.offset = 0
        slot.length = size
        return 0

    def _borrow_list(self, packets: list[Any], start: int) -> int:
        """Borrow the packets of a list from ``start`` on, while they are bytes and there is room.

        The batch is empty. Returns the position of the first that was not borrowed; no code of the
        caller's runs meanwhile. What keeps them alive is a copy of the list, made and dropped at
        once: to count references up and down one by one takes a third of the time.
        """
        held = packets[start : start + self._limit]
        count = 0
        stop = len(held)
        while count < stop:
            slot = records.slot_at(self._slots, count)
            if not records.lend(slot, held, count, _LONGEST):
                del held[count:]
                break
            self._plain(slot)
            count += 1
        self._held = held
        self._count = count
        return start + count

    def _store(
        self,
        packet: Any,
        wire_length: Any,
        timestamp_ns: Any,
        interface: Any,
        checksum: Any,
        vlan: Any,
        vlan_tpid: Any,
        virtio: Any,
        aggregated: Any,
    ) -> int:
        """Borrow a packet with its metadata; the batch has room."""
        self._busy = True  # a packet and its metadata may run code of the caller's
        try:
            self._borrow(packet)
            self._describe(
                records.slot_at(self._slots, self._count),
                wire_length,
                timestamp_ns,
                interface,
                checksum,
                vlan,
                vlan_tpid,
                virtio,
                aggregated,
            )
            self._count += 1
        except BaseException:
            self._owners[self._count] = None
            raise
        finally:
            self._busy = False
        return 0

    def _drop(self) -> int:
        # Counted out first: an exception of a signal handler must not leave emptied slots counted.
        count = self._count
        if not count:
            return 0
        self._count = 0
        held = 0
        if self._held is not None:
            held = len(self._held)
            self._held = None
        owners = self._owners
        for index in range(held, count):
            owners[index] = None
        for index in range(count):
            records.forget_slot(records.slot_at(self._slots, index))
        return 0

    def _adopt(self, other: "Batch", index: int) -> int:
        """Take over a packet of another batch, and hold its memory; the count stays."""
        self._forget_list()
        owner = other._owner(index)
        self._owners[self._count] = other._view if owner is None else owner
        records.copy_slot(
            records.slot_at(self._slots, self._count), records.slot_at(other._slots, index)
        )
        return 0

    def _forget_list(self) -> int:
        """A signal may have struck between the two steps of `_drop`."""
        if not self._count:
            self._held = None
        return 0

    def _owner(self, index: int) -> Any:
        """What keeps a packet's bytes alive; None: the slab."""
        if self._held is not None and index < len(self._held):
            return self._held[index]
        return self._owners[index]

    def _piece(self, index: int, start: int, stop: int) -> memoryview:
        """A read-only view of bytes ``start`` to ``stop`` of a packet."""
        owner = self._owner(index)
        slot = records.slot_at(self._slots, index)
        view = self._view if owner is None else memoryview(owner)
        return view[slot.offset + start : slot.offset + stop]

    def _plain(self, slot: records.Slot) -> int:
        """Give a slot the metadata of a packet that came with none."""
        slot.wire_length = slot.length
        slot.timestamp_ns = 0
        slot.interface = 0
        slot.vlan = 0
        slot.checksum = 0
        slot.flags = 0
        slot.gso_type = 0
        slot.gso_size = 0
        return 0

    def _describe(
        self,
        slot: records.Slot,
        wire_length: Any,
        timestamp_ns: Any,
        interface: Any,
        checksum: Any,
        vlan: Any,
        vlan_tpid: Any,
        virtio: Any,
        aggregated: Any,
    ) -> int:
        """Check a packet's metadata keywords and write them into its slot."""
        self._plain(slot)
        if wire_length is not None:
            slot.wire_length = _field("wire_length", wire_length, 0, MAX_PACKET)
        if timestamp_ns is not None:
            slot.timestamp_ns = _field("timestamp_ns", timestamp_ns, -_MAX_TIME - 1, _MAX_TIME)
        if interface is not None:
            slot.interface = _field("interface", interface, 0, 2**32 - 1)
        if vlan is not None:
            slot.vlan = _field("vlan_tpid", vlan_tpid, 1, 65535) << 16 | _field(
                "vlan", vlan, 0, 65535
            )
        flags = 0
        if aggregated is True:
            flags = records.AGGREGATED
        elif aggregated is not False:
            raise TypeError(f"aggregated: a bool is required, not {type(aggregated).__name__!r}")
        if virtio is not None:
            if not isinstance(virtio, VirtioHeader):
                raise TypeError(
                    f"virtio: a VirtioHeader is required, not {type(virtio).__name__!r}"
                )
            if virtio.gso_type & 0x7F:
                flags |= records.VNET
                slot.gso_type = virtio.gso_type
                slot.gso_size = virtio.gso_size
            if virtio.flags & VIRTIO_NEEDS_CSUM:
                flags |= records.NEEDS_CSUM
                slot.csum_start = virtio.csum_start
                slot.csum_offset = virtio.csum_offset
                slot.checksum = int(ChecksumState.PARTIAL)
            elif virtio.data_valid:
                slot.checksum = int(ChecksumState.VERIFIED)
        if checksum is not None:
            if not isinstance(checksum, ChecksumState):
                raise TypeError(
                    f"checksum: a ChecksumState is required, not {type(checksum).__name__!r}"
                )
            slot.checksum = int(checksum)
        slot.flags = flags
        return 0


records.seal(
    Batch, ("_busy", "_count", "_limit", "_max_slabs", "_size"), ("_pool", "_slab", "_view")
)


def _field(name: str, value: Any, low: int, high: int) -> int:
    """An integer of a metadata field, checked."""
    if isinstance(value, bool):
        raise TypeError(f"{name}: an integer is required, not 'bool'")
    try:
        number = exact(value)
    except TypeError:
        raise TypeError(f"{name}: an integer is required, not {type(value).__name__!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{name}: {number} is not within {low} to {high}")
    return number
