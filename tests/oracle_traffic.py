"""Random sequences that the kernel oracle and this engine can be compared on.

Raw IP packets of at most 8 flows, TCP and UDP over IPv4 and IPv6, UDP only to the ports that the
oracle's UDP_GRO sockets are bound to. A sequence follows from its seed alone.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.builders import (
    ACK,
    AE,
    BUILDERS,
    CWR,
    DESTINATION,
    ECE,
    FIN,
    FRAGMENT,
    HOP_BY_HOP,
    PSH,
    ROUTING,
    RST,
    SYN,
    TCP,
    UDP,
    URG,
)
from tests.kernel_oracle import UDP_PORTS

__all__ = ["random_sequence", "zero_checksum"]

MAX_FLOWS = 8
SIZES = (1, 2, 3, 10, 100, 101, 536, 1000, 1448)
PADDING = bytes((0, 0, 1, 4, 0, 0, 0, 0))  # RFC 8200: one PadN option, for either options header
ROUTED = bytes((0, 0, 0, 0, 0, 0, 0, 0))  # type 0, no segments left
TIMESTAMP = b"\1\1\10\12"  # RFC 7323 appendix A: NOP NOP TS

Fields = dict[str, Any]


class Flow:
    """One flow's sender: the fields of its next packet, and how to build it."""

    def __init__(self, random: Random, number: int) -> None:
        self.version = random.choice((4, 6))
        self.protocol = random.choice((TCP, TCP, TCP, UDP))
        self.build = BUILDERS[self.version, self.protocol]
        self.size = random.choice(SIZES)
        self.sequence = random.choice((1000, (1 << 32) - 500))
        self.ident = random.choice((7, 65534))
        self.ident_step = random.choice((0, 1, 1))
        # Half of the flows differ from another one in a port only.
        self.fields: Fields = {"sport": 40000 + number // 2, "dport": UDP_PORTS[number % 2]}
        if self.version == 4:
            self.fields["df"] = random.random() < 0.7
        elif random.random() < 0.3:
            self.fields["extensions"] = [random.choice(EXTENSION_HEADERS)]
        if self.protocol == TCP and random.random() < 0.4:
            self.fields["tcp_options"] = TIMESTAMP + bytes(8)

    def next(self, random: Random, faults: float) -> list[bytes]:
        """The packets of one step: mostly one segment that extends the one before."""
        payload = bytearray(random.randbytes(self.size))
        fields = dict(self.fields)
        if self.protocol == TCP:
            fields["seq"] = self.sequence
        if self.version == 4:
            fields["ident"] = self.ident
        finish: Finish | None = None
        if random.random() < faults:
            applicable = [
                mutation for mutation, wanted in MUTATIONS.items() if wanted & self.traits()
            ]
            finish = random.choice(applicable)(random, self, fields, payload)
        packet = self.build(bytes(payload), **fields)
        if self.protocol == TCP:
            self.sequence = (fields["seq"] + len(payload)) & 0xFFFFFFFF
        if self.version == 4:
            self.ident = (fields["ident"] + self.ident_step) & 0xFFFF
        return [packet] if finish is None else finish(packet)

    def traits(self) -> int:
        version = IPV4 if self.version == 4 else IPV6
        return version | (OF_TCP if self.protocol == TCP else OF_UDP)


IPV4, IPV6, OF_TCP, OF_UDP = 1, 2, 4, 8
ANY = IPV4 | IPV6

Finish = Callable[[bytes], list[bytes]]
Mutation = Callable[[Random, Flow, Fields, bytearray], Finish | None]
MUTATIONS: dict[Mutation, int] = {}
"""What may happen to a packet, and the traits of a flow, one of which it needs."""

EXTENSION_HEADERS = (
    (HOP_BY_HOP, PADDING),
    (DESTINATION, PADDING),
    (DESTINATION, bytes((0, 0, 1, 4, 1, 2, 3, 4))),
    (DESTINATION, bytes((0, 1, 1, 12)) + bytes(12)),
    (ROUTING, ROUTED),
)


def _mutation(traits: int) -> Callable[[Mutation], Mutation]:
    def register(mutation: Mutation) -> Mutation:
        MUTATIONS[mutation] = traits
        return mutation

    return register


# --- of the stream -----------------------------------------------------------------------------


@_mutation(ANY)
def _another_size(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    payload[:] = random.randbytes(random.choice((*SIZES, 4056, max(1, flow.size - 1))))


@_mutation(ANY)
def _another_size_from_here_on(
    random: Random, flow: Flow, fields: Fields, payload: bytearray
) -> None:
    flow.size = random.choice(SIZES)
    payload[:] = random.randbytes(flow.size)


@_mutation(ANY)
def _no_payload(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    payload.clear()


@_mutation(ANY)
def _twice(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> Finish:
    return lambda packet: [packet, packet]


@_mutation(ANY)
def _lost(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> Finish:
    return lambda packet: []


@_mutation(OF_TCP)
def _gap_or_overlap(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["seq"] = (fields["seq"] + random.choice((-100, -1, 1, 100))) & 0xFFFFFFFF


@_mutation(OF_TCP)
def _flags(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    extra = random.choice((PSH, PSH, FIN, FIN | PSH, SYN, RST, URG, ECE, CWR, AE, 1 << 9, 1 << 11))
    fields["flags"] = flow.fields.get("flags", ACK) ^ extra
    if random.random() < 0.3:
        payload.clear()


@_mutation(OF_TCP)
def _flags_from_here_on(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    flow.fields["flags"] = fields["flags"] = random.choice((ACK, 0, ACK | ECE, ACK | AE, ACK | CWR))


@_mutation(OF_TCP)
def _tcp_field(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    name = random.choice(("ack", "window", "urgent"))
    fields[name] = random.randrange(5)
    if random.random() < 0.5:
        flow.fields[name] = fields[name]


@_mutation(OF_TCP)
def _tcp_options(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    stamp = TIMESTAMP + random.randrange(3).to_bytes(8, "big")
    sack = b"\1\1\5\12" + random.randbytes(8)
    fields["tcp_options"] = random.choice((b"", stamp, stamp, stamp[2:] + b"\1\1", sack, bytes(40)))
    if random.random() < 0.5:
        flow.fields["tcp_options"] = fields["tcp_options"]


# --- of the IP header --------------------------------------------------------------------------


@_mutation(ANY)
def _tos_or_ttl(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    name, values = random.choice((("tos", (0, 1, 2, 3, 16, 0xFF)), ("ttl", (63, 64, 1, 255))))
    fields[name] = random.choice(values)
    if random.random() < 0.5:
        flow.fields[name] = fields[name]


@_mutation(IPV4)
def _fragment_bits(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    kind = random.randrange(4)
    if kind == 0:
        fields["df"] = not fields["df"]
    elif kind == 1:
        fields["reserved_bit"] = True
    elif kind == 2:
        fields["mf"] = True
    else:
        fields["fragment_offset"] = random.choice((1, 185))


@_mutation(IPV4)
def _ident(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["ident"] = (fields["ident"] + random.choice((-1, 1, 2, 256))) & 0xFFFF
    flow.ident_step = random.choice((0, 1, flow.ident_step))


@_mutation(IPV4)
def _ip_options(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["options"] = b"\1\1\1\0"


@_mutation(IPV4)
def _bad_header_checksum(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["header_checksum"] = random.choice((0, 0x1234))


@_mutation(IPV4)
def _header_checksum_of_zero(
    random: Random, flow: Flow, fields: Fields, payload: bytearray
) -> None:
    packet = flow.build(bytes(payload), **fields)
    total = fields["ident"] + int.from_bytes(packet[10:12], "big")
    fields["ident"] = total % 0xFFFF or 0xFFFF  # now the checksum is 0: the ID has taken it over
    fields["header_checksum"] = random.choice((0, 0xFFFF))


@_mutation(IPV6)
def _flow_label(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["flow_label"] = random.choice((0, 1, 0xFFFFF))
    if random.random() < 0.5:
        flow.fields["flow_label"] = fields["flow_label"]


@_mutation(IPV6)
def _extension_headers(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    several = random.sample(EXTENSION_HEADERS, random.randrange(3))
    if random.random() < 0.2:
        several.append((ROUTING, bytes((0, 0, 0, 1, 0, 0, 0, 0))))  # a segment left
    if random.random() < 0.2:
        several.append((HOP_BY_HOP, PADDING))  # out of place behind another
    if random.random() < 0.1:
        several += [(DESTINATION, PADDING)] * random.choice((6, 7, 8, 31))
    fields["extensions"] = several
    if random.random() < 0.7:
        flow.fields["extensions"] = several


@_mutation(IPV6)
def _fragment_header(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["extensions"] = [(FRAGMENT, bytes(8))]


# --- of lengths, checksums and protocols -------------------------------------------------------


@_mutation(ANY)
def _bytes_follow(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> Finish:
    return lambda packet: [packet + bytes(random.choice((1, 4, 6)))]


@_mutation(ANY)
def _cut_short(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> Finish:
    least = 20 if flow.version == 4 else 40
    keep = random.choice((1, 2, 3, 10, 20, 30))
    return lambda packet: [packet[: max(least, len(packet) - keep)]]


@_mutation(IPV4)
def _another_total_length(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["total_length"] = random.choice((0, 19, 21, 30, 41, 2000))


@_mutation(IPV6)
def _another_payload_length(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["payload_length"] = random.choice((0, 1, 10, 21, 2000))


@_mutation(OF_UDP)
def _another_udp_length(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["udp_length"] = random.choice((0, 7, 8, len(payload) + 7, len(payload) + 9))


@_mutation(OF_TCP)
def _data_offset(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["data_offset"] = random.choice((0, 4, 5, 6, 15))


@_mutation(ANY)
def _checksum(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["checksum"] = random.choice((0, 0x1234))


@_mutation(ANY)
def _checksum_of_zero(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    if len(payload) < 2:
        payload[:] = bytes(2)
    fields["checksum"] = random.choice((0, 0xFFFF))
    payload[:] = zero_checksum(flow.version, flow.protocol, payload, fields)


@_mutation(ANY)
def _another_protocol(random: Random, flow: Flow, fields: Fields, payload: bytearray) -> None:
    fields["protocol"] = 1 if flow.version == 4 else 58  # ICMP, ICMPv6


def zero_checksum(version: int, protocol: int, payload: bytes | bytearray, fields: Fields) -> bytes:
    """``payload`` with its first two bytes changed so that the transport checksum is zero."""
    others = {name: value for name, value in fields.items() if name != "checksum"}
    rest = bytes(payload[2:])
    packet = BUILDERS[version, protocol](bytes(2) + rest, **others)
    # What the checksum was with a zero there: in the payload it leaves zero for the checksum.
    if protocol == TCP:
        at = len(packet) - len(payload) - len(fields.get("tcp_options", b"")) - 4
    else:
        at = len(packet) - len(payload) - 2
    return packet[at : at + 2] + rest


def random_sequence(seed: int) -> list[bytes]:
    """The sequence that belongs to a seed: up to some 60 packets, now and then a single one."""
    random = Random(seed)
    flows = [Flow(random, number) for number in range(random.choice((1, 1, 2, 3, MAX_FLOWS)))]
    faults = random.choice((0.0, 0.1, 0.25, 0.6))
    swaps = random.choice((0.0, 0.0, 0.1))
    linger = random.choice((0.0, 0.5, 0.9))
    packets: list[bytes] = []
    flow = flows[0]
    for _ in range(random.choice((1, 5, 10, 20, 50))):
        if random.random() > linger:
            flow = random.choice(flows)
        packets += flow.next(random, faults)
        if len(packets) > 1 and random.random() < swaps:
            packets[-2:] = packets[:-3:-1]
    return packets
