"""What must hold for every batch, checked from what the consumer gets, cheaply enough for millions.

`feed` gives an engine one batch in one of the ways of `FEEDS`, `Recorder` is a hook that writes
down what was delivered, and `check` compares that with the inputs, which it keeps apart: in a
slab they are overwritten before anything is cut. A broken invariant raises `Violation`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import strategies as st

from netstack_gro.config import ChecksumState, GroConfig, IpIdMode
from netstack_gro.stats import Stats
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import GSO_ECN, GsoType, VirtioHeader
from tests.builders import TrafficPacket, fix_checksums
from tests.dissect import Parsed, flow_key, parse
from tests.engines import Engine
from tests.traffic import LINKS, batches, configs

__all__ = [
    "FEEDS",
    "Delivered",
    "Recorder",
    "Tally",
    "Violation",
    "cases",
    "check",
    "check_conservation",
    "check_losslessness",
    "check_order",
    "feed",
    "received_state",
]

HELD = (Verdict.MERGED, Verdict.OPENED)
UNMODIFIED = (Verdict.BAD_VNET_HEADER, Verdict.BAD_CHECKSUM)
POISON = b"\xee"


class Violation(AssertionError):
    """An invariant does not hold; the message says which, and for which inputs."""


class Delivered(NamedTuple):
    """One delivered packet, as the hook read it; `data` are its bytes."""

    data: bytes
    length: int
    packets: int
    timestamps: tuple[int, ...]
    timestamp_ns: int
    verdict: Verdict
    closed_by: CloseReason
    gso_type: GsoType
    gso_size: int
    gso_segs: int
    ip_id_mode: IpIdMode
    checksum: ChecksumState
    virtio: VirtioHeader
    interface: int
    vlan: int | None
    vlan_tpid: int
    wire_length: int


def read(packet: Any) -> Delivered:
    """All that a consumer can ask of a packet whose bytes are there."""
    return Delivered(bytes(packet), *numbers(packet))


def numbers(packet: Any) -> tuple[Any, ...]:
    """What stays readable when a packet was released, in the order of `Delivered`."""
    return (
        len(packet),
        packet.packets,
        packet.timestamps(),
        packet.timestamp_ns,
        packet.verdict,
        packet.closed_by,
        packet.gso_type,
        packet.gso_size,
        packet.gso_segs,
        packet.ip_id_mode,
        packet.checksum,
        packet.virtio_header(),
        packet.interface,
        packet.vlan,
        packet.vlan_tpid,
        packet.wire_length,
    )


class Recorder:
    """A hook that notes what it is given. `detach`: whether it takes the bytes out first.

    `keep`: whether it keeps the packets themselves, for `check_released`.
    """

    def __init__(self) -> None:
        self.flushes: list[list[Delivered]] = []
        self.kept: list[tuple[Any, Delivered]] = []
        self.detach = False
        self.keep = False

    def __call__(self, packets: list[Any]) -> None:
        if self.detach:
            for packet in packets:
                packet.detach()
        seen = [read(packet) for packet in packets]
        self.flushes.append(seen)
        if self.keep:
            self.kept += zip(packets, seen, strict=True)

    def take(self) -> list[Delivered]:
        """What was delivered since the last call, of all flushes."""
        delivered = [packet for flush in self.flushes for packet in flush]
        self.flushes.clear()
        return delivered

    def check_released(self) -> None:
        """Numbers of kept packets read as they did; bytes only of detached ones."""
        for packet, seen in self.kept:
            if numbers(packet) != seen[1:]:
                raise Violation(f"released: {numbers(packet)} where there was {seen[1:]}")
            try:
                data = bytes(packet)
            except ValueError:
                if self.detach:
                    raise Violation("a detached packet lost its bytes") from None
            else:
                if not self.detach or data != seen.data:
                    raise Violation("a packet gives bytes after the hook returned")
        self.kept.clear()


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[TrafficPacket], GroConfig]:
    """One batch on any link, and a configuration for it."""
    link = draw(st.sampled_from(LINKS))
    config = replace(
        draw(configs(link)),
        delivered_checksums=draw(st.sampled_from(("complete", "partial"))),
        capacity=draw(st.sampled_from((1024, 1024, 8, 3, 1))),
    )
    return draw(batches(link)), config


# --- ways to give an engine a batch --------------------------------------------------------------


def _append(engine: Engine, gro: Any, packets: Sequence[TrafficPacket]) -> None:
    batch = engine.Batch(capacity=len(packets))
    for packet in packets:
        batch.append(packet.data, **packet.keywords())
    gro.dispatch(batch)


def _enqueue(engine: Engine, gro: Any, packets: Sequence[TrafficPacket]) -> None:
    for packet in packets:
        gro.enqueue(packet.data, **packet.keywords())
    gro.flush()


def _slab(engine: Engine, gro: Any, packets: Sequence[TrafficPacket]) -> None:
    """One slab, packets at every alignment; it is overwritten when the hook has returned."""
    parts: list[bytes] = []
    places: list[int] = []
    at = 0
    for number, packet in enumerate(packets):
        gap = POISON * (number * 7 % 4)
        places.append(at + len(gap))
        parts += (gap, packet.data)
        at += len(gap) + len(packet.data)
    contents = b"".join(parts)
    slab = bytearray(contents)
    batch = engine.Batch(slab, capacity=len(packets))
    for place, packet in zip(places, packets, strict=True):
        batch.add(place, len(packet.data), **packet.keywords())
    gro.dispatch(batch)
    if slab != contents:
        raise Violation("the slab was written to")
    slab[:] = POISON * len(slab)


def _views(engine: Engine, gro: Any, packets: Sequence[TrafficPacket]) -> None:
    """Borrowed buffers of every kind, which are given back and overwritten afterwards."""
    batch = engine.Batch(capacity=len(packets))
    buffers = [bytearray(packet.data) for packet in packets]
    for number, (buffer, packet) in enumerate(zip(buffers, packets, strict=True)):
        borrowed: Any = buffer
        if number % 3 == 1:
            borrowed = memoryview(buffer)
        elif number % 3 == 2:
            borrowed = memoryview(POISON + packet.data + POISON)[1:-1]
        batch.append(borrowed, **packet.keywords())
        del borrowed
    gro.dispatch(batch)
    batch.clear()
    for buffer, packet in zip(buffers, packets, strict=True):
        if buffer != packet.data:
            raise Violation("a borrowed buffer was written to")
        try:
            buffer.clear()
        except BufferError:
            raise Violation("a borrowed buffer is still held") from None


FEEDS: dict[str, Callable[[Engine, Any, Sequence[TrafficPacket]], None]] = {
    "append": _append,
    "enqueue": _enqueue,
    "slab": _slab,
    "views": _views,
}


def feed(engine: Engine, gro: Any, packets: Sequence[TrafficPacket], way: str) -> None:
    """Give `gro` the packets as one batch; nothing of it may be left, no input written to."""
    inputs = [packet.data for packet in packets]
    before = b"".join(inputs)
    FEEDS[way](engine, gro, packets)
    if b"".join(inputs) != before:
        raise Violation("an input was written to")
    if gro.pending or gro.flush():
        raise Violation("packets outlived their batch")


# --- the invariants ------------------------------------------------------------------------------


def received_state(packet: TrafficPacket, config: GroConfig) -> ChecksumState:
    """What is known of the packet's transport checksum before the engine looks at it."""
    if packet.checksum is not None:
        return packet.checksum
    flags = packet.virtio if packet.virtio is not None else VirtioHeader()
    if flags.needs_csum:
        return ChecksumState.PARTIAL
    if flags.data_valid or config.received_checksums == "trust":
        return ChecksumState.VERIFIED
    return ChecksumState.UNKNOWN


