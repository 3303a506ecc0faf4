"""A second opinion on both sides: the kernel's GRO and ours, predicted in plain Python.

`Model.groups` says which packets of a sequence are delivered as one, in order of delivery. As
it stands it is Linux 6.18 with all flows in one bucket (net/core/gro.c, net/ipv4/af_inet.c,
net/ipv4/tcp_offload.c, net/ipv4/udp_offload.c, net/ipv6/ip6_offload.c). Each `Difference` can
be taken away; without all of them it is what the merge rules of this engine say. So no
difference between the two is taken on trust: both must be what was predicted, and `explain`
finds the fewest differences that lead from one to the other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import combinations
from typing import NamedTuple

from netstack_gro.virtio import VirtioHeader
from tests.builders import (
    CWR,
    EXTENSIONS,
    FIN,
    HOP_BY_HOP,
    PSH,
    ROUTING,
    RST,
    SYN,
    TCP,
    UDP,
    URG,
    fix_checksums,
    ones_sum,
    pseudo_sum,
)

__all__ = ["Delivered", "Difference", "Model", "explain"]

Group = tuple[int, ...]
"""Positions of the packets that were delivered as one."""
Flow = tuple[int, bytes, int, bytes]
Key = tuple[Flow, int | None, tuple[int, bytes] | None]
"""What the kernel compares to tell flows apart: flow, flow label, extension headers."""

BUCKET_SIZE = 8  # MAX_GRO_SKBS, net/core/gro.c
IP_LIMIT = 65536  # GRO_LEGACY_MAX_SIZE, include/linux/netdevice.h: lengths stay below
UDP_LIMIT = 64  # UDP_GRO_CNT_MAX, net/ipv4/udp_offload.c
HEADERS_LIMIT = 256  # merge-rules: who is a candidate
EXTENSION_LIMIT = 8
OPAQUE = (44, 50, 51, 135, 139, 140, 253, 254)  # IPv6 headers that may hide a transport header


class Difference(Enum):
    """What the kernel does and this engine does not."""

    OVERTAKING = "bypassed packets overtake held ones, which merge across them"
    URGENT_POINTER = "the urgent pointer is not compared"
    ONES_CHECKSUM = "a checksum of 0xFFFF is taken for 0x0000"
    FLOW_LABEL = "another flow label is another flow"
    EXTENSION_HEADERS = "other extension headers are another flow"
    ROUTING = "a routing header may have segments left"
    HOP_BY_HOP = "a hop-by-hop header may stand anywhere"
    LONG_HEADERS = "headers may have more than 256 bytes, extension headers be more than 8"
    EVICTION = "a ninth flow of a bucket evicts the oldest"


OURS = frozenset(Difference)


class Delivered(NamedTuple):
    """One delivered packet, with what a virtio_net_hdr says of a merged one."""

    data: bytes
    gso_type: int = 0
    gso_size: int = 0
    csum_start: int = 0
    csum_offset: int = 0

    @classmethod
    def of(cls, data: bytes, virtio: VirtioHeader) -> "Delivered":
        if virtio.gso_type == 0:
            return cls(data)
        start, offset = virtio.csum_start, virtio.csum_offset
        return cls(data, virtio.gso_type, virtio.gso_size, start, offset)


class Fate(Enum):
    """What the kernel does with a packet before it looks for one to merge it with."""

    BYPASS = auto()
    """Delivered at once, whatever is held."""
    CLOSE = auto()
    """Delivered at once, behind what is held of its flow."""
    OPEN = auto()
    """May extend a held packet, or be held itself."""


@dataclass(slots=True)
class View:
    """What is to know of one packet: what the kernel sees in it, and what the merge rules do."""

    data: bytes
    version: int = 0
    protocol: int = -1
    transport: int = 0
    body: int = 0
    """Where the transport payload starts."""
    size: int = 0
    """Bytes of transport payload, trailing bytes included."""
    flags: int = 0
    extensions: bytes = b""
    fate: Fate = Fate.OPEN
    flow: Flow | None = None
    """By the merge rules: whose head it closes where it is passed through."""
    barrier: bool = False
    """By the merge rules: nobody can tell, it closes every head."""
    differences: set[Difference] = field(default_factory=set)
    """The merge rules pass the packet through where the kernel, for one of these, does not."""

    def word(self, offset: int) -> int:
        return int.from_bytes(self.data[offset : offset + 2], "big")

    def long(self, offset: int) -> int:
        return int.from_bytes(self.data[offset : offset + 4], "big")

    def addresses_and_ports(self, transport: int, protocol: int) -> Flow:
        first, last = (12, 20) if self.version == 4 else (8, 40)
        ports = self.data[transport : transport + 4]
        return self.version, self.data[first:last], protocol, ports


def view(packet: bytes) -> View:
    """Take a packet apart, once as the kernel does and once as the merge rules do."""
    found = View(packet, packet[0] >> 4)
    if found.version == 4:
        _flow_ipv4(found)
        mismatch = _view_ipv4(found)
    else:
        _flow_ipv6(found)
        mismatch = _view_ipv6(found)
    if found.fate is Fate.OPEN and found.protocol == TCP:
        _view_tcp(found, mismatch)
    elif found.fate is Fate.OPEN:
        _view_udp(found, mismatch)
    return found


def _flow_ipv4(found: View) -> None:
    data, header, total = found.data, (found.data[0] & 15) * 4, found.word(2)
    if len(data) < 20 or not 20 <= header <= len(data) or 0 < total < header:
        found.barrier = True
    elif found.word(6) & 0x3FFF or found.word(10) == 0xFFFF or ones_sum(data[:header]):
        found.barrier = True
    else:
        _flow(found, header, data[9], min(len(data), total or len(data)))


def _flow_ipv6(found: View) -> None:
    data, total = found.data, found.word(4) + 40
    if len(data) < 40:
        found.barrier = True
        return
    end = len(data) if total == 40 else min(len(data), total)
    protocol, offset = data[6], 40
    for _ in range(EXTENSION_LIMIT + 1):
        if protocol not in EXTENSIONS:
            break
        if offset + 8 > end or offset + (data[offset + 1] + 1) * 8 > end:
            found.barrier = True
            return
        protocol, offset = data[offset], offset + (data[offset + 1] + 1) * 8
    else:
        found.barrier = True
        return
    if protocol in OPAQUE:
        found.barrier = True
    else:
        _flow(found, offset, protocol, end)


def _flow(found: View, transport: int, protocol: int, end: int) -> None:
    if protocol not in (TCP, UDP):
        return
    if transport + 4 > end:
        found.barrier = True
    else:
        found.flow = found.addresses_and_ports(transport, protocol)


def _view_ipv4(found: View) -> bool:
    """inet_gro_receive(); whether a length or the reserved bit forbids to merge."""
    data = found.data
    if (
        len(data) < 20
        or data[9] not in (TCP, UDP)
        or data[0] != 0x45
        or found.word(6) & 0x3FFF
        or ones_sum(data[:20])
    ):
        found.fate = Fate.BYPASS
        return False
    found.protocol, found.transport = data[9], 20
    if found.word(10) == 0xFFFF:
        found.differences.add(Difference.ONES_CHECKSUM)
    return found.word(2) != len(data) or bool(found.word(6) & 0x8000)


def _view_ipv6(found: View) -> bool:
    """ipv6_gro_receive(); whether the length forbids to merge."""
    data = found.data
    if len(data) < 40:
        found.fate = Fate.BYPASS
        return False
    protocol, offset, count = data[6], 40, 0
    while protocol in EXTENSIONS and offset + 8 <= len(data):
        span = (data[offset + 1] + 1) * 8
        if offset + span > len(data):
            break
        if protocol == HOP_BY_HOP and count:
            found.differences.add(Difference.HOP_BY_HOP)
        if protocol == ROUTING and data[offset + 3]:
            found.differences.add(Difference.ROUTING)
        protocol, offset, count = data[offset], offset + span, count + 1
    if count > EXTENSION_LIMIT:
        found.differences.add(Difference.LONG_HEADERS)
    found.protocol, found.transport, found.extensions = protocol, offset, data[40:offset]
    if protocol not in (TCP, UDP):
        found.fate = Fate.BYPASS
    return found.word(4) + 40 != len(data)


def _sum(found: View) -> int:
    """The transport checksum over all bytes behind the IP headers: 0 where it is right."""
    first, middle, last = (12, 16, 20) if found.version == 4 else (8, 24, 40)
    data, length = found.data, len(found.data) - found.transport
    pseudo = pseudo_sum(data[first:middle], data[middle:last], found.protocol, length)
    return (pseudo + ones_sum(data[found.transport :])) % 0xFFFF


def _view_tcp(found: View, mismatch: bool) -> None:
    """tcp4_gro_receive() and the part of tcp_gro_receive() that needs no held packet."""
    room = len(found.data) - found.transport
    header = found.data[found.transport + 12] >> 4 << 2 if room >= 20 else 0
    if (not mismatch and _sum(found)) or not 20 <= header <= room:
        found.fate = Fate.BYPASS
        return
    if found.word(found.transport + 16) == 0xFFFF:
        found.differences.add(Difference.ONES_CHECKSUM)
    found.body, found.size = found.transport + header, room - header
    if found.body > HEADERS_LIMIT:
        found.differences.add(Difference.LONG_HEADERS)
    found.flags = found.word(found.transport + 12) & 0xFFF
    if mismatch or found.flags & (SYN | RST | URG) or not found.size:
        found.fate = Fate.CLOSE


def _view_udp(found: View, mismatch: bool) -> None:
    """udp4_gro_receive() and the part of udp_gro_receive_segment() that needs no held packet."""
    room = len(found.data) - found.transport
    found.body, found.size = found.transport + 8, room - 8
    if (
        room <= 8
        or found.word(found.transport + 6) == 0
        or found.word(found.transport + 4) != room
        or (not mismatch and _sum(found))
    ):
        found.fate = Fate.BYPASS
    elif mismatch:
        found.fate = Fate.CLOSE
    if found.body > HEADERS_LIMIT:
        found.differences.add(Difference.LONG_HEADERS)


@dataclass(slots=True)
class Held:
    """An open super-packet, with the packet that opened it."""

    head: View
    key: Key
    members: list[int]
    length: int
    """Of the IP packet."""
    fixed: bool = False

    @property
    def payload(self) -> int:
        return self.length - self.head.body


class Model:
    """The predictions for one sequence of IP packets."""

    def __init__(self, packets: Sequence[bytes]) -> None:
        self.packets = packets
        self._views = [view(packet) for packet in packets]
        self._present = _present(self._views)

    def groups(self, without: Iterable[Difference] = ()) -> list[Group]:
        """What is delivered together, in the kernel's order of delivery."""
        return _Run(self._views, frozenset(without)).deliver()

    def kernel(self) -> list[Delivered]:
        """What the kernel delivers, in its order."""
        return [self.render(group) for group in self.groups()]

    def ours(self, without: Iterable[Difference] = OURS) -> list[Delivered]:
        """What this engine delivers: in order of arrival of each packet's first input."""
        return [self.render(group) for group in sorted(self.groups(without))]

    def differences(self) -> list[Difference] | None:
        """The fewest differences that make the kernel's groups and order into ours.

        Empty where the two deliver the same, each flow in the same order; None never, unless
        the model contradicts itself.
        """
        ours = sorted(self.groups(OURS))
        for count in range(len(self._present) + 1):
            for chosen in combinations(self._present, count):
                groups = self.groups(chosen)
                if sorted(groups) == ours and self._in_order(groups):
                    return list(chosen)
        return None

    def _in_order(self, groups: Sequence[Group]) -> bool:
        """Whether no packet is delivered before an earlier one of the same flow, in our sense."""
        latest: dict[object, int] = {}
        last_barrier = last = -1
        for first, *_ in groups:
            found = self._views[first]
            before = last if found.barrier else max(latest.get(found.flow, -1), last_barrier)
            if first < before and (found.barrier or found.flow):
                return False
            if found.barrier:
                last_barrier = max(last_barrier, first)
            latest[found.flow] = max(latest.get(found.flow, -1), first)
            if found.flow or found.barrier:
                last = max(last, first)
        return True

    def render(self, group: Group) -> Delivered:
        """The delivered packet: one input as it came, several merged, checksum partial."""
        head = self._views[group[0]]
        if len(group) == 1:
            return Delivered(head.data)
        members = [self._views[member] for member in group]
        data = bytearray(head.data[: head.body])
        data += b"".join(member.data[member.body :] for member in members)
        start, length = head.transport, len(data) - head.transport
        if head.version == 4:
            data[2:4] = len(data).to_bytes(2, "big")
            source, destination = head.data[12:16], head.data[16:20]
        else:
            data[4:6] = (len(data) - 40).to_bytes(2, "big")
            source, destination = head.data[8:24], head.data[24:40]
        if head.protocol == TCP:
            for member in members:
                data[start + 13] |= member.flags & (FIN | PSH)
            gso_type, offset = (1 if head.version == 4 else 4), 16
        else:
            data[start + 4 : start + 6] = length.to_bytes(2, "big")
            gso_type, offset = 5, 6
        data = bytearray(fix_checksums(bytes(data)))  # for the IPv4 header's
        partial = pseudo_sum(source, destination, head.protocol, length)
        data[start + offset : start + offset + 2] = partial.to_bytes(2, "big")
        return Delivered(bytes(data), gso_type, head.size, start, offset)


