"""Verifier: whether what was delivered gives back the capture, byte for byte and in order.

It looks at nothing but the file's bytes, which it keeps apart, and what a consumer gets: a
packet's bytes, its metadata, and `gso.segment` on them. Super-packets are cut again and each
piece is compared with the record that must have become it. The flows are found by
`netstack_gro.identity`, not by the engine.

Checked at each flush: every record delivered once and none made up (conservation), equal bytes
(losslessness), order by first record and order within each flow, the number of inputs that a
packet claims, and the checksums of every super-packet.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from netstack_gro import gso
from netstack_gro.capture import Record
from netstack_gro.config import ChecksumState, Link
from netstack_gro.dispatchers.offloads import Offload
from netstack_gro.errors import GsoError
from netstack_gro.identity import Identity, identify
from netstack_gro.packet import Packet

__all__ = ["FAULT_LIMIT", "Fault", "Verifier", "field_at"]

FAULT_LIMIT = 100
"""Faults that are described; after them nothing more is checked."""

_HIDDEN_PORTS = (6, 17, 44)  # what may belong to any flow between its hosts: IPv6 fragments too


class Fault(NamedTuple):
    """One difference between the file and what was delivered.

    record: number of the record in the file, from 1; None for a packet that is in no record.
    """

    record: int | None
    message: str

    def __str__(self) -> str:
        where = "a packet" if self.record is None else f"record {self.record}"
        return f"{where}: {self.message}"


class _Original(NamedTuple):
    """A record that is still to be delivered."""

    number: int
    data: bytes
    found: int
    identity: Identity


class _Flow:
    """The records of one flow that were not delivered yet, and the latest one that was."""

    __slots__ = ("latest", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Original] = deque()
        self.latest = 0


class _Share:
    """What one flush of one interface must deliver.

    barriers: by hosts, the numbers of the records that may belong to any flow between them.
    """

    __slots__ = ("barriers", "done", "flows", "latest")

    def __init__(self) -> None:
        self.flows: dict[bytes, _Flow] = {}
        self.done: list[_Original] = []
        self.barriers: dict[bytes, list[int]] = {}
        self.latest = 0


class Verifier:
    """Compares what engines deliver with what they were given, one flush at a time.

    Give each record to `expect` before it is dispatched, the packets of each flush to `deliver`,
    and call `finish` at the end. ``faults`` is what was found, at most FAULT_LIMIT.
    """

    __slots__ = ("_shares", "faults")

    def __init__(self) -> None:
        self._shares: dict[int, _Share] = {}
        self.faults: list[Fault] = []

    @property
    def ok(self) -> bool:
        """Whether there is no fault so far."""
        return not self.faults

    def expect(self, record: Record, found: Offload, link: Link) -> None:
        """Note a record that is to be delivered with the next flush of its interface.

        found: what the recogniser said of it, and the dispatcher has therefore changed: a partial
        checksum comes back complete, an empty IPv4 header checksum filled in.
        """
        share = self._shares.get(record.interface)
        if share is None:
            share = self._shares[record.interface] = _Share()
        identity = identify(record.data, link)
        original = _Original(record.number, record.data, int(found), identity)
        flow = share.flows.get(identity.flow)
        if flow is None:
            flow = share.flows[identity.flow] = _Flow()
        flow.waiting.append(original)
        if not identity.flow and identity.hosts and identity.protocol in _HIDDEN_PORTS:
            share.barriers.setdefault(identity.hosts, []).append(record.number)

    def deliver(self, packets: Iterable[Packet]) -> None:
        """Check the packets of one flush, which must be all that its interface waits for.

        The packets must own their bytes (`Packet.detach`); the input should be overwritten.
        """
        share: _Share | None = None
        for packet in packets:
            if share is None:
                share = self._shares.pop(packet.interface, None) or _Share()
            if len(self.faults) < FAULT_LIMIT:
                self._check(share, packet)
        if share is not None:
            self._lost(share)

    def finish(self) -> None:
        """Whatever is still expected was lost."""
        for share in self._shares.values():
            self._lost(share)
        self._shares.clear()

    def _fault(self, record: int | None, message: str) -> None:
        if len(self.faults) < FAULT_LIMIT:
            self.faults.append(Fault(record, message))

    def _lost(self, share: _Share) -> None:
        for flow in share.flows.values():
            for original in flow.waiting:
                self._fault(original.number, "was not delivered")

    def _check(self, share: _Share, packet: Packet) -> None:
        data = bytes(packet)
        link = packet.link
        identity = identify(data, link)
        flow = share.flows.get(identity.flow)
        if flow is None:
            flow = share.flows[identity.flow] = _Flow()
        try:
            pieces = list(gso.segment(data, packet.virtio_header(), packet.ip_id_mode))
        except GsoError as error:
            front = flow.waiting[0].number if flow.waiting else None
            self._fault(front, f"its super-packet cannot be cut: {error}")
            return
        left = packet.checksum == ChecksumState.PARTIAL
        numbers = [self._match(share, flow, piece, link, left) for piece in pieces]
        first = numbers[0]
        if packet.packets != len(pieces):
            self._fault(first, f"cut into {len(pieces)} packets, but it counts {packet.packets}")
        if len(pieces) > 1:
            wrong = _wrong_checksum(data, identity)
            if wrong:
                self._fault(first, f"its super-packet has a wrong {wrong} checksum")
        if first is None:
            return
        if first < share.latest:
            self._fault(first, f"was delivered after record {share.latest}")
        share.latest = max(first, share.latest)
        if len(pieces) > 1:
            last = numbers[-1] or first
            barriers = share.barriers.get(identity.hosts, [])
            for number in barriers[bisect_right(barriers, first) : bisect_left(barriers, last)]:
                self._fault(first, f"merged with record {last} across record {number}, a fragment")

    def _match(
        self, share: _Share, flow: _Flow, piece: bytes, link: Link, left: bool
    ) -> int | None:
        """Find the record that a packet was, which should be the flow's next; its number.

        left: the packet says itself that its checksum is still partial.
        """
        waiting = flow.waiting
        for place, original in enumerate(waiting):
            if _undone(piece, original, link, left) == original.data:
                del waiting[place]
                share.done.append(original)
                # A flow without a name is many: only the order by first record counts there.
                if original.number < flow.latest and original.identity.flow:
                    self._fault(
                        original.number, f"was delivered after record {flow.latest} of its flow"
                    )
                flow.latest = max(flow.latest, original.number)
                return original.number
        for original in share.done:
            if _undone(piece, original, link, left) == original.data:
                self._fault(original.number, "was delivered twice")
                return None
        if not waiting:
            self._fault(None, f"is not in the file: {len(piece)} bytes, {piece[:64].hex(' ')}")
            return None
        original = waiting.popleft()
        share.done.append(original)
        undone = _undone(piece, original, link, left)
        self._fault(original.number, _difference(undone, original, link))
        return original.number


def _undone(piece: bytes, original: _Original, link: Link, left: bool) -> bytes:
    """A delivered packet without what the dispatcher did to the record before it was merged.

    A checksum that should have been filled in, and is not right, is left for the comparison; a
    transport checksum that was ``left`` partial is what it was.
    """
    found = original.found
    if not found & (Offload.PARTIAL | Offload.IP_CHECKSUM):
        return piece
    identity = identify(piece, link)
    if not identity.hosts:
        return piece
    changed = bytearray(piece)
    if found & Offload.PARTIAL and identity.transport:
        field = identity.transport + _CHECKSUM_FIELDS[identity.protocol]
        pseudo, whole = _transport_sums(piece, identity)
        if not whole:
            changed[field : field + 2] = pseudo.to_bytes(2, "big")
        elif not left and piece[field : field + 2] == pseudo.to_bytes(2, "big"):
            changed[field : field + 2] = b"\0\0"  # it was to be completed
    if found & Offload.IP_CHECKSUM and not _ip_sum(piece, identity):
        changed[identity.network + 10 : identity.network + 12] = b"\0\0"
    return bytes(changed)


_CHECKSUM_FIELDS = {6: 16, 17: 6}


def _ones_sum(data: bytes) -> int:
    """The ones'-complement sum of 16-bit words (RFC 1071), 0 to 0xFFFE."""
    return int.from_bytes(data + bytes(len(data) & 1), "big") % 0xFFFF


