"""The verdict of each kind of packet that does not merge, and what it does to the flows behind it.

Every packet stands between two segments of a flow that merge if nothing is between them. It may
close that flow's head (its ports can be read), every head (they cannot), or none (it is of no
flow that merges).
"""

from collections.abc import Sequence
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from tests import builders as b
from tests.builders import (
    TrafficPacket,
    ethernet,
    ipv4,
    ipv6,
    loop,
    null,
    sll,
    sll2,
    tcp4,
    tcp6,
    udp4,
    udp6,
)
from tests.engines import Engine
from tests.flushes import Recorder, batch_of, merged

BODY = bytes(range(100))
PASSED, BARRIER, NONE = "PASSED", "BARRIER", ""


def options(size: int) -> bytes:
    """A hop-by-hop or destination options header of padding, 8 to 256 bytes in steps of 8."""
    return bytes((0, size // 8 - 1, 1, size - 4)) + bytes(size - 4)


def routing(left: int) -> bytes:
    return bytes((0, 2, 0, left)) + bytes(20)


HBH = (b.HOP_BY_HOP, options(8))
DST = (b.DESTINATION, options(8))
FRAGMENT = (b.FRAGMENT, bytes(8))

# name: verdict, what it closes, the packet between two segments of its own kind of flow
IPV4: dict[str, tuple[str, str, bytes]] = {
    "empty": ("IP_TRUNCATED", BARRIER, b""),
    "one byte": ("IP_TRUNCATED", BARRIER, b"\x45"),
    "19 bytes": ("IP_TRUNCATED", BARRIER, tcp4(BODY)[:19]),
    "header longer than the packet": ("IP_TRUNCATED", BARRIER, tcp4(b"", ihl=15)),
    "version 5": ("IP_VERSION", BARRIER, tcp4(BODY, version=5)),
    "version 0": ("IP_VERSION", BARRIER, bytes(60)),
    "header length 16": ("IP_HEADER_LENGTH", BARRIER, tcp4(BODY, ihl=4)),
    "header length 0": ("IP_HEADER_LENGTH", BARRIER, tcp4(BODY, ihl=0)),
    "total length below the header": ("IP_HEADER_LENGTH", BARRIER, tcp4(BODY, total_length=19)),
    "total length 0": ("IP_LENGTH_ZERO", PASSED, tcp4(BODY, total_length=0)),
    "cut off": ("TRUNCATED", PASSED, tcp4(BODY)[:139]),
    "cut off behind the ports": ("TRUNCATED", PASSED, tcp4(BODY)[:24]),
    "total length too large": ("TRUNCATED", PASSED, tcp4(BODY, total_length=141)),
    "padding": ("TRAILING_BYTES", PASSED, tcp4(BODY) + b"\0"),
    "pure ACK with padding": ("TRAILING_BYTES", PASSED, tcp4(b"") + bytes(6)),
    "options": ("IP_OPTIONS", PASSED, tcp4(BODY, options=b"\1\1\1\0")),
    "more fragments": ("FRAGMENT", BARRIER, tcp4(BODY, mf=True)),
    "fragment offset": ("FRAGMENT", BARRIER, tcp4(BODY, fragment_offset=1)),
    "last fragment": ("FRAGMENT", BARRIER, tcp4(BODY, fragment_offset=8191, df=False)),
    "reserved bit": ("IP_RESERVED_BIT", PASSED, tcp4(BODY, reserved_bit=True)),
    "header checksum": ("IP_CHECKSUM", BARRIER, tcp4(BODY, header_checksum=0x1234)),
    "header checksum 0": ("IP_CHECKSUM", BARRIER, tcp4(BODY, header_checksum=0)),
    "ICMP": ("OTHER_PROTOCOL", NONE, ipv4(bytes(64), protocol=1)),
    "ESP": ("OTHER_PROTOCOL", NONE, ipv4(bytes(64), protocol=50)),
    "3 bytes of TCP": ("TRANSPORT_TRUNCATED", BARRIER, ipv4(tcp4(BODY)[20:23], protocol=6)),
    "no bytes of TCP": ("TRANSPORT_TRUNCATED", BARRIER, ipv4(b"", protocol=6)),
    "19 bytes of TCP": ("TRANSPORT_TRUNCATED", PASSED, ipv4(tcp4(BODY)[20:39], protocol=6)),
    "data offset 4": ("TCP_DATA_OFFSET", PASSED, tcp4(BODY, data_offset=4)),
    "data offset 0": ("TCP_DATA_OFFSET", PASSED, tcp4(BODY, data_offset=0)),
    "data offset past the end": ("TCP_DATA_OFFSET", PASSED, tcp4(b"abc", data_offset=6)),
    "SYN": ("TCP_SYN", PASSED, tcp4(BODY, flags=b.SYN)),
    "RST": ("TCP_RST", PASSED, tcp4(BODY, flags=b.RST | b.ACK)),
    "URG": ("TCP_URG", PASSED, tcp4(BODY, flags=b.URG | b.ACK)),
    "CWR": ("TCP_CWR", PASSED, tcp4(BODY, flags=b.CWR | b.ACK)),
    "pure ACK": ("TCP_NO_PAYLOAD", PASSED, tcp4(b"")),
    "FIN without data": ("TCP_NO_PAYLOAD", PASSED, tcp4(b"", flags=b.FIN | b.ACK)),
    "PSH without data": ("TCP_NO_PAYLOAD", PASSED, tcp4(b"", flags=b.PSH | b.ACK)),
    "options but no data": ("TCP_NO_PAYLOAD", PASSED, tcp4(b"", tcp_options=bytes(40))),
    "IP in IP": ("OTHER_PROTOCOL", NONE, ipv4(tcp4(BODY), protocol=4)),
}
IPV6: dict[str, tuple[str, str, bytes]] = {
    "39 bytes": ("IP_TRUNCATED", BARRIER, tcp6(BODY)[:39]),
    "payload length 0": ("IP_LENGTH_ZERO", PASSED, tcp6(BODY, payload_length=0)),
    "payload length 0 and nothing": ("IP_LENGTH_ZERO", BARRIER, ipv6(b"", protocol=6)),
    "cut off": ("TRUNCATED", PASSED, tcp6(BODY)[:-1]),
    "payload length too large": ("TRUNCATED", PASSED, tcp6(BODY, payload_length=121)),
    "padding": ("TRAILING_BYTES", PASSED, tcp6(BODY) + b"\0"),
    "fragment": ("FRAGMENT", BARRIER, tcp6(BODY, extensions=[FRAGMENT])),
    "fragment behind options": ("FRAGMENT", BARRIER, tcp6(BODY, extensions=[HBH, FRAGMENT])),
    "ESP": ("EXTENSION_HEADER", BARRIER, ipv6(bytes(64), protocol=50)),
    "AH": ("EXTENSION_HEADER", BARRIER, tcp6(BODY, extensions=[(51, bytes((0, 4, *bytes(22))))])),
    "mobility": ("EXTENSION_HEADER", BARRIER, ipv6(bytes(64), protocol=135)),
    "hop-by-hop second": ("EXTENSION_HEADER", PASSED, tcp6(BODY, extensions=[DST, HBH])),
    "hop-by-hop twice": ("EXTENSION_HEADER", PASSED, tcp6(BODY, extensions=[HBH, HBH])),
    "segments left": (
        "EXTENSION_HEADER",
        PASSED,
        tcp6(BODY, extensions=[(b.ROUTING, routing(1))]),
    ),
    "nine extension headers": ("EXTENSION_HEADER", BARRIER, tcp6(BODY, extensions=[DST] * 9)),
    "extension header past the end": (
        "IP_TRUNCATED",
        BARRIER,
        ipv6(b"\x06\xff" + bytes(60), protocol=b.DESTINATION),
    ),
    "7 bytes of an extension header": (
        "IP_TRUNCATED",
        BARRIER,
        ipv6(bytes(7), protocol=b.DESTINATION),
    ),
    "ICMPv6": ("OTHER_PROTOCOL", NONE, ipv6(bytes(64), protocol=58)),
    "no next header": ("OTHER_PROTOCOL", NONE, ipv6(bytes(8), protocol=59)),
    "19 bytes of TCP": ("TRANSPORT_TRUNCATED", PASSED, ipv6(tcp6(BODY)[40:59], protocol=6)),
    "260 bytes of headers": (
        "HEADERS_TOO_LONG",
        PASSED,
        tcp6(BODY, extensions=[(b.DESTINATION, options(192))], tcp_options=bytes(8)),
    ),
}
UDP4: dict[str, tuple[str, str, bytes]] = {
    "7 bytes of UDP": ("TRANSPORT_TRUNCATED", PASSED, ipv4(udp4(BODY)[20:27], protocol=17)),
    "length too small": ("UDP_LENGTH", PASSED, udp4(BODY, udp_length=107)),
    "length too large": ("UDP_LENGTH", PASSED, udp4(BODY, udp_length=109)),
    "length 0": ("UDP_LENGTH", PASSED, udp4(BODY, udp_length=0)),
    "empty": ("UDP_EMPTY", PASSED, udp4(b"")),
    "without checksum": ("UDP_NO_CHECKSUM", PASSED, udp4(BODY, checksum=0)),
}
UDP6: dict[str, tuple[str, str, bytes]] = {
    "length 0": ("UDP_LENGTH", PASSED, udp6(BODY, udp_length=0)),
    "empty": ("UDP_EMPTY", PASSED, udp6(b"")),
    "without checksum": ("UDP_NO_CHECKSUM", PASSED, udp6(BODY, checksum=0)),
    "263 bytes of headers": (
        "HEADERS_TOO_LONG",
        PASSED,
        udp6(BODY, extensions=[(b.DESTINATION, options(216))]),
    ),
}
FLOWS = {
    "tcp4": [tcp4(BODY, ident=place, seq=1 + 100 * place) for place in range(2)],
    "tcp6": [tcp6(BODY, seq=1 + 100 * place) for place in range(2)],
    "udp4": [udp4(BODY, ident=place) for place in range(2)],
    "udp6": [udp6(BODY) for _ in range(2)],
}
CASES = [
    pytest.param(flow, *case, id=f"{flow} {name}")
    for flow, cases in zip(FLOWS, (IPV4, IPV6, UDP4, UDP6), strict=True)
    for name, case in cases.items()
]


def between(
    engine: Engine, flow: Sequence[bytes], packet: bytes | TrafficPacket, **how: Any
) -> Recorder:
    hook = Recorder()
    batch = batch_of(engine, [flow[0], packet, flow[1]])
    engine.GroDispatcher(hook, GroConfig(udp=True, **how)).dispatch(batch)
    return hook


def expected(hook: Recorder, packet: bytes, verdict: str, closes: str) -> None:
    """The packet came through as it was, with its verdict, and closed what it had to."""
    place = 1
    assert hook.verdicts[place] == verdict
    assert hook.data[place] == packet
    assert hook.reasons[place] == "NOT_HELD"
    if closes == NONE:
        assert hook.counts == [2, 1]
    else:
        assert hook.counts == [1, 1, 1]
        assert hook.reasons[0] == closes


@pytest.mark.parametrize(("flow", "verdict", "closes", "packet"), CASES)
def test_a_packet_that_does_not_merge_is_passed_on_in_its_place(
    engine: Engine, flow: str, verdict: str, closes: str, packet: bytes
) -> None:
    expected(between(engine, FLOWS[flow], packet), packet, verdict, closes)


@pytest.mark.parametrize(("flow", "verdict", "closes", "packet"), CASES)
def test_it_has_the_same_verdict_behind_an_ethernet_header(
    engine: Engine, flow: str, verdict: str, closes: str, packet: bytes
) -> None:
    kind = 0x86DD if flow.endswith("6") else 0x0800
    frame = ethernet(packet, tags=[(b.DOT1Q, 5)], ether_type=kind)
    frames = [ethernet(other, tags=[(b.DOT1Q, 5)]) for other in FLOWS[flow]]
    expected(between(engine, frames, frame, link="ethernet"), frame, verdict, closes)


@pytest.mark.parametrize(("flow", "verdict", "closes", "packet"), CASES)
def test_a_readable_packet_of_another_flow_closes_nothing(
    engine: Engine, flow: str, verdict: str, closes: str, packet: bytes
) -> None:
    build = {"tcp4": tcp4, "tcp6": tcp6, "udp4": udp4, "udp6": udp6}[flow]
    fields: list[dict[str, Any]] = [{"sport": 9}, {"sport": 9}]
    for place in range(2):
        fields[place] |= {"seq": 1 + 100 * place} if flow.startswith("tcp") else {}
        fields[place] |= {"ident": place} if flow.endswith("4") else {}
    others = [build(BODY, **own) for own in fields]
    hook = between(engine, others, packet)
    assert hook.verdicts[1] == verdict
    assert hook.counts == ([1, 1, 1] if closes == BARRIER else [2, 1])


# --- links ---------------------------------------------------------------------------------------

SIX, FOUR = tcp6(BODY), tcp4(BODY)
LINK_CASES: list[tuple[str, str, str, bytes]] = [
    ("ethernet", "LINK_TRUNCATED", BARRIER, b""),
    ("ethernet", "LINK_TRUNCATED", BARRIER, ethernet(FOUR)[:13]),
    ("ethernet", "LINK_TRUNCATED", BARRIER, ethernet(FOUR, tags=[(b.DOT1Q, 5)])[:17]),
    ("ethernet", "LINK_TRUNCATED", BARRIER, ethernet(FOUR, tags=[(b.DOT1Q, 5)])[:14]),
    ("ethernet", "NOT_IP", NONE, ethernet(bytes(46), ether_type=0x0806)),
    ("ethernet", "NOT_IP", NONE, ethernet(bytes(46), ether_type=46)),  # IEEE 802.3 length
    ("ethernet", "NOT_IP", NONE, ethernet(bytes(46), tags=[(b.DOT1Q, 5)], ether_type=0x88CC)),
    ("ethernet", "VLAN_DEPTH", BARRIER, ethernet(FOUR, tags=[(b.DOT1Q, 5)] * 3)),
    ("ethernet", "IP_VERSION", BARRIER, ethernet(SIX, ether_type=0x0800)),
    ("ethernet", "IP_VERSION", BARRIER, ethernet(FOUR, ether_type=0x86DD)),
    ("ethernet", "IP_TRUNCATED", BARRIER, ethernet(b"")),
    ("ethernet", "IP_TRUNCATED", BARRIER, ethernet(FOUR)[:33]),
    ("sll", "LINK_TRUNCATED", BARRIER, sll(FOUR)[:15]),
    ("sll", "NOT_IP", NONE, sll(bytes(46), ether_type=0x0806)),
    ("sll", "IP_VERSION", BARRIER, sll(SIX, ether_type=0x0800)),
    ("sll", "IP_TRUNCATED", BARRIER, sll(FOUR)[:16]),
    ("sll2", "LINK_TRUNCATED", BARRIER, sll2(FOUR)[:19]),
    ("sll2", "NOT_IP", NONE, sll2(bytes(46), ether_type=4)),
    ("sll2", "IP_VERSION", BARRIER, sll2(FOUR, ether_type=0x86DD)),
    ("null", "LINK_TRUNCATED", BARRIER, null(FOUR)[:3]),
    ("null", "NOT_IP", NONE, null(FOUR, family=7)),
    ("null", "NOT_IP", NONE, null(SIX, family=10)),  # Linux writes no such link
    ("null", "NOT_IP", NONE, null(FOUR, family=0x02000002)),
    ("null", "IP_VERSION", BARRIER, null(FOUR, family=30)),
    ("loop", "LINK_TRUNCATED", BARRIER, loop(FOUR)[:3]),
    ("loop", "NOT_IP", NONE, null(FOUR)),  # not in network order
    ("loop", "IP_VERSION", BARRIER, loop(SIX, family=2)),
    ("ipv4", "IP_VERSION", BARRIER, SIX),
    ("ipv6", "IP_VERSION", BARRIER, FOUR),
    ("ip", "IP_VERSION", BARRIER, b"\x90" + FOUR[1:]),
]


@pytest.mark.parametrize(("link", "verdict", "closes", "packet"), LINK_CASES)
def test_a_link_header_that_leads_nowhere_is_named(
    engine: Engine, link: str, verdict: str, closes: str, packet: bytes
) -> None:
    flow = [b.FRAMES[link](inner) for inner in FLOWS["tcp6" if link == "ipv6" else "tcp4"]]
    expected(between(engine, flow, packet, link=link), packet, verdict, closes)


@pytest.mark.parametrize("family", [2, 24, 28, 30])
@pytest.mark.parametrize("big", [False, True])
def test_every_address_family_of_a_loopback_header_is_known(
    engine: Engine, family: int, big: bool
) -> None:
    flow = FLOWS["tcp4" if family == 2 else "tcp6"]
    frames = [null(packet, family=family, big=big) for packet in flow]
    assert merged(engine, frames, link="null").counts == [2]
    assert merged(engine, frames, link="loop").counts == ([2] if big else [1, 1])


@pytest.mark.parametrize("tags", [[], [(b.DOT1Q, 7)], [(b.DOT1AD, 7), (b.DOT1Q, 7)]])
@pytest.mark.parametrize("flow", FLOWS)
def test_frames_with_up_to_two_tags_merge(
    engine: Engine, tags: list[tuple[int, int]], flow: str
) -> None:
    frames = [ethernet(packet, tags=tags) for packet in FLOWS[flow]]
    hook = merged(engine, frames, link="ethernet", udp=True)
    assert hook.given[0].segments == frames


# --- what just so merges -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extensions",
    [
        [HBH],
        [DST],
        [HBH, DST],
        [DST] * 8,
        [(b.ROUTING, routing(0))],
        [HBH, (b.ROUTING, routing(0)), DST],
        [(b.DESTINATION, options(192))],
    ],
)
def test_extension_headers_that_are_allowed_merge(
    engine: Engine, extensions: list[tuple[int, bytes]]
) -> None:
    fields: dict[str, Any] = {"extensions": extensions, "tcp_options": bytes((1, 1, 1, 0))}
    packets = [tcp6(BODY, seq=1 + 100 * place, **fields) for place in range(3)]
    hook = merged(engine, packets)
    assert hook.counts == [3]
    assert hook.given[0].segments == packets


def test_256_bytes_of_headers_merge_and_the_link_header_counts(engine: Engine) -> None:
    fields: dict[str, Any] = {"extensions": [(b.DESTINATION, options(192))]}
    exactly = [
        tcp6(BODY, seq=1 + 100 * place, tcp_options=bytes((1, 1, 1, 0)), **fields)
        for place in range(2)
    ]
    assert len(exactly[0]) - len(BODY) == 256
    assert merged(engine, exactly).given[0].segments == exactly
    for link in ("null", "ethernet"):
        frames = [b.FRAMES[link](packet) for packet in exactly]
        assert merged(engine, frames, link=link).verdicts == ["HEADERS_TOO_LONG"] * 2


# --- precedence ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "packet"),
    [
        ("IP_LENGTH_ZERO", tcp4(b"", total_length=0, options=bytes(4), mf=True)),
        ("TRUNCATED", tcp4(BODY, options=bytes(4), mf=True, reserved_bit=True)[:-1]),
        ("TRAILING_BYTES", tcp4(BODY, options=bytes(4), mf=True, header_checksum=1) + b"\0"),
        ("IP_OPTIONS", tcp4(BODY, options=bytes(4), mf=True, reserved_bit=True)),
        ("FRAGMENT", tcp4(BODY, mf=True, reserved_bit=True, header_checksum=1)),
        ("IP_RESERVED_BIT", tcp4(BODY, reserved_bit=True, header_checksum=1)),
        ("IP_CHECKSUM", ipv4(b"", protocol=1, header_checksum=1)),
        ("TCP_DATA_OFFSET", tcp4(b"", data_offset=4, flags=0xFF)),
        ("TCP_SYN", tcp4(b"", flags=0xFF)),
        ("TCP_RST", tcp4(b"", flags=0xFD)),
        ("TCP_URG", tcp4(b"", flags=0xF9)),
        ("TCP_CWR", tcp4(b"", flags=0xD9)),
        ("UDP_LENGTH", udp4(b"", udp_length=9, checksum=0, dport=4789)),
        ("UDP_EMPTY", udp4(b"", checksum=0, dport=4789)),
        ("UDP_NO_CHECKSUM", udp4(b"x", checksum=0, dport=4789)),
        ("UDP_PORT", udp4(b"x", checksum=1, dport=4789)),
        ("FRAGMENT", tcp6(BODY, extensions=[DST, HBH, FRAGMENT])),
        ("TRUNCATED", tcp6(BODY, extensions=[DST] * 9)[:-1]),
        ("IP_TRUNCATED", tcp6(BODY, extensions=[DST])[:47]),
    ],
)
def test_the_first_verdict_that_applies_is_the_packet_s(
    engine: Engine, verdict: str, packet: bytes
) -> None:
    assert merged(engine, [packet, b""], udp=True).verdicts[0] == verdict


