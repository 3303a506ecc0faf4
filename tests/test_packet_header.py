"""`Packet.header`: what a hook writes there reaches every form of the packet, never the input."""

import socket
from collections.abc import Callable
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6

from netstack_gro.config import GroConfig
from tests import builders as b
from tests.builders import TrafficPacket, ethernet, ip_offset, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import assert_sound, batch_of
from tests.packet_kinds import BODY, HBH, SUPER, stream, within_hook

INSIDE_4 = bytes((192, 168, 7, 9))
INSIDE_6 = socket.inet_pton(socket.AF_INET6, "2001:db8::7:9")


def translate(header: memoryview, at: int, port: int) -> None:
    """NAT of destination address and port, and one hop: what a stack in the middle writes."""
    if header[at] >> 4 == 4:
        header[at + 16 : at + 20] = INSIDE_4
        header[at + 8] -= 1
        transport = at + 20
    else:
        header[at + 24 : at + 40] = INSIDE_6
        header[at + 7] -= 1
        transport = at + 40 + (8 if header[at + 6] == b.HOP_BY_HOP else 0)
    header[transport + 2 : transport + 4] = port.to_bytes(2, "big")


BUILDS = [
    (tcp4, {}),
    (tcp6, {}),
    (udp4, {}),
    (udp6, {}),
    (tcp6, {"extensions": [HBH]}),
    (tcp4, {"tcp_options": bytes.fromhex("0101080a0000000100000002")}),
]


@pytest.mark.parametrize(("build", "fields"), BUILDS)
@pytest.mark.parametrize("link", ["ip", "ethernet", "sll"])
@pytest.mark.parametrize("delivered", ["complete", "partial"])
def test_segments_carry_what_was_written_with_right_checksums(
    engine: Engine, build: Callable[..., bytes], fields: dict[str, Any], link: str, delivered: str
) -> None:
    packets = [b.FRAMES[link](packet) for packet in stream(build, 5, **fields)]
    slab = bytearray(b"".join(packets))
    batch = engine.Batch(slab)
    offset = 0
    for packet in packets:
        batch.add(offset, len(packet))
        offset += len(packet)
    at = ip_offset(packets[0], link)
    cut: list[bytes] = []

    def hook(given: list[Any]) -> None:
        (packet,) = given
        translate(packet.header, at, 8080)
        cut.extend(packet.segments())

    how: dict[str, Any] = {"link": link, "udp": True, "delivered_checksums": delivered}
    engine.GroDispatcher(hook, GroConfig(**how)).dispatch(batch)
    assert slab == b"".join(packets)
    assert_sound(cut, link)
    assert len(cut) == 5
    for before, after in zip(packets, cut, strict=True):
        witness = (IP if after[at] >> 4 == 4 else IPv6)(after[at:])
        original = (IP if after[at] >> 4 == 4 else IPv6)(before[at:])
        layer = TCP if TCP in witness else UDP
        assert witness.dst == ("192.168.7.9" if witness.version == 4 else "2001:db8::7:9")
        assert witness[layer].dport == 8080
        assert bytes(witness[layer].payload) == bytes(original[layer].payload)
        assert before[:at] == after[:at]


def test_all_forms_of_the_bytes_follow_what_was_written(engine: Engine) -> None:
    def act(packet: Any) -> None:
        before = bytes(packet)
        packet.header[8] = 5
        packet.header[1] = 0x2E
        expected = before[:1] + b"\x2e" + before[2:8] + b"\x05" + before[9:]
        assert bytes(packet) == b"".join(packet.buffers()) == expected
        room = bytearray(len(packet))
        packet.copy_into(room)
        assert room == expected
        assert bytes(packet.header) == expected[:40]
        assert bytes(packet.detach()) == expected

    for packets in (stream(tcp4, 3), [tcp4(b"alone")], [tcp4(b"lone"), b"y"]):
        within_hook(engine, packets[:3], lambda p: act(p) if len(p) > 1 else None)