def check_conservation(
    packets: Sequence[TrafficPacket], delivered: Sequence[Delivered]
) -> list[list[int]]:
    """Every input is in exactly one delivered packet. Returns each one's inputs, by position."""
    places = {packet.timestamp_ns: index for index, packet in enumerate(packets)}
    if len(places) != len(packets):
        raise ValueError("the timestamps of a batch must tell its packets apart")
    groups = [[places[time] for time in packet.timestamps] for packet in delivered]
    seen = [index for group in groups for index in group]
    if len(seen) != len(packets) or len(set(seen)) != len(packets):
        raise Violation(f"{len(packets)} inputs came, {sorted(seen)} were delivered")
    for group, packet in zip(groups, delivered, strict=True):
        if packet.packets != len(group) or packet.timestamp_ns != packet.timestamps[0]:
            raise Violation(f"input {group[0]}: {packet.packets} packets of {packet.timestamps}")
        if (packet.verdict is Verdict.MERGED) != (len(group) > 1):
            raise Violation(f"input {group[0]}: {packet.verdict!r} of {len(group)}")
        if (packet.verdict in HELD) == (packet.closed_by is CloseReason.NOT_HELD):
            raise Violation(f"input {group[0]}: {packet.verdict!r} but {packet.closed_by!r}")
    return groups


