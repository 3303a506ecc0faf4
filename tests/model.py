"""The merge rules as the text has them: slow, eager, one batch at a time.

`deliver` says what must become of a batch. Checksums are verified for every candidate, where the
engine may leave one that nobody challenged; a `Group` therefore holds the verdicts and reasons
that are right, mostly one of each, and `difference` compares them with what was observed.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from netstack_gro.config import ChecksumState, GroConfig, IpIdMode, Limits
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import DATA_VALID, GSO_ECN, NEEDS_CSUM, VirtioHeader
from tests.builders import TrafficPacket
from tests.dissect import CWR, FIN, PSH, TCP, UDP, Parsed, checksum16, flow_key, parse

__all__ = [
    "Group",
    "Observed",
    "checksum16",
    "coalesce",
    "cut",
    "deliver",
    "difference",
    "flow_key",
    "parse",
]

TCPV4, TCPV6, UDP_L4 = 1, 4, 5  # VIRTIO_NET_HDR_GSO_*, include/uapi/linux/virtio_net.h
EVERY_REASON = frozenset(CloseReason)


@dataclass(slots=True)
class Group:
    """One packet that must be delivered: the inputs in it, and what may be said of it.

    `gso_size` is the payload of each segment but the last (0 for a packet passed through).
    """

    inputs: list[int]
    verdicts: frozenset[Verdict]
    reasons: frozenset[CloseReason] = frozenset((CloseReason.NOT_HELD,))
    gso_size: int = 0
    ip_id_mode: IpIdMode = IpIdMode.NONE
    checksum: ChecksumState = ChecksumState.UNKNOWN

    @property
    def kind(self) -> str:
        """``merged``, ``opened`` or ``passed``; a bad checksum counts as passed."""
        if self.verdicts == {Verdict.MERGED}:
            return "merged"
        return "opened" if self.verdicts == {Verdict.OPENED} else "passed"


@dataclass(frozen=True, slots=True)
class Observed:
    """One delivered packet as an engine gave it: input indices, verdict, reason."""

    inputs: tuple[int, ...]
    verdict: Verdict
    closed_by: CloseReason


def difference(expected: Sequence[Group], observed: Iterable[Observed]) -> str | None:
    """The first disagreement in words, or None."""
    seen = list(observed)
    for number, (group, packet) in enumerate(zip(expected, seen, strict=False)):
        if tuple(group.inputs) != packet.inputs:
            return f"packet {number}: holds inputs {packet.inputs}, not {tuple(group.inputs)}"
        if packet.verdict not in group.verdicts:
            return f"input {packet.inputs[0]}: {packet.verdict!r}, not {set(group.verdicts)}"
        lazy = packet.verdict is Verdict.OPENED and Verdict.BAD_CHECKSUM in group.verdicts
        reasons = EVERY_REASON - {CloseReason.NOT_HELD} if lazy else group.reasons
        if packet.closed_by not in reasons:
            return f"input {packet.inputs[0]}: closed by {packet.closed_by!r}, not {set(reasons)}"
    if len(seen) != len(expected):
        return f"{len(seen)} packets were delivered, not {len(expected)}"
    return None


@dataclass(slots=True)
class _Head:
    first: Parsed
    vlan: tuple[int | None, int]
    state: ChecksumState
    group: Group
    bad: bool
    size: int  # payload bytes so far
    mode: IpIdMode = IpIdMode.NONE
    open: bool = True
    full: bool = False

    @property
    def gso_size(self) -> int:
        return len(self.first.payload)

    def close(self, reason: CloseReason) -> None:
        if self.open:
            self.open = False
            if self.bad:  # passed through, had it been verified when it came
                return
            # A head that reached its limit may be said to be closed by that at once, or by what
            # came later: nothing was appended either way.
            self.group.reasons = frozenset((reason, CloseReason.COUNT) if self.full else (reason,))


def deliver(
    packets: Sequence[TrafficPacket],
    config: GroConfig,
    *,
    dispatched: bool = True,
    enabled: bool = True,
    limits: Limits | None = None,
) -> list[Group]:
    """What a batch of at most `config.capacity` packets becomes, in order of delivery.

    `dispatched`: whether it came by `dispatch` with nothing pending, where a batch of one is not
    looked at. `limits`: those of the sink.
    """
    if len(packets) > config.capacity:
        raise ValueError("the model takes one flush at a time")
    if limits is not None:
        config = _stricter(config, limits)
    if len(packets) == 1 and dispatched:
        return [Group([0], frozenset((Verdict.ALONE,)))]
    if not enabled:
        return [Group([index], frozenset((Verdict.DISABLED,))) for index in range(len(packets))]
    batch = _Batch(config)
    for index, packet in enumerate(packets):
        batch.take(index, packet)
    for head in batch.heads.values():
        head.close(CloseReason.BATCH_END)
    return batch.groups


def _stricter(config: GroConfig, limits: Limits) -> GroConfig:
    order = ("merge", "df", "refuse")
    counts = [n for n in (config.max_tcp_segments, limits.max_tcp_segments) if n is not None]
    return replace(
        config,
        tcp=config.tcp and limits.tcp,
        udp=config.udp and limits.udp,
        max_size=min(config.max_size, limits.max_size),
        max_tcp_segments=min(counts, default=None),
        max_udp_segments=min(config.max_udp_segments, limits.max_udp_segments),
        fixed_ip_ids=max(config.fixed_ip_ids, limits.fixed_ip_ids, key=order.index),
    )


class _Batch:
    def __init__(self, config: GroConfig) -> None:
        self.config = config
        self.groups: list[Group] = []  # in order of their first inputs
        self.heads: dict[Hashable, _Head] = {}  # the latest of each flow

    def take(self, index: int, given: TrafficPacket) -> None:
        packet = parse(given.data, self.config.link)
        key = flow_key(packet, given.interface, given.vlan)
        head = self.heads.get(key) if packet.addressed else None
        verdict = self._verdict(packet, given)
        if packet.barrier:
            for other in self.heads.values():
                other.close(CloseReason.BARRIER)
        if verdict is not None:
            if head is not None:
                head.close(CloseReason.PASSED)
            self.groups.append(Group([index], frozenset((verdict,))))
            return
        state = self._state(packet, given)
        bad = not _checksum_is_right(packet, state)
        vlan = (given.vlan, given.vlan_tpid if given.vlan is not None else 0)
        reason = None
        if head is not None and head.open:
            reason = self._obstacle(head, packet, vlan, state)
            if reason is None and not head.bad:
                if not bad:
                    self._append(head, index, packet)
                    return
                head.close(CloseReason.BAD_CHECKSUM)
                self.groups.append(Group([index], frozenset((Verdict.BAD_CHECKSUM,))))
                return
            # After a head with a bad checksum (reason None) everything opens its own.
            head.close(CloseReason.BAD_CHECKSUM if reason is None else reason)
        self.heads[key] = self._open(index, packet, vlan, state, bad=bad)

    def _open(
        self,
        index: int,
        packet: Parsed,
        vlan: tuple[int | None, int],
        state: ChecksumState,
        *,
        bad: bool,
    ) -> _Head:
        # Nobody has challenged it yet, so an engine that verifies late may never notice.
        verdicts = {Verdict.OPENED, Verdict.BAD_CHECKSUM} if bad else {Verdict.OPENED}
        size = len(packet.payload)
        group = Group([index], frozenset(verdicts), gso_size=0 if bad else size, checksum=state)
        self.groups.append(group)
        head = _Head(packet, vlan, state, group, bad, size)
        self._after(head, packet)
        return head

    def _append(self, head: _Head, index: int, packet: Parsed) -> None:
        if len(head.group.inputs) == 1 and packet.version == 4:
            same = packet.ident == head.first.ident
            head.mode = IpIdMode.FIXED if same else IpIdMode.INCREMENT
            head.group.ip_id_mode = head.mode
        head.group.inputs.append(index)
        head.group.verdicts = frozenset((Verdict.MERGED,))
        head.size += len(packet.payload)
        self._after(head, packet)

    def _after(self, head: _Head, packet: Parsed) -> None:
        """Close the head where the packet that became part of it is a last one."""
        if len(packet.payload) < head.gso_size:
            head.close(CloseReason.SHORT)
        if packet.protocol == TCP and packet.flags & PSH:
            head.close(CloseReason.PSH)
        if packet.protocol == TCP and packet.flags & FIN:
            head.close(CloseReason.FIN)
        head.full = len(head.group.inputs) == self._most_segments(packet)

    def _most_segments(self, packet: Parsed) -> int | None:
        tcp = packet.protocol == TCP
        return self.config.max_tcp_segments if tcp else self.config.max_udp_segments

    def _largest(self, packet: Parsed) -> int:
        """The most bytes that an IP packet behind this link header may have."""
        if self.config.max_frame is None:
            return self.config.max_size
        return min(self.config.max_size, self.config.max_frame - packet.ip_offset)

    def _verdict(self, packet: Parsed, given: TrafficPacket) -> Verdict | None:
        """The first verdict that applies but for the checksum, or None for a candidate."""
        config = self.config
        problems = set(packet.problems)
        if given.wire_length not in (None, len(given.data)):
            problems.add(Verdict.TRUNCATED)
        if problems:
            return min(problems)
        if packet.protocol == UDP and (
            packet.ports[1] in set(config.udp_tunnel_ports)
            or not set(packet.ports).isdisjoint(config.udp_tunnel_ports_either)
        ):
            return Verdict.UDP_PORT
        virtio = given.virtio or VirtioHeader()
        if given.aggregated or (virtio.gso_type & ~GSO_ECN and _gso_fits(packet, virtio)):
            return Verdict.ALREADY_AGGREGATED
        if virtio.gso_type & ~GSO_ECN or not _checksum_offsets_fit(packet, virtio):
            return Verdict.BAD_VNET_HEADER
        if not (config.tcp if packet.protocol == TCP else config.udp):
            return Verdict.PROTOCOL_OFF
        if packet.ip_length > self._largest(packet):
            return Verdict.TOO_LARGE
        return None

    def _state(self, packet: Parsed, given: TrafficPacket) -> ChecksumState:
        if given.checksum is not None:
            return given.checksum
        flags = given.virtio.flags if given.virtio else 0
        if flags & NEEDS_CSUM:
            return ChecksumState.PARTIAL
        if flags & DATA_VALID or self.config.received_checksums == "trust":
            return ChecksumState.VERIFIED
        return ChecksumState.UNKNOWN

    def _obstacle(
        self, head: _Head, packet: Parsed, vlan: tuple[int | None, int], state: ChecksumState
    ) -> CloseReason | None:
        """Why the packet does not extend the head, its checksum left aside; None if it does."""
        first = head.first
        count = len(head.group.inputs)
        size = len(packet.payload)
        tcp = packet.protocol == TCP
        payloads = head.size + size
        limit = self._most_segments(packet)
        broken: dict[CloseReason, bool] = {
            CloseReason.LINK_HEADER: packet.link_header != first.link_header or vlan != head.vlan,
            CloseReason.TOS: packet.tos != first.tos,
            CloseReason.TTL: packet.ttl != first.ttl,
            CloseReason.DF: packet.df != first.df,
            CloseReason.FLOW_LABEL: packet.flow_label != first.flow_label,
            CloseReason.EXTENSION_HEADERS: packet.extensions != first.extensions,
            CloseReason.ACK: packet.ack != first.ack,
            CloseReason.WINDOW: packet.window != first.window,
            CloseReason.URGENT_POINTER: packet.urgent != first.urgent,
            CloseReason.TCP_FLAGS: (packet.flags ^ first.flags) & ~(FIN | PSH) != 0,
            CloseReason.TCP_OPTIONS: packet.options != first.options,
            CloseReason.SEQUENCE: tcp and packet.seq != (first.seq + head.size) % 2**32,
            CloseReason.IP_ID: packet.version == 4 and not self._id_follows(head, packet),
            CloseReason.CHECKSUM_STATE: state != head.state,
            CloseReason.LARGER: size > head.gso_size,
            CloseReason.SIZE: packet.ip_length - size + payloads > self._largest(packet),
            CloseReason.COUNT: limit is not None and count >= limit,
        }
        return min((reason for reason, is_broken in broken.items() if is_broken), default=None)

    def _id_follows(self, head: _Head, packet: Parsed) -> bool:
        count = len(head.group.inputs)
        distance = (packet.ident - head.first.ident) % 65536
        fixed = distance == 0 and (
            self.config.fixed_ip_ids == "merge" or (self.config.fixed_ip_ids == "df" and packet.df)
        )
        if head.mode is IpIdMode.FIXED:
            return distance == 0
        if head.mode is IpIdMode.INCREMENT:
            return distance == count
        return fixed or distance == 1


def _gso_fits(packet: Parsed, virtio: VirtioHeader) -> bool:
    right = UDP_L4 if packet.protocol == UDP else {4: TCPV4, 6: TCPV6}[packet.version]
    return (
        virtio.gso_type & ~GSO_ECN == right
        and virtio.gso_size not in (0, 65535)
        and _checksum_offsets_fit(packet, virtio)
    )


def _checksum_offsets_fit(packet: Parsed, virtio: VirtioHeader) -> bool:
    if not virtio.flags & NEEDS_CSUM:
        return True
    return (
        virtio.csum_start == packet.transport_offset
        and virtio.csum_offset == packet.checksum_offset
    )


def _checksum_is_right(packet: Parsed, state: ChecksumState) -> bool:
    if state is ChecksumState.VERIFIED:
        return True
    if state is ChecksumState.PARTIAL:
        return packet.checksum == packet.pseudo_sum()
    return packet.checksum == packet.canonical_checksum()


# --- bytes ---------------------------------------------------------------------------------------


def coalesce(packets: Sequence[bytes], link: str = "ip") -> bytes:
    """The super-packet of segments that merge, with complete checksums."""
    parsed = [parse(packet, link) for packet in packets]
    header = bytearray(packets[0][: parsed[0].payload_offset])
    if parsed[0].protocol == TCP:
        for packet in parsed:
            header[parsed[0].transport_offset + 13] |= packet.flags & (FIN | PSH)
    return _complete(header, b"".join(packet.payload for packet in parsed), parsed[0])


def cut(
    packet: bytes, gso_size: int, id_mode: IpIdMode = IpIdMode.INCREMENT, link: str = "ip"
) -> list[bytes]:
    """The segments of a super-packet, with complete checksums; the inverse of `coalesce`.

    A packet that needs no cutting is returned as it is.
    """
    whole = parse(packet, link)
    if len(whole.payload) <= gso_size:
        return [packet]
    segments = []
    for number, at in enumerate(range(0, len(whole.payload), gso_size)):
        body = whole.payload[at : at + gso_size]
        header = bytearray(packet[: whole.payload_offset])
        if whole.version == 4 and id_mode is not IpIdMode.FIXED:
            ident = (whole.ident + number) % 65536
            header[whole.ip_offset + 4 : whole.ip_offset + 6] = ident.to_bytes(2, "big")
        if whole.protocol == TCP:
            tcp = whole.transport_offset
            header[tcp + 4 : tcp + 8] = ((whole.seq + at) % 2**32).to_bytes(4, "big")
            if at + gso_size < len(whole.payload):
                header[tcp + 13] &= ~(FIN | PSH)
            if number > 0:
                header[tcp + 13] &= ~CWR
        segments.append(_complete(header, body, whole))
    return segments


def _complete(header: bytearray, payload: bytes, like: Parsed) -> bytes:
    """Header and payload with every length and checksum computed anew."""
    ip, transport = like.ip_offset, like.transport_offset
    length = len(header) + len(payload)
    if like.version == 4:
        header[ip + 2 : ip + 4] = (length - ip).to_bytes(2, "big")
        header[ip + 10 : ip + 12] = b"\0\0"
        checksum = 0xFFFF - checksum16(bytes(header[ip:transport]))
        header[ip + 10 : ip + 12] = checksum.to_bytes(2, "big")
    else:
        header[ip + 4 : ip + 6] = (length - ip - 40).to_bytes(2, "big")
    if like.protocol == UDP:
        header[transport + 4 : transport + 6] = (length - transport).to_bytes(2, "big")
    packet = replace(like, data=bytes(header) + payload, end=length)
    field = transport + like.checksum_offset
    header[field : field + 2] = packet.canonical_checksum().to_bytes(2, "big")
    return bytes(header) + payload