def test_the_header_is_one_writable_view_of_the_headers_and_nothing_else(engine: Engine) -> None:
    def act(packet: Any) -> tuple[int, bool]:
        header = packet.header
        again = packet.header
        header[0] ^= 1
        assert again[0] == header[0]
        header[0] ^= 1
        return len(header), header.readonly

    frame = ethernet(tcp6(BODY, extensions=[HBH]), tags=[(b.DOT1Q, 1)])
    assert within_hook(engine, [frame, frame], act, link="ethernet") == [(86, False)] * 2
    assert within_hook(engine, stream(tcp4, 3), act) == [(40, False)]
    assert within_hook(engine, stream(udp6, 3), act, udp=True) == [(48, False)]


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xff" * 60,
        b.ipv4(bytes(60), protocol=1),
        tcp4(BODY)[:30],
        tcp4(BODY, mf=True),
        tcp6(BODY, extensions=[(b.DESTINATION, bytes((0, 31, *bytes(254))))]),
    ],
    ids=["empty", "noise", "icmp", "truncated", "fragment", "257 bytes of headers"],
)
def test_without_a_transport_header_there_is_nothing_to_write(
    engine: Engine, packet: bytes
) -> None:
    def act(given: Any) -> None:
        assert len(given.header) == 0
        assert bytes(given) == packet
        assert len(given.detach().header) == 0

    for company in ([], [b"other"]):
        results = within_hook(
            engine, [packet, *company], lambda p: act(p) if bytes(p) == packet else None
        )
        assert len(results) == 1 + len(company)


def test_a_lone_packet_that_is_written_to_leaves_the_input_alone(engine: Engine) -> None:
    packet = bytearray(tcp4(b"payload"))
    before = bytes(packet)

    def act(given: Any) -> bytes:
        given.header[16:20] = INSIDE_4
        return bytes(given)

    for packets in ([packet], [packet, b"other"]):
        seen: list[bytes] = []
        engine.GroDispatcher(lambda given: seen.append(act(given[0]))).dispatch(packets)  # noqa: B023
        assert seen == [before[:16] + INSIDE_4 + before[20:]]
        assert packet == before


def test_packets_of_one_flush_have_headers_of_their_own(engine: Engine) -> None:
    packets = [*stream(tcp4, 2), *stream(tcp4, 2, sport=2), tcp4(b"x", sport=3), tcp6(b"x")]

    def hook(given: list[Any]) -> None:
        assert len(given) == 4
        before = [bytes(packet) for packet in given]
        headers = [packet.header for packet in given]
        for number, header in enumerate(headers):
            header[:] = bytes((number,)) * len(header)
        for number, packet in enumerate(given):
            size = len(headers[number])
            assert bytes(packet) == bytes((number,)) * size + before[number][size:]

    engine.GroDispatcher(hook, GroConfig(capacity=6)).dispatch(packets)


def test_what_was_written_is_forgotten_with_its_batch(engine: Engine) -> None:
    packets = stream(tcp4, 3)
    results: list[tuple[bytes, list[bytes]]] = []

    def hook(given: list[Any]) -> None:
        for packet in given:
            results.append((bytes(packet), list(packet.segments())))
            packet.header[:] = bytes(len(packet.header))

    gro = engine.GroDispatcher(hook)
    batch = batch_of(engine, packets)
    for _ in range(3):
        gro.dispatch(batch)
    assert results[0] == results[1] == results[2]
    assert results[0][1] == packets


def test_a_super_packet_that_came_as_one_is_translated_too(engine: Engine) -> None:
    data = tcp4(BODY, partial=True)
    for delivered in ("complete", "partial"):
        cut: list[bytes] = []

        def act(packet: Any, cut: list[bytes] = cut) -> None:
            translate(packet.header, 0, 8080)
            cut.extend(packet.segments())

        batch = [TrafficPacket(data, virtio=SUPER)]
        within_hook(engine, batch, act, delivered_checksums=delivered)
        assert_sound(cut)
        assert [IP(part).dst for part in cut] == ["192.168.7.9"] * 11
        assert b"".join(part[40:] for part in cut) == BODY
