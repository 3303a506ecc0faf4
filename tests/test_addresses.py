"""Packed addresses and control messages, against what the socket module makes of them."""

import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack_gro.dispatchers.addresses import (
    PacketInfo,
    decode_address,
    decode_info,
    encode_address,
    host_of,
    is_ipv4,
    outgoing_control,
)

pytestmark = [
    pytest.mark.engineless,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux"),
]

ports = st.integers(0, 65535)
ipv4_hosts = st.binary(min_size=4, max_size=4).map(lambda host: socket.inet_ntop(2, host))
ipv6_hosts = st.binary(min_size=16, max_size=16).map(lambda host: socket.inet_ntop(10, host))


@given(ipv4_hosts, ports)
def test_an_ipv4_address_comes_back(host: str, port: int) -> None:
    packed = encode_address(socket.AF_INET, (host, port))
    assert len(packed) == 16
    assert decode_address(packed) == (host, port)
    assert is_ipv4(packed)
    assert host_of(packed) == socket.inet_pton(socket.AF_INET, host)


@given(ipv6_hosts, ports, st.integers(0, 2**20 - 1), st.integers(0, 2**32 - 1))
def test_an_ipv6_address_comes_back(host: str, port: int, flow: int, scope: int) -> None:
    packed = encode_address(socket.AF_INET6, (host, port, flow, scope))
    assert len(packed) == 28
    assert decode_address(packed) == (host, port, flow, scope)
    assert is_ipv4(packed) == host.startswith("::ffff:")
    assert encode_address(socket.AF_INET6, (host, port)) == encode_address(
        socket.AF_INET6, (host, port, 0, 0)
    )


@given(ipv4_hosts, ports)
def test_an_ipv4_address_for_an_ipv6_socket_is_mapped(host: str, port: int) -> None:
    packed = encode_address(socket.AF_INET6, (host, port))
    assert is_ipv4(packed)
    assert decode_address(packed)[:2] == (f"::ffff:{host}", port)


def test_the_kernel_has_the_same_addresses() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as bound:
            bound.bind((host, 0))
            own = bound.getsockname()
            assert decode_address(encode_address(family, own)) == own


def test_an_interface_may_stand_behind_an_address() -> None:
    lo = socket.if_nametoindex("lo")
    by_name = encode_address(socket.AF_INET6, ("fe80::1%lo", 9))
    assert by_name == encode_address(socket.AF_INET6, (f"fe80::1%{lo}", 9))
    assert decode_address(by_name) == ("fe80::1", 9, 0, lo)
    with pytest.raises(OSError, match="no interface"):
        encode_address(socket.AF_INET6, ("fe80::1%nothing", 9))


@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, ("localhost", 9)),
        (socket.AF_INET, ("::1", 9)),
        (socket.AF_INET, ("127.0.0.1\0", 9)),
        (socket.AF_INET, ("127.0.0.1", -1)),
        (socket.AF_INET, ("127.0.0.1", 65536)),
        (socket.AF_INET, ("127.0.0.1", "9")),
        (socket.AF_INET, ("127.0.0.1",)),
        (socket.AF_INET, (b"127.0.0.1", 9)),
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, None),
        (socket.AF_INET6, ("name", 9)),
        (socket.AF_INET6, ("::1", 9, 1 << 20, 0)),
        (socket.AF_INET6, ("::1", 9, 0, 1 << 32)),
        (socket.AF_INET6, ("::1", 9, 0)),
    ],
)
def test_what_is_no_address_is_refused(family: int, address: object) -> None:
    with pytest.raises(ValueError):
        encode_address(family, address)  # type: ignore[arg-type]


@pytest.mark.parametrize("packed", [b"", bytes(16), b"\x02\0" * 4, b"\x0a\0" + bytes(14)])
def test_what_is_no_packed_address_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="not a socket address"):
        decode_address(packed)


def parsed(control: bytes) -> list[tuple[int, int, bytes]]:
    """Control messages as the kernel would walk them (cmsg(3))."""
    found = []
    at = 0
    while at + socket.CMSG_LEN(0) <= len(control):
        length, level, kind = struct.unpack_from("@Nii", control, at)
        found.append((level, kind, control[at + socket.CMSG_LEN(0) : at + length]))
        at += socket.CMSG_SPACE(length - socket.CMSG_LEN(0))
    assert at == len(control)
    return found


def test_control_messages_for_a_send() -> None:
    info = PacketInfo("10.0.0.1", 7)
    assert outgoing_control(True, None, None) == (b"", 0)
    control, bare = outgoing_control(True, info, 3)
    assert parsed(control) == [
        (socket.IPPROTO_IP, 8, struct.pack("=i4s4s", 7, bytes((10, 0, 0, 1)), bytes(4))),
        (socket.IPPROTO_IP, socket.IP_TOS, struct.pack("=i", 3)),
    ]
    assert parsed(control[:bare]) == parsed(control)[:1]
    control, bare = outgoing_control(False, PacketInfo("fd00::1", 7), 0xBA)
    assert parsed(control) == [
        (
            socket.IPPROTO_IPV6,
            socket.IPV6_PKTINFO,
            struct.pack("=16sI", socket.inet_pton(socket.AF_INET6, "fd00::1"), 7),
        ),
        (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, struct.pack("=i", 0xBA)),
    ]
    assert outgoing_control(False, None, 1)[1] == 0
    mapped = outgoing_control(True, PacketInfo("::ffff:10.0.0.1", 7), None)
    assert mapped == outgoing_control(True, info, None)
    with pytest.raises(ValueError, match="not an IPv4 address"):
        outgoing_control(True, PacketInfo("fd00::1", 0), None)


def test_packet_information_is_where_a_datagram_was_sent() -> None:
    four = struct.pack("=i4s4s", 3, bytes((10, 0, 0, 1)), bytes((224, 0, 0, 1)))
    assert decode_info(four) == PacketInfo("224.0.0.1", 3)
    six = struct.pack("=16sI", socket.inet_pton(socket.AF_INET6, "ff02::1"), 4)
    assert decode_info(six) == PacketInfo("ff02::1", 4)
