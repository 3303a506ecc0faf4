"""What went into the engine comes out of the far end of a cable: merged, written, routed, cut.

    engine -> TunWriter -> tun0, the kernel's router, out -- veth -- in: a packet socket

Nothing is offloaded to the veth, so the kernel cuts every super-packet. It takes one from each TTL
and hop limit, as a router does; all else has to be the wire packets that the engine was given.
"""

import random
import socket
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self

import pytest

from tests import builders, lab
from tests.engines import Engine
from tests.requirements import lacks_tun, require

SOURCE = {4: "10.1.0.9", 6: "fd01::9"}  # behind tun0
DESTINATION = {4: "10.2.0.9", 6: "fd02::9"}  # behind the veth
TO = {builders.packed(address) for address in DESTINATION.values()}
ROUTER = {4: ("10.1.0.1/24", "10.2.0.1/24"), 6: ("fd01::1/64", "fd02::1/64")}
MTU = 1500
LAST_PORT = 7  # echo, RFC 862: of the packet that says that all others have come
SOL_PACKET = 263  # include/linux/socket.h
PACKET_IGNORE_OUTGOING = 23  # include/uapi/linux/if_packet.h
ETH_P_ALL = 0x0003  # include/uapi/linux/if_ether.h
SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h
KINDS = [(version, protocol) for version in (4, 6) for protocol in (builders.TCP, builders.UDP)]
TIMESTAMPS = bytes((1, 1, 8, 10)) + bytes(8)  # RFC 7323 appendix A
SOME_FLAGS = (builders.PSH, builders.ECE, builders.CWR, builders.AE, builders.URG)

Wire = dict[int, list[bytes]]
"""Packets by the source port of their flow, in order."""