def check_order(
    packets: Sequence[TrafficPacket], groups: Sequence[Sequence[int]], link: str
) -> None:
    """Delivery goes by first inputs, and nothing overtakes an earlier packet of its flow.

    Only what lies between the segments of a super-packet can have been overtaken: it must be of
    another flow, and known to be.
    """
    firsts = [group[0] for group in groups]
    if firsts != sorted(firsts):
        raise Violation(f"delivered in the order of {firsts}")
    parsed: dict[int, Parsed] = {}
    for group in groups:
        if len(group) == group[-1] - group[0] + 1:
            if list(group) != sorted(group):
                raise Violation(f"segments {group} are out of order")
            continue
        if list(group) != sorted(group):
            raise Violation(f"segments {group} are out of order")
        members = set(group)
        between = [index for index in range(group[0], group[-1]) if index not in members]
        for index in (group[0], *between):
            if index not in parsed:
                parsed[index] = parse(packets[index].data, link)
        head = packets[group[0]]
        key = flow_key(parsed[group[0]], head.interface, head.vlan)
        for index in between:
            packet, what = packets[index], parsed[index]
            if what.barrier or (
                what.addressed and flow_key(what, packet.interface, packet.vlan) == key
            ):
                raise Violation(f"input {index} was overtaken by one of {group}")


def check_losslessness(
    packets: Sequence[TrafficPacket],
    groups: Sequence[Sequence[int]],
    delivered: Sequence[Delivered],
    config: GroConfig,
    segment: Callable[..., Iterator[bytes]],
) -> None:
    """Cutting what was delivered, by nothing but what came with it, gives back the inputs."""
    for group, packet in zip(groups, delivered, strict=True):
        if packet.length != len(packet.data):
            raise Violation(f"input {group[0]}: {len(packet.data)} bytes, len {packet.length}")
        originals = [packets[index] for index in group]
        _check_metadata(originals[0], packet)
        if len(group) == 1:
            _check_lone(originals[0], packet, config, segment)
            continue
        _check_super_packet(originals, packet, config)
        pieces = list(segment(packet.data, packet.virtio, packet.ip_id_mode))
        if len(pieces) != len(group):
            raise Violation(f"inputs {group}: cut into {len(pieces)}")
        right = config.delivered_checksums == "complete"
        for piece, original in zip(pieces, originals, strict=True):
            if piece == original.data:
                continue
            # Nobody computed what the field should hold, so it comes back complete.
            known = received_state(original, config)
            right = right and known is ChecksumState.PARTIAL
            if known is ChecksumState.UNKNOWN or piece != completed(original, config):
                raise Violation(f"inputs {group}: {_told(original)} came back as {_hex(piece)}")
        if right and fix_checksums(packet.data, config.link) != packet.data:
            raise Violation(f"the super-packet of {group} has a wrong checksum")


def completed(packet: TrafficPacket, config: GroConfig) -> bytes | None:
    """The packet with its transport checksum computed, as far as its IP packet goes; None if it
    has none."""
    found = parse(packet.data, config.link)
    field = found.transport_offset + found.checksum_offset
    if not found.addressed or field + 2 > found.end:
        return None
    checksum = found.canonical_checksum().to_bytes(2, "big")
    return packet.data[:field] + checksum + packet.data[field + 2 :]


def _told(packet: TrafficPacket) -> str:
    meta = {name: value for name, value in packet.keywords().items() if value}
    return f"[{packet.label or 'ordinary'}, {meta}] {_hex(packet.data)}"


def _hex(data: bytes) -> str:
    return f"{data[:96].hex()}{'...' if len(data) > 96 else ''} ({len(data)} bytes)"