@pytest.mark.parametrize("length", [141, 139, 0])
def test_a_wire_length_that_is_not_the_length_is_a_truncation(engine: Engine, length: int) -> None:
    """A capture may even claim that less was on the wire than it holds."""
    packet = TrafficPacket(tcp4(BODY), wire_length=length)
    hook = between(engine, FLOWS["tcp4"], packet)
    expected(hook, packet.data, "TRUNCATED", PASSED)
    assert hook.given[1].wire_length == length


# --- UDP ports -----------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [4789, 8472, 6080, 6081, 4754, 4755, 6635, 2152])
def test_datagrams_to_a_tunnel_pass_and_those_from_one_merge(engine: Engine, port: int) -> None:
    to = [udp4(BODY, dport=port, ident=place) for place in range(2)]
    from_ = [udp4(BODY, sport=port, ident=place) for place in range(2)]
    assert merged(engine, to, udp=True).verdicts == ["UDP_PORT"] * 2
    assert merged(engine, from_, udp=True).counts == [2]
    assert merged(engine, to, udp=True, udp_tunnel_ports=()).counts == [2]


def test_datagrams_from_or_to_port_4500_pass(engine: Engine) -> None:
    for side in ("sport", "dport"):
        packets = [udp6(BODY, **{side: 4500}) for _ in range(2)]
        assert merged(engine, packets, udp=True).verdicts == ["UDP_PORT"] * 2
        assert merged(engine, packets, udp=True, udp_tunnel_ports_either=()).counts == [2]


def test_ports_of_our_own_are_left_alone(engine: Engine) -> None:
    packets = [udp4(BODY, dport=51820, ident=place) for place in range(2)]
    assert merged(engine, packets, udp=True, udp_tunnel_ports=[51820]).counts == [1, 1]
    assert merged(engine, packets, udp=True, udp_tunnel_ports_either={51820}).counts == [1, 1]
