"""Packet sequences: mostly ordinary flows, with every fault of the merge rules thrown in.

One builder, `Traffic`, makes packets from small descriptions: a `FlowSpec` for each flow, then
steps of (flow, action, integer, second action). `generate` draws them from a seed, millions at a
time; `batches` lets Hypothesis draw them, and shrink them to few flows of ordinary packets.
Actions are ``next`` (the flow's next segment) and the names in `FAULTS`.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.virtio import NEEDS_CSUM, VirtioHeader
from tests import builders as b
from tests import faults_around  # noqa: F401  (its faults are entered when it is imported)
from tests.builders import LINKS, TCP, UDP, TrafficPacket, fix_checksums
from tests.drafts import BLOB, FAULTS, Draft, applicable
from tests.faults import TIMESTAMP, extension

__all__ = [
    "FAULTS",
    "LINKS",
    "FlowSpec",
    "Traffic",
    "TrafficPacket",
    "applicable",
    "batches",
    "configs",
    "fix_checksums",
    "generate",
]

SIZES = (100, 1, 2, 3, 7, 50, 101, 536, 1000, 1220, 1400, 1448, 4056, 8960)
IDS = ("up", "fixed", "random", "zero")
STATES = ("none", "verified", "unknown", "partial", "vnet")
TAGS: tuple[tuple[tuple[int, int], ...], ...] = (
    (),
    ((b.DOT1Q, 0x2005),),
    ((b.DOT1AD, 9), (b.DOT1Q, 5)),
)
OPTIONS = (
    b"",
    TIMESTAMP,
    bytes.fromhex("01010101"),
    TIMESTAMP + bytes.fromhex("0101050a") + BLOB[:8],
)


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """What an ordinary packet of a flow looks like. The defaults are the simplest flow.

    `size` is the payload of each segment in bytes; `ids`, `state`: one of `IDS`, `STATES`;
    `options`, `extensions`, `tags` choose among the module's lists; `port` sets the flow apart
    from others, and two flows of the same description are one flow on the wire; `start` is the
    sequence number and IP ID of the first segment.
    """

    family: int = 4
    protocol: int = TCP
    port: int = 0
    size: int = 100
    ids: str = "up"
    df: bool = True
    options: int = 0
    extensions: int = 0
    tags: int = 0
    state: str = "none"
    interface: int = 0
    vlan: int | None = None
    start: int = 1


class Flow:
    """A flow under way: its fields, and where its sequence numbers and IDs are."""

    __slots__ = (
        "count",
        "family",
        "fields",
        "frame",
        "ident",
        "ids",
        "link",
        "meta",
        "offset",
        "protocol",
        "run",
        "seq",
        "size",
        "vnet",
    )

    def __init__(self, spec: FlowSpec, link: str) -> None:
        self.family = spec.family
        self.protocol = spec.protocol
        self.link = link
        self.size = spec.size
        self.ids = spec.ids
        self.seq = spec.start
        self.ident = spec.start & 0xFFFF if spec.ids != "zero" else 0
        self.offset = 0  # position in the stream of a UDP flow
        self.count = 0
        self.run = 0  # payload since the last fault
        self.vnet = spec.state == "vnet"
        self.fields: dict[str, Any] = {"sport": 40000 + spec.port}
        self.frame: dict[str, Any] = {}
        self.meta: dict[str, Any] = {}
        if spec.family == 4:
            self.fields["df"] = spec.df
        elif spec.extensions:
            self.fields["extensions"] = extension(spec.extensions)
        if spec.protocol == TCP:
            self.fields["flags"] = b.ACK
            if spec.options:
                self.fields["tcp_options"] = OPTIONS[spec.options % len(OPTIONS)]
        # Said here, so that a packet whose version nibble lies does not change its link header.
        if link in ("null", "loop"):
            self.frame["family"] = 2 if spec.family == 4 else {"null": 30, "loop": 24}[link]
        elif link in ("ethernet", "sll", "sll2"):
            self.frame["ether_type"] = 0x0800 if spec.family == 4 else 0x86DD
        if link == "ethernet" and spec.tags:
            self.frame["tags"] = TAGS[spec.tags % len(TAGS)]
        if spec.state in ("verified", "unknown", "partial"):
            self.meta["checksum"] = ChecksumState[spec.state.upper()]
        if spec.state in ("partial", "vnet"):
            self.fields["partial"] = True
        if spec.interface:
            self.meta["interface"] = spec.interface
        if spec.vlan is not None:
            self.meta["vlan"] = spec.vlan

    def position(self) -> int:
        """Where in the stream the next payload is."""
        return self.seq if self.protocol == TCP else self.offset

    def draft(self) -> Draft:
        """The next segment, not yet built."""
        fields = self.fields.copy()
        if self.protocol == TCP:
            at = self.seq & 0xFFFF
            fields["seq"] = self.seq
        else:
            at = self.offset & 0xFFFF
        if self.family == 4:
            fields["ident"] = self.ident
            if self.ids == "random":
                fields["ident"] = (self.ident + self.count * 40503) & 0xFFFF
        return Draft(self, fields, BLOB[at : at + self.size])

    def sent(self, draft: Draft, *, ordinary: bool) -> None:
        """Go on behind the segment that was built."""
        length = len(draft.payload)
        self.count += 1
        self.run = self.run + length if ordinary and self.run + length < 65000 else 0
        if self.ids == "up":
            self.ident = (self.ident + 1) & 0xFFFF
        if not draft.stay:
            self.seq = (self.seq + length) & 0xFFFFFFFF
            self.offset += length


class Traffic:
    """Flows on one link, and the packets that steps of theirs make.

    Timestamps count up from `clock`, each packet's its own, so that a test can tell by them which
    inputs a delivered packet holds.
    """

    def __init__(self, link: str, specs: Sequence[FlowSpec], *, clock: int = 1) -> None:
        self.link = link
        self.clock = clock
        self.flows = [Flow(spec, link) for spec in specs]

    def step(
        self, flow: int, action: str = "next", a: int = 0, second: str = "next"
    ) -> list[TrafficPacket]:
        """The packets of one step: one, or for ``swap`` two.

        `second` is a change to make to the same packet. One that makes no sense for the flow is
        left out.
        """
        chosen = self.flows[flow]
        changes = [name for name in (action, second) if name != "next"]
        if changes:
            known = applicable(chosen.family, chosen.protocol, self.link)
            changes = [name for name in changes if name in known]
        packet = self._packet(chosen, changes, a)
        if "swap" not in changes:
            return [packet]
        other = self._packet(chosen, ["swap"], a)
        packet.timestamp_ns, other.timestamp_ns = other.timestamp_ns, packet.timestamp_ns
        return [other, packet]

    def _packet(self, flow: Flow, changes: Sequence[str], a: int) -> TrafficPacket:
        draft = flow.draft()
        for name in changes:
            FAULTS[name][1](draft, a)
        data = draft.build()
        flow.sent(draft, ordinary=not changes)
        meta = draft.meta
        if flow.vnet and "virtio" not in meta and "checksum" not in meta:
            meta = {**meta, "virtio": self._partial_header(draft, data)}
        self.clock += 1
        return TrafficPacket(data, timestamp_ns=self.clock, label="+".join(changes), **meta)

    def _partial_header(self, draft: Draft, data: bytes) -> VirtioHeader:
        transport = len(data) - len(draft.payload) - draft.transport_header
        offset = 16 if draft.protocol == TCP else 6
        return VirtioHeader(NEEDS_CSUM, 0, 0, 0, max(transport, 0) & 0xFFFF, offset)


def generate(
    seed: int,
    count: int,
    *,
    link: str = "ip",
    fault_rate: float = 0.15,
    max_batch: int = 64,
    max_flows: int = 8,
    protocols: Sequence[int] = (TCP, UDP),
    families: Sequence[int] | None = None,
    sizes: Sequence[int] = SIZES,
) -> Iterator[list[TrafficPacket]]:
    """Batches of `count` packets in all, the same ones for the same arguments.

    Each batch has 1 to `max_batch` packets; flows live through a few batches and are then replaced.
    `fault_rate` is the part of the steps that are not an ordinary next segment.
    """
    rng = random.Random(seed)
    draw = rng.random
    clock = 1
    families = families or _families(link)
    while count > 0:
        specs = [
            _draw_spec(rng, families, protocols, sizes, port) for port in _ports(rng, max_flows)
        ]
        traffic = Traffic(link, specs, clock=clock)
        actions = [applicable(spec.family, spec.protocol, link) for spec in specs]
        for _ in range(1 + int(draw() * 6)):
            wanted = min(1 + int(max_batch * draw() ** 2), count)
            batch: list[TrafficPacket] = []
            flow = 0
            burst = draw()  # how likely the next packet is of the same flow
            while len(batch) < wanted:
                if draw() > burst:
                    flow = int(draw() * len(specs))
                if draw() < fault_rate:
                    names = actions[flow]
                    name = names[int(draw() * len(names))]
                    second = names[int(draw() * len(names))] if draw() < 0.1 else "next"
                    batch += traffic.step(flow, name, int(draw() * 65536), second)
                else:
                    batch += traffic.step(flow)
            del batch[wanted:]
            count -= len(batch)
            if batch:
                yield batch
        clock = traffic.clock


def _families(link: str) -> Sequence[int]:
    return {"ipv4": (4,), "ipv6": (6,)}.get(link, (4, 6))


def _ports(rng: random.Random, max_flows: int) -> list[int]:
    """Numbers of one to `max_flows` flows, sometimes one twice."""
    flows = 1 + int(max_flows * rng.random() ** 1.5)
    return [0 if rng.random() < 0.1 else port for port in range(flows)]


def _draw_spec(
    rng: random.Random,
    families: Sequence[int],
    protocols: Sequence[int],
    sizes: Sequence[int],
    port: int,
) -> FlowSpec:
    def seldom(values: Sequence[Any], often: Any, chance: float) -> Any:
        return rng.choice(values) if rng.random() < chance else often

    return FlowSpec(
        family=rng.choice(families),
        protocol=rng.choice(protocols),
        port=port,
        size=seldom(sizes, rng.choice(sizes[:8]), 0.5),
        ids=seldom(IDS, "up", 0.3),
        df=rng.random() < 0.7,
        options=seldom(range(len(OPTIONS)), 1, 0.5),
        extensions=seldom(range(5), 0, 0.2),
        tags=seldom(range(3), 0, 0.5),
        state=seldom(STATES, "none", 0.25),
        interface=seldom(range(3), 0, 0.1),
        vlan=seldom((None, 5, 0x2005, 7), None, 0.1),
        start=seldom((0, 0xFFFFFFFF - rng.randrange(9999)), rng.randrange(1 << 32), 0.2),
    )


# --- the same for Hypothesis --------------------------------------------------------------------


def specs(
    link: str = "ip", *, protocols: Sequence[int] = (TCP, UDP)
) -> st.SearchStrategy[FlowSpec]:
    """Descriptions of flows that shrink to TCP over IPv4 with 100-byte segments."""
    return st.builds(
        FlowSpec,
        family=st.sampled_from(_families(link)),
        protocol=st.sampled_from(protocols),
        port=st.integers(0, 3),
        size=st.sampled_from(SIZES),
        ids=st.sampled_from(IDS),
        df=st.booleans(),
        options=st.integers(0, len(OPTIONS) - 1),
        extensions=st.integers(0, 4),
        tags=st.integers(0, 2),
        state=st.sampled_from(STATES),
        interface=st.integers(0, 1),
        vlan=st.none() | st.sampled_from((5, 0x2005, 7)),
        start=st.just(1) | st.sampled_from((0, 0xFFFFFFFF, 0xFFFFFF9C, 65535)),
    )


@st.composite
def batches(
    draw: st.DrawFn,
    link: str = "ip",
    *,
    max_packets: int = 40,
    max_flows: int = 3,
    protocols: Sequence[int] = (TCP, UDP),
) -> list[TrafficPacket]:
    """One batch of at least one packet, drawn as small descriptions."""
    flows = draw(st.lists(specs(link, protocols=protocols), min_size=1, max_size=max_flows))
    known = {name for spec in flows for name in applicable(spec.family, spec.protocol, link)}
    names = [name for name in FAULTS if name in known]
    action = st.sampled_from(["next"] * 3 * len(names) + names)
    second = st.sampled_from(["next"] * 9 * len(names) + names)
    step = st.tuples(st.integers(0, len(flows) - 1), action, st.integers(0, 65535), second)
    traffic = Traffic(link, flows)
    packets: list[TrafficPacket] = []
    for description in draw(st.lists(step, min_size=1, max_size=max_packets)):
        packets += traffic.step(*description)
    return packets


def configs(link: str = "ip") -> st.SearchStrategy[GroConfig]:
    """Configurations that differ in what decides about merging; UDP is on."""
    return st.builds(
        GroConfig,
        link=st.just(link),
        tcp=st.sampled_from((True, True, True, False)),
        udp=st.sampled_from((True, True, True, False)),
        received_checksums=st.sampled_from(("verify", "trust")),
        max_size=st.sampled_from((65535, 65535, 65534, 1500, 300)),
        max_frame=st.sampled_from((None, None, 65535, 1514)),
        max_tcp_segments=st.sampled_from((None, None, 1, 2, 17)),
        max_udp_segments=st.sampled_from((64, 64, 1, 2, 128)),
        fixed_ip_ids=st.sampled_from(("merge", "merge", "df", "refuse")),
    )