def _ip_sum(packet: bytes, identity: Identity) -> int:
    """0 where the IPv4 header checksum is right."""
    at = identity.network
    return _ones_sum(packet[at : at + (packet[at] & 15) * 4])


def _transport_sums(packet: bytes, identity: Identity) -> tuple[int, int]:
    """The pseudo-header sum as a field holds it, and 0 where the whole checksum is right."""
    at = identity.network
    if packet[at] >> 4 == 4:
        end = at + int.from_bytes(packet[at + 2 : at + 4], "big")
    else:
        end = at + 40 + int.from_bytes(packet[at + 4 : at + 6], "big")
    if end <= identity.transport:  # no IP length: all there is
        end = len(packet)
    covered = packet[identity.transport : end]
    pseudo = (_ones_sum(identity.hosts) + identity.protocol + len(covered)) % 0xFFFF
    return pseudo or 0xFFFF, (pseudo + _ones_sum(covered)) % 0xFFFF


def _wrong_checksum(packet: bytes, identity: Identity) -> str:
    """Which checksum of a super-packet is wrong, or nothing."""
    if not identity.transport:
        return "transport"
    if packet[identity.network] >> 4 == 4 and _ip_sum(packet, identity):
        return "IPv4 header"
    return "transport" if _transport_sums(packet, identity)[1] else ""