def _present(views: Sequence[View]) -> list[Difference]:
    """The differences that could matter to a sequence at all."""
    always = {
        Difference.OVERTAKING,
        Difference.URGENT_POINTER,
        Difference.FLOW_LABEL,
        Difference.EXTENSION_HEADERS,
        Difference.EVICTION,
    }
    found = always.union(*(one.differences for one in views))
    return [difference for difference in Difference if difference in found]


class _Run:
    """One pass over a sequence."""

    def __init__(self, views: Sequence[View], without: frozenset[Difference]) -> None:
        self._views = views
        self._without = without
        self._held: list[Held] = []  # the oldest first
        self._delivered: list[Group] = []

    def deliver(self) -> list[Group]:
        for position, found in enumerate(self._views):
            if found.fate is Fate.BYPASS or found.differences & self._without:
                self._pass(position, found)
            else:
                self._receive(position, found)
        while self._held:
            self._complete(self._held[0])
        return self._delivered

    def _complete(self, held: Held) -> None:
        self._held.remove(held)
        self._delivered.append(tuple(held.members))

    def _pass(self, position: int, found: View) -> None:
        """Deliver a packet that is none of the candidates."""
        overtakes = Difference.OVERTAKING not in self._without
        if found.fate is not Fate.BYPASS or not overtakes:
            self._close(found)
        self._delivered.append((position,))

    def _close(self, found: View) -> None:
        for held in list(self._held):
            if found.barrier or found.flow == held.head.flow:
                self._complete(held)

    def _receive(self, position: int, found: View) -> None:
        """dev_gro_receive() for a packet whose flow can be told."""
        if found.fate is Fate.CLOSE and found.barrier and Difference.OVERTAKING in self._without:
            self._close(found)  # the kernel knew its flow, the merge rules do not
        key = self._key(found)
        held = next((held for held in self._held if held.key == key), None)
        if held is not None:
            if found.fate is Fate.OPEN and self._extends(held, found):
                held.members.append(position)
                held.length += found.size
                full = found.protocol == UDP and len(held.members) >= UDP_LIMIT
                if full or found.size < held.head.size or found.flags & (FIN | PSH):
                    self._complete(held)
                return
            self._complete(held)
        if found.fate is Fate.CLOSE or found.flags & (FIN | PSH):
            self._delivered.append((position,))
            return
        if len(self._held) >= BUCKET_SIZE and Difference.EVICTION not in self._without:
            self._complete(self._held[0])
        self._held.append(Held(found, key, [position], len(found.data)))

    def _key(self, found: View) -> Key:
        flow = found.addresses_and_ports(found.transport, found.protocol)
        label = extensions = None
        if found.version == 6:
            if Difference.FLOW_LABEL not in self._without:
                label = found.long(0) & 0xFFFFF
            if Difference.EXTENSION_HEADERS not in self._without:
                extensions = (found.data[6], found.extensions)
        return flow, label, extensions

    def _extends(self, held: Held, found: View) -> bool:
        head = held.head
        if held.length + found.size >= IP_LIMIT or found.size > head.size:
            return False
        if head.version == 4:
            if not self._same_ipv4(held, found):
                return False
        elif (
            head.long(0) != found.long(0)  # version, traffic class, flow label
            or head.data[7] != found.data[7]  # hop limit
            or (head.data[6], head.extensions) != (found.data[6], found.extensions)
        ):
            return False
        return found.protocol == UDP or self._continues(held, found)

    def _same_ipv4(self, held: Held, found: View) -> bool:
        head, count = held.head, len(held.members)
        if (head.data[1], head.data[8]) != (found.data[1], found.data[8]):  # TOS, TTL
            return False
        if head.word(6) != found.word(6):
            return False
        step = (found.word(4) - head.word(4)) & 0xFFFF
        if count == 1:
            held.fixed = step == 0
        return step == (0 if held.fixed else count)

    def _continues(self, held: Held, found: View) -> bool:
        head, a, b = held.head, held.head.transport, found.transport
        if found.flags & CWR or (head.flags ^ found.flags) & ~(FIN | PSH):
            return False
        if head.long(a + 8) != found.long(b + 8) or head.word(a + 14) != found.word(b + 14):
            return False  # acknowledgement, window
        if head.data[a + 20 : head.body] != found.data[b + 20 : found.body]:
            return False
        without_urgent = Difference.URGENT_POINTER in self._without
        if without_urgent and head.word(a + 18) != found.word(b + 18):
            return False
        return found.long(b + 4) == (head.long(a + 4) + held.payload) & 0xFFFFFFFF


def explain(
    sequence: Sequence[bytes], kernel: Sequence[Delivered], ours: Sequence[Delivered]
) -> str | None:
    """Why the kernel and this engine delivered what they did.

    Both must have delivered exactly what the model predicts, order included; the answer then
    names the intended differences between the two, and is empty where there is none. None: one
    of them did something else, or the differences do not account for it.
    """
    model = Model(sequence)
    if model.kernel() != list(kernel) or model.ours() != list(ours):
        return None
    differences = model.differences()
    if differences is None:
        return None
    return "; ".join(difference.value for difference in differences)