class Router:
    """A namespace that forwards from tun0 to a veth, and the socket at the veth's other end."""

    def __init__(self, engine: Engine) -> None:
        self._stack = ExitStack()
        self._engine = engine
        net = self._stack.enter_context(lab.Lab())
        router, far = net.namespace(), net.namespace(ipv6=False)
        router.sysctl("ipv4/ip_forward", 1)
        router.sysctl("ipv6/conf/all/forwarding", 1)
        net.veth(router, "out", far, "in", mtu=MTU)
        router.no_offloads("out")
        far.no_offloads("in")
        with router:
            device = engine.module("dispatchers.tun_device").TunDevice("tun0")
            self.device = self._stack.enter_context(device)
        router.up("tun0")
        for version in (4, 6):
            for interface, address in zip(("tun0", "out"), ROUTER[version], strict=True):
                router.address(interface, address)
            router.neighbour("out", DESTINATION[version], far.mac("in"))
        self._tap = self._stack.enter_context(far.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        self._tap.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        self._tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
        self._tap.settimeout(10)
        self._tap.bind(("in", ETH_P_ALL))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def writer(self, **options: Any) -> Any:
        return self._engine.module("hooks.tun").TunWriter(self.device, **options)

    def carry(self, writer: Any, packets: Sequence[bytes], checksums: str = "partial") -> Wire:
        """Have packets merged and written as one batch, and collect what is on the wire."""
        config = self._engine.GroConfig(
            udp=True, delivered_checksums=checksums, capacity=len(packets)
        )
        with self._engine.GroDispatcher(writer, config) as gro:
            gro.dispatch(packets)
            gro.dispatch([build(4, builders.UDP, sport=LAST_PORT)])
        wire: Wire = defaultdict(list)
        while LAST_PORT not in wire:
            packet = self._tap.recv(65536)[14:]
            if destination(packet) in TO:  # and not what the router has to say of its own
                wire[source_port(packet)].append(packet)
        del wire[LAST_PORT]
        return dict(wire)


def destination(packet: bytes) -> bytes:
    return packet[16:20] if packet[0] >> 4 == 4 else packet[24:40]


def source_port(packet: bytes) -> int:
    start = 20 if packet[0] >> 4 == 4 else 40
    return int.from_bytes(packet[start : start + 2], "big")


def build(version: int, protocol: int, payload: bytes = b"", **fields: Any) -> bytes:
    ends = {"source": SOURCE[version], "destination": DESTINATION[version]}
    return builders.BUILDERS[version, protocol](payload, **ends, **fields)


def flow(
    version: int, protocol: int, port: int, size: int, count: int, *, tail: int, **fields: Any
) -> list[dict[str, Any]]:
    """Fields of ``count`` packets of ``size`` bytes of payload, and of a last one of ``tail``."""
    made = []
    for number in range(count + 1):
        payload = random.Random(port + number).randbytes(tail if number == count else size)
        own: dict[str, Any] = {"payload": payload, "sport": port, **fields}
        if version == 4:
            own["ident"] = (fields.get("ident", port) + number) & 0xFFFF
        if protocol == builders.TCP:
            own["seq"] = port * 1000 + number * size
            own["flags"] = builders.ACK | (number == count) * builders.PSH
        made.append(own)
    return made


def built(
    version: int, protocol: int, flows: Sequence[list[dict[str, Any]]], ttl: int
) -> Iterator[bytes]:
    """The packets of the flows, one of each in turn for as long as it has some."""
    for number in range(max(map(len, flows))):
        for fields in flows:
            if number < len(fields):
                yield build(version, protocol, ttl=ttl, **fields[number])


def by_flow(packets: Iterator[bytes]) -> Wire:
    wire: Wire = defaultdict(list)
    for packet in packets:
        wire[source_port(packet)].append(packet)
    return dict(wire)


@pytest.fixture
def router(engine: Engine) -> Iterator[Router]:
    require(lacks_tun())
    with Router(engine) as made:
        yield made


@pytest.mark.parametrize("checksums", ["partial", "complete"])
@pytest.mark.parametrize(("version", "protocol"), KINDS)
def test_super_packets_that_are_routed_are_the_original_wire_packets_again(
    router: Router, version: int, protocol: int, checksums: str
) -> None:
    generator = random.Random(version * protocol)
    headers = (20 if version == 4 else 40) + (20 if protocol == builders.TCP else 8)
    writer = router.writer()
    for _ in range(20):
        flows = []
        for port in generator.sample(range(1024, 65536), 4):
            options: dict[str, Any] = {"tos": generator.choice((0, 2, 0xB8))}
            room = MTU - headers
            if protocol == builders.TCP and generator.random() < 0.5:
                options["tcp_options"] = TIMESTAMPS
                room -= len(TIMESTAMPS)
            if version == 6:
                options["flow_label"] = generator.choice((0, 0xABCDE))
            else:
                options["df"] = generator.random() < 0.5
                options["ident"] = generator.choice((1, 0xFFF0))  # past the end of the numbers
            size = generator.choice((1, 100, generator.randint(1, room), room))
            count = generator.randint(1, 60)
            tail = generator.choice((size, generator.randint(1, size)))
            made = flow(version, protocol, port, size, count, tail=tail, **options)
            for packet in generator.sample(made, len(made) // 10) if "seq" in made[0] else ():
                packet["flags"] |= generator.choice(SOME_FLAGS)
            flows.append(made)
        sent = list(built(version, protocol, flows, ttl=64))
        received = router.carry(writer, sent, checksums)
        assert received == by_flow(built(version, protocol, flows, ttl=63))
    stats = writer.stats
    assert stats.super_packets > 20
    assert stats.cut == stats.refused == stats.dropped == 0


def equal_ids(protocol: int, *, df: bool) -> list[dict[str, Any]]:
    fields = flow(4, protocol, 4000, 1000, 10, tail=700, df=df)
    return [packet | {"ident": 77} for packet in fields]


@pytest.mark.parametrize("protocol", [builders.TCP, builders.UDP])
@pytest.mark.parametrize(
    ("option", "df", "restored"),
    [
        ("refuse", True, True),
        ("refuse", False, True),
        ("df", True, False),
        ("df", False, True),
        ("merge", True, False),
        ("merge", False, False),
    ],
)
def test_equal_ip_ids_come_out_equal_unless_the_writer_was_allowed_to_have_them_counted_up(
    router: Router, protocol: int, option: str, df: bool, restored: bool
) -> None:
    fields = equal_ids(protocol, df=df)
    writer = router.writer(fixed_ip_ids=option)
    received = router.carry(writer, list(built(4, protocol, [fields], ttl=64)))
    if not restored:  # all else is
        fields = [packet | {"ident": 77 + number} for number, packet in enumerate(fields)]
    assert received == by_flow(built(4, protocol, [fields], ttl=63))
    assert writer.stats.super_packets == (not restored)
