"""Socket addresses and ancillary data of UDP, as the kernel has them and as Python has them.

A packed address is a struct sockaddr_in or sockaddr_in6 (ip(7), ipv6(7)), a Python address the
tuple that the socket module gives. Both ways are cached: few peers send most datagrams.
"""

import socket
import struct
import sys
from functools import lru_cache
from typing import NamedTuple, TypeAlias

__all__ = [
    "ECN_MASK",
    "Address",
    "PacketInfo",
    "decode_address",
    "decode_info",
    "encode_address",
    "host_of",
    "is_ipv4",
    "outgoing_control",
]

Address: TypeAlias = tuple[str, int] | tuple[str, int, int, int]

# include/uapi/linux/in.h
IP_TOS = 1
IP_PKTINFO = 8
# include/uapi/linux/in6.h, include/uapi/linux/ipv6.h
IPV6_PKTINFO = 50
IPV6_TCLASS = 67

ECN_MASK = 0x03  # RFC 3168 section 5: the lower two bits of the traffic class byte

_IN = struct.Struct("=H2s4s8x")  # struct sockaddr_in
_IN6 = struct.Struct("=H2s4s16sI")  # struct sockaddr_in6; port and flow in network order
_IN_INFO = struct.Struct("=i4s4s")  # struct in_pktinfo: interface, local address, destination
_IN6_INFO = struct.Struct("=16sI")  # struct in6_pktinfo: address, interface
_CMSG = struct.Struct("@Nii")  # struct cmsghdr: length, level, type
_MAPPED = bytes(10) + b"\xff\xff"  # RFC 4291 section 2.5.5.2: an IPv4 address within IPv6
_NAMES = 1024  # addresses and controls remembered


class PacketInfo(NamedTuple):
    """The address that a datagram was sent to, and the index of the interface it came in by.

    For sending: the local address to send from, and the interface to send by, 0 for any.
    """

    address: str
    interface: int


@lru_cache(_NAMES)
def decode_address(packed: bytes) -> Address:
    """The address that a struct sockaddr_in or sockaddr_in6 holds, as the socket module has it.

    Raises ValueError for another family or a wrong length.
    """
    family = int.from_bytes(packed[:2], sys.byteorder)
    if family == socket.AF_INET and len(packed) == _IN.size:
        _, port, host = _IN.unpack(packed)
        return socket.inet_ntop(socket.AF_INET, host), int.from_bytes(port, "big")
    if family == socket.AF_INET6 and len(packed) == _IN6.size:
        _, port, flow, host, scope = _IN6.unpack(packed)
        text = socket.inet_ntop(socket.AF_INET6, host)
        return text, int.from_bytes(port, "big"), int.from_bytes(flow, "big"), scope
    raise ValueError(f"not a socket address of IPv4 or IPv6: {packed.hex()}")


@lru_cache(_NAMES)
def encode_address(family: int, address: Address) -> bytes:
    """The address for a socket of ``family`` (AF_INET or AF_INET6).

    The host is a number in text: names are not looked up. An IPv4 address for an IPv6 socket is
    mapped into it; an IPv6 address may end in ``%`` and an interface's name or index. Raises
    ValueError for what is no such address.
    """
    host, port, *more = _checked(address)
    flow, scope = more or (0, 0)
    if not 0 <= port <= 65535:
        raise ValueError(f"{port!r} is not a port number (0 to 65535)")
    if not 0 <= flow < 1 << 20 or not 0 <= scope < 1 << 32:
        raise ValueError(f"{address!r} has no valid flow label and scope")
    network_port = port.to_bytes(2, "big")
    if family == socket.AF_INET:
        return _IN.pack(family, network_port, _number(socket.AF_INET, host))
    bare, percent, zone = host.partition("%")
    if percent:
        scope = int(zone) if zone.isdecimal() else socket.if_nametoindex(zone)
    if ":" in bare:
        number = _number(socket.AF_INET6, bare)
    else:
        number = _MAPPED + _number(socket.AF_INET, host)
    return _IN6.pack(family, network_port, flow.to_bytes(4, "big"), number, scope)


def _checked(address: object) -> "Address":
    """An address of the right types; ValueError otherwise."""
    if (
        not isinstance(address, tuple)
        or len(address) not in {2, 4}
        or not isinstance(address[0], str)
        or not all(isinstance(number, int) for number in address[1:])
    ):
        raise ValueError(f"{address!r} is not an address: (host, port)")
    return address


def is_ipv4(packed: bytes) -> bool:
    """Whether what is sent to a packed address goes by IPv4."""
    return len(packed) == _IN.size or packed[8:20] == _MAPPED


def host_of(packed: bytes) -> bytes:
    """What of a packed address decides its route: the host, and the scope of an IPv6 one."""
    return packed[4:8] if len(packed) == _IN.size else packed[8:28]


def decode_info(packed: bytes) -> PacketInfo:
    """What a struct in_pktinfo (12 bytes) or in6_pktinfo (20) says."""
    if len(packed) == _IN_INFO.size:
        interface, _, host = _IN_INFO.unpack(packed)
        return PacketInfo(socket.inet_ntop(socket.AF_INET, host), interface)
    host, interface = _IN6_INFO.unpack(packed)
    return PacketInfo(socket.inet_ntop(socket.AF_INET6, host), interface)


@lru_cache(_NAMES)
def outgoing_control(ipv4: bool, source: PacketInfo | None, tos: int | None) -> tuple[bytes, int]:
    """Control messages for a send, and how many of their bytes there are without the last, tos.

    ipv4: whether the datagram goes by IPv4, be it through an IPv6 socket. tos: the whole byte,
    DSCP and ECN. Raises ValueError for a source that is no address of that kind.
    """
    control = b""
    if source is not None:
        host, interface = source
        if ipv4:
            # An IPv6 socket reports IPv4 destinations as mapped ones.
            number = _number(socket.AF_INET, host.removeprefix("::ffff:"))
            data = _IN_INFO.pack(interface, number, bytes(4))
            control += _message(socket.IPPROTO_IP, IP_PKTINFO, data)
        else:
            data = _IN6_INFO.pack(_number(socket.AF_INET6, host), interface)
            control += _message(socket.IPPROTO_IPV6, IPV6_PKTINFO, data)
    bare = len(control)
    if tos is not None:
        level, kind = (socket.IPPROTO_IP, IP_TOS) if ipv4 else (socket.IPPROTO_IPV6, IPV6_TCLASS)
        control += _message(level, kind, struct.pack("=i", tos))
    return control, bare


def _message(level: int, kind: int, data: bytes) -> bytes:
    """One control message, padded to where the next one starts (cmsg(3))."""
    header = _CMSG.pack(socket.CMSG_LEN(len(data)), level, kind)
    header += bytes(socket.CMSG_LEN(0) - len(header))
    return (header + data).ljust(socket.CMSG_SPACE(len(data)), b"\0")


def _number(family: int, host: str) -> bytes:
    try:
        return socket.inet_pton(family, host)
    except (OSError, ValueError):
        version = 4 if family == socket.AF_INET else 6
        raise ValueError(f"{host!r} is not an IPv{version} address in numbers") from None