def _difference(piece: bytes, original: _Original, link: Link) -> str:
    """What differs between a delivered packet and its record: of each field the first byte."""
    data = original.data
    fields: dict[str, str] = {}
    for at, (here, there) in enumerate(zip(piece, data, strict=False)):
        if here != there:
            field = field_at(data, link, at)
            text = f"byte {at} ({field}) is 0x{here:02x}, in the file 0x{there:02x}"
            fields.setdefault(field, text)
    told = list(fields.values())
    if len(piece) != len(data):
        told.insert(0, f"{len(piece)} bytes, in the file {len(data)}")
    return "; ".join(told)


_IPV4_FIELDS = (
    (0, "version and header length"),
    (1, "TOS"),
    (2, "total length"),
    (4, "ID"),
    (6, "flags and fragment offset"),
    (8, "TTL"),
    (9, "protocol"),
    (10, "header checksum"),
    (12, "source address"),
    (16, "destination address"),
    (20, "options"),
)
_IPV6_FIELDS = (
    (0, "version, traffic class and flow label"),
    (4, "payload length"),
    (6, "next header"),
    (7, "hop limit"),
    (8, "source address"),
    (24, "destination address"),
    (40, "extension headers"),
)
_TCP_FIELDS = (
    (0, "source port"),
    (2, "destination port"),
    (4, "sequence number"),
    (8, "acknowledgement number"),
    (12, "data offset"),
    (13, "flags"),
    (14, "window"),
    (16, "checksum"),
    (18, "urgent pointer"),
    (20, "options"),
)
_UDP_FIELDS = (
    (0, "source port"),
    (2, "destination port"),
    (4, "length"),
    (6, "checksum"),
)


def field_at(packet: bytes, link: Link, offset: int) -> str:
    """What the byte at ``offset`` of a packet is, in words."""
    identity = identify(packet, link)
    if not identity.hosts or offset < identity.network:
        return "link header" if identity.hosts else "not IP"
    version = packet[identity.network] >> 4
    at = offset - identity.network
    if not identity.transport or offset < identity.transport:
        fields = _IPV4_FIELDS if version == 4 else _IPV6_FIELDS
        header = (packet[identity.network] & 15) * 4 if version == 4 else 40
        if not identity.transport and at >= header:
            return "payload"
        return f"IPv{version} {_named(fields, at)}"
    at = offset - identity.transport
    if identity.protocol == 17:
        return f"UDP {_named(_UDP_FIELDS, at)}" if at < 8 else "payload"
    header = 20
    if len(packet) > identity.transport + 12:
        header = packet[identity.transport + 12] >> 4 << 2
    return f"TCP {_named(_TCP_FIELDS, at)}" if at < header else "payload"


def _named(fields: tuple[tuple[int, str], ...], at: int) -> str:
    return [name for start, name in fields if start <= at][-1]
