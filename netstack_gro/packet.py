"""Packet: what a hook receives.

A packet is a few numbers; its attributes are computed when they are asked for, from the slots
and heads of the flush it belongs to. When the hook has returned, those are used again: a packet
that somebody kept has its attributes written down, and lets go of the bytes.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from netstack_gro import codes, describe, gso, records, wire
from netstack_gro.buffers import exact
from netstack_gro.config import ChecksumState, Delivered, IpIdMode, Link
from netstack_gro.delivery import Delivery
from netstack_gro.facts import Facts
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import GsoType, VirtioHeader

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Packet"]


_RELEASED = "the packet was released when the hook returned; detach() keeps its bytes"


class Packet:
    """One packet as delivered: a super-packet of several inputs, or one that was passed through.

    Only an engine makes them. Byte access (`bytes()`, `buffers`, `copy_into`, `segments`,
    `header`, `detach`) is possible until the hook returns, and after `detach`; it raises
    ValueError otherwise. All other attributes stay readable.
    """

    __slots__ = (
        "_completed",
        "_delivery",
        "_facts",
        "_header_length",
        "_index",
        "_lent",
        "_own",
        "_space",
    )

    _completed: bool
    _delivery: Delivery
    _facts: Facts
    _header_length: int
    _index: int
    _lent: bool
    _own: Any
    _space: int

    def __init__(self) -> None:
        raise TypeError("cannot create 'Packet' instances")

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'Packet' object")

    def __len__(self) -> int:
        """Bytes of the packet, link header included."""
        if not self._lent and self._own is None:
            return self._facts.length
        return self._size()

    def __bytes__(self) -> bytes:
        """The whole packet, linearised."""
        self._live()
        if self._own is not None:
            return bytes(self._own)
        data = records.blank(self._size())
        self._write(records.blank_base(data), 0)
        return records.finished(data)

    def __repr__(self) -> str:
        facts = self._describe()
        what = f"{facts.packets} x {facts.gso_size}" if facts.packets > 1 else "lone"
        return f"<Packet of {facts.length} bytes, {facts.verdict.name}, {what}>"

    def buffers(self) -> list[memoryview]:
        """The packet in pieces, read-only, in order: for writev and sendmsg.

        One piece per segment, and one for a rewritten header. A piece kept after the hook
        returned stays readable and pins the memory it lies in: prefer `detach`.
        """
        self._live()
        if self._own is not None:
            return [memoryview(self._own).toreadonly()]
        # From here on everything is held: creating views may let another thread in.
        delivery = self._delivery
        batch = delivery.batch
        pieces = []
        index = self._index
        start = 0
        if self._space >= 0:
            start = self._header_length
            delivery.viewed = True
            pieces.append(delivery.view[self._space : self._space + start].toreadonly())
        while index >= 0:
            slot = records.slot_at(batch._slots, index)
            pieces.append(batch._piece(index, start, slot.length))
            index = slot.following
            if index >= 0:
                start = records.slot_at(batch._slots, index).header_length
        return pieces

    def copy_into(self, buffer: "Buffer", offset: int = 0) -> int:
        """Write the packet to the writable ``buffer`` from ``offset`` on; bytes written.

        Raises ValueError where it does not fit, TypeError for a buffer that is read-only or not
        contiguous; the buffer is unchanged then.
        """
        start = exact(offset)  # which may run code of the caller's, as the conversions below
        if type(buffer) is bytearray:  # as most are: a memoryview and its checks cost 0.4 us
            self._live()
            size = self._fit(start, len(buffer))
            self._write(records.space_base(buffer), start)
            return size
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous:
            raise TypeError("a writable contiguous buffer is required")
        view = view.cast("B")
        self._live()
        size = self._fit(start, len(view))
        self._write(records.view_base(buffer, view), start)
        return size

    def _fit(self, start: int, room: int) -> int:
        """Bytes of the packet; ValueError where they do not fit ``room`` bytes from ``start``."""
        size = self._size()
        if not 0 <= start <= room - size:
            raise ValueError(f"{size} bytes at offset {start} do not fit a buffer of {room} bytes")
        return size

    def segments(
        self, *, checksums: Delivered = "complete", max_segments: int = 65535
    ) -> Iterator[bytes]:
        """The wire packets that this one stands for: `gso.segment` on its bytes and metadata."""
        facts = self._describe()
        return gso.segment(
            bytes(self),
            facts.virtio,
            facts.ip_id_mode,
            link=facts.link,
            checksums=checksums,
            max_segments=max_segments,
        )

    def detach(self) -> "Packet":
        """Copy the bytes out of the engine's memory, so that the packet outlives the hook; self."""
        self._live()
        if self._own is None:
            own = bytearray(bytes(self))
            self._settle()
            self._own = own
        return self

    @property
    def header(self) -> memoryview:
        """The packet's headers, link to transport, writable: for NAT, TTL, ECN.

        `bytes()`, `buffers` and `segments` follow what is written, the input's memory does not
        change. `segments` computes the checksums of every segment that it cuts; those of
        `bytes()`, and of a packet that is a single segment, are the writer's to keep right
        (RFC 1624). Empty for a packet without a TCP or UDP header that was found. A view that is
        kept after the hook returned pins the memory that it lies in.
        """
        self._live()
        if self._own is not None:
            length = self._facts.header_length
            return memoryview(self._own)[: length if length <= codes.HEADERS_LIMIT else 0]
        if self._space < 0:
            self._own_header()
        if self._space < 0:
            return memoryview(bytearray())
        delivery = self._delivery
        delivery.viewed = True
        return delivery.view[self._space : self._space + self._header_length]

    def fits(self, mtu: int) -> bool:
        """Whether every wire packet that this one stands for has at most ``mtu`` bytes of IP."""
        facts = self._describe()
        length = facts.ip_length
        if facts.gso_size:
            length = min(length, facts.header_length - facts.network + facts.gso_size)
        return length <= mtu

    def virtio_header(self) -> VirtioHeader:
        """What describes the packet to a TUN or a peer, in the host's own words (`encode` it).

        All zero for a packet with nothing left to do. A super-packet's hdr_len, csum_start and
        csum_offset are filled in whether or not its checksum is partial.
        """
        if self._lent:
            delivery = self._delivery
            slot = records.slot_at(delivery.slots, self._index)
            if slot.head >= 0 and slot.following >= 0:
                return describe.virtio_of(delivery, records.head_at(delivery.heads, slot.head))
            if not slot.flags and slot.checksum != codes.PARTIAL:
                return describe.NO_HEADER  # as most packets have, without a look at them
        return self._describe().virtio

    def timestamps(self) -> tuple[int, ...]:
        """Arrival times of the inputs in it, in order, in nanoseconds."""
        return self._describe().timestamps

    @property
    def packets(self) -> int:
        """Input packets in this one."""
        if not self._lent:
            return self._facts.packets
        delivery = self._delivery
        head = self._head(delivery)
        inputs: int = head.count if head else 1
        return inputs

    @property
    def gso_type(self) -> GsoType:
        """What kind of super-packet; NONE for a wire packet."""
        return self._describe().gso_type

    @property
    def gso_size(self) -> int:
        """Payload bytes of each segment but the last; 0 for a wire packet, or where unknown."""
        if not self._lent:
            return self._facts.gso_size
        delivery = self._delivery
        head = self._head(delivery)
        if head:
            size: int = head.gso_size
            return size
        flagged = records.slot_at(delivery.slots, self._index).flags != 0
        return self._describe().gso_size if flagged else 0

    @property
    def gso_segs(self) -> int:
        """Wire packets that this one stands for; 0 where unknown."""
        return self._describe().gso_segs

    @property
    def ip_id_mode(self) -> IpIdMode:
        """How the segments' IPv4 IDs go on."""
        return self._describe().ip_id_mode

    @property
    def checksum(self) -> ChecksumState:
        """What is known of the transport checksum as delivered."""
        return self._describe().checksum

    @property
    def verdict(self) -> Verdict:
        """Why the packet is what it is."""
        if not self._lent:
            return self._facts.verdict
        delivery = self._delivery
        return Verdict(records.slot_at(delivery.slots, self._index).verdict)

    @property
    def closed_by(self) -> CloseReason:
        """Why nothing more was merged into it; NOT_HELD for a packet passed through."""
        return self._describe().closed_by

    @property
    def timestamp_ns(self) -> int:
        """Arrival time of its first input, in nanoseconds."""
        if not self._lent:
            return self._facts.timestamps[0]
        delivery = self._delivery
        return records.slot_at(delivery.slots, self._index).timestamp_ns

    @property
    def interface(self) -> int:
        """The interface it came from."""
        if not self._lent:
            return self._facts.interface
        delivery = self._delivery
        return records.slot_at(delivery.slots, self._index).interface

    @property
    def vlan(self) -> int | None:
        """The TCI of a VLAN tag that is not in the packet."""
        if not self._lent:
            return self._facts.vlan
        delivery = self._delivery
        tag: int = records.slot_at(delivery.slots, self._index).vlan
        return tag & 0xFFFF if tag else None

    @property
    def vlan_tpid(self) -> int:
        """That tag's TPID; 0 without one."""
        return self._describe().vlan_tpid

    @property
    def link(self) -> Link:
        """The link layer its bytes begin with."""
        if not self._lent:
            return self._facts.link
        delivery = self._delivery
        return delivery.link

    @property
    def wire_length(self) -> int:
        """Its length on the wire, where it was cut off; else its length."""
        return self._describe().wire_length

    def _live(self) -> int:
        if not self._lent and self._own is None:
            raise ValueError(_RELEASED)
        return 0

    def _head(self, delivery: Delivery) -> Any:
        """The super-packet's head; for a lone packet none, which is false."""
        slot = records.slot_at(delivery.slots, self._index)
        if slot.head < 0 or slot.following < 0:
            return records.no_head()
        return records.head_at(delivery.heads, slot.head)

    def _size(self) -> int:
        """Bytes that there are now, of a packet whose bytes can be had."""
        if self._own is not None:
            return len(self._own)
        head = self._head(self._delivery)
        if head:
            size: int = head.header_length + head.payload
            return size
        return records.slot_at(self._delivery.slots, self._index).length

    def _write(self, target: Any, at: int) -> int:
        """Write all bytes to a place that has room for them."""
        if self._own is not None:
            wire.copy(target, at, records.space_base(self._own), 0, len(self._own))
            return 0
        delivery = self._delivery
        index = self._index
        position = at
        start = 0
        if self._space >= 0:
            start = self._header_length
            wire.copy(target, position, delivery.space, self._space, start)
            position += start
        while index >= 0:
            slot = records.slot_at(delivery.slots, index)
            size = slot.length - start
            wire.copy(target, position, slot.base, slot.offset + start, size)
            position += size
            index = slot.following
            if index >= 0:
                start = records.slot_at(delivery.slots, index).header_length
        return 0

    def _own_header(self) -> int:
        """Copy a lone packet's headers to the header space, where they may be written."""
        delivery = self._delivery
        parsed = delivery.parsed
        delivery.parse(self._index)
        if not parsed.header_length or parsed.header_length > codes.HEADERS_LIMIT:
            return 0
        slot = records.slot_at(delivery.slots, self._index)
        self._header_length = parsed.header_length
        self._space = delivery.take_space()
        wire.copy(delivery.space, self._space, slot.base, slot.offset, parsed.header_length)
        return 0

    def _describe(self) -> Facts:
        """All attributes at once."""
        if not self._lent:
            return self._facts
        delivery = self._delivery
        slot = records.slot_at(delivery.slots, self._index)
        if slot.head >= 0 and slot.following >= 0:
            return describe.merged(delivery, delivery.batch, self._index)
        return describe.lone(delivery, delivery.batch, self._index, self._completed)

    def _settle(self) -> int:
        """Write the attributes down and let go of the engine."""
        self._facts = self._describe()
        self._lent = False
        self._delivery = None  # type: ignore[assignment]
        return 0


def make_packet(delivery: Delivery) -> Packet:
    """A packet of an engine, of no flush yet."""
    packet = Packet.__new__(Packet)
    packet._delivery = delivery
    return packet


records.seal(Packet, ("_lent",), ("_delivery", "_facts", "_own"))