def _check_lone(
    original: TrafficPacket,
    packet: Delivered,
    config: GroConfig,
    segment: Callable[..., Iterator[bytes]],
) -> None:
    """A packet that nothing was merged with comes through as it is.

    Only a checksum that came partial is completed, where the consumer wants complete ones.
    """
    state = received_state(original, config)
    if packet.data != original.data:
        what = f"{packet.verdict!r}: {_told(original)} came through as {_hex(packet.data)}"
        if state is not ChecksumState.PARTIAL or config.delivered_checksums == "partial":
            raise Violation(what)
        if packet.verdict in UNMODIFIED:
            raise Violation(what)
        if packet.data != completed(original, config):
            raise Violation(f"completed to what is not right: {what}")
        if packet.checksum is not ChecksumState.VERIFIED or packet.virtio.needs_csum:
            raise Violation(f"completed, yet {packet.checksum!r} and {packet.virtio}: {what}")
    elif packet.checksum is not state and (
        packet.checksum is not ChecksumState.VERIFIED
        or original.data != completed(original, config)
    ):
        raise Violation(f"{_told(original)}: {state!r} became {packet.checksum!r}")
    if packet.wire_length != (original.keywords()["wire_length"] or len(original.data)):
        raise Violation(f"{_told(original)}: wire length {packet.wire_length}")
    pieces = list(segment(packet.data, packet.virtio, packet.ip_id_mode))
    if packet.virtio.gso_type & ~GSO_ECN == GsoType.NONE:
        if pieces != [packet.data]:
            raise Violation(f"a wire packet was cut: {_told(original)}")
    elif len(pieces) != packet.gso_segs:
        raise Violation(f"{packet.gso_segs} segments, cut into {len(pieces)}: {_told(original)}")


def _check_super_packet(
    originals: Sequence[TrafficPacket], packet: Delivered, config: GroConfig
) -> None:
    """The numbers of a super-packet agree with each other and with the configuration."""
    header = packet.virtio
    partial = config.delivered_checksums == "partial"
    if header.needs_csum != partial or header.data_valid:
        raise Violation(f"{header} where checksums are {config.delivered_checksums}")
    if packet.checksum is not (ChecksumState.PARTIAL if partial else ChecksumState.VERIFIED):
        raise Violation(f"{packet.checksum!r} where checksums are {config.delivered_checksums}")
    sizes = (header.gso_type, header.gso_size)
    if sizes != (packet.gso_type, packet.gso_size) or packet.gso_segs != len(originals):
        raise Violation(f"{header} but {packet.gso_size} x {packet.gso_segs}")
    if packet.gso_type is GsoType.NONE or packet.length != packet.wire_length:
        raise Violation(f"a super-packet of {packet.gso_type!r}, {packet.wire_length} long")
    if config.max_frame is not None and packet.length > config.max_frame:
        raise Violation(f"{packet.length} bytes, more than {config.max_frame}")
    is_udp = packet.gso_type is GsoType.UDP_L4
    limit = config.max_udp_segments if is_udp else config.max_tcp_segments
    if limit is not None and packet.packets > limit:
        raise Violation(f"{packet.packets} segments, more than {limit}")


def _check_metadata(original: TrafficPacket, packet: Delivered) -> None:
    if packet.interface != original.interface or packet.vlan != original.vlan:
        raise Violation(f"{_told(original)}: interface {packet.interface}, VLAN {packet.vlan}")
    if packet.vlan_tpid != (0 if original.vlan is None else original.vlan_tpid):
        raise Violation(f"{_told(original)}: TPID {packet.vlan_tpid:#x}")


def check(
    packets: Sequence[TrafficPacket],
    delivered: Sequence[Delivered],
    config: GroConfig,
    segment: Callable[..., Iterator[bytes]],
) -> None:
    """Conservation, order and losslessness of one batch."""
    groups = check_conservation(packets, delivered)
    check_order(packets, groups, config.link)
    check_losslessness(packets, groups, delivered, config, segment)


class Tally:
    """What the counters of an engine must say, from what went in and what came out of it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()
        self.reasons: Counter[CloseReason] = Counter()

    def add(
        self, packets: Sequence[TrafficPacket], delivered: Sequence[Delivered], flushes: int
    ) -> None:
        """Count one batch, which came out in so many flushes."""
        counts = self.counts
        counts["batches"] += flushes
        counts["packets_in"] += len(packets)
        counts["bytes_in"] += sum(len(packet.data) for packet in packets)
        counts["packets_out"] += len(delivered)
        for packet in delivered:
            counts["bytes_out"] += packet.length
            self.verdicts[packet.verdict] += packet.packets
            self.reasons[packet.closed_by] += 1
            if packet.packets > 1:
                counts["super_packets"] += 1
                counts["segments"] += packet.packets

    def check(self, stats: Stats) -> None:
        """Compare with a snapshot."""
        expected = Stats(
            **self.counts,
            verdicts={verdict: self.verdicts[verdict] for verdict in Verdict},
            closed={reason: self.reasons[reason] for reason in stats.closed},
        )
        if stats != expected:
            raise Violation(f"counted {stats}, not {expected}")
        if sum(stats.verdicts.values()) != stats.packets_in:
            raise Violation(f"verdicts of {stats} do not sum to packets_in")
