"""UDP sockets as Linux offers them: opened or taken over, their options, their addresses.

Every option is tried on the socket that will be used, and never raises where it is missing: what
was achieved is in `ReceiveOptions`. Sizes are in bytes. Options: udp(7), ip(7), ipv6(7),
socket(7).
"""

import contextlib
import errno
import os
import re
import select
import socket
import struct
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from netstack_gro.dispatchers.addresses import Address, decode_address, is_ipv4
from netstack_gro.dispatchers.live import LiveSource, named_failures, require_linux
from netstack_gro.errors import ConfigError, DeviceError, device_error

__all__ = [
    "ICMP_ANSWERS",
    "ReceiveOptions",
    "Support",
    "adopted",
    "control_size",
    "drain_errors",
    "dropped",
    "gro_support",
    "is_connected",
    "is_shut",
    "kernel_release",
    "path_mtu",
    "prepare",
    "segmentation_support",
    "socket_name",
    "traffic_class",
]

# include/uapi/linux/udp.h
UDP_SEGMENT = 103
UDP_GRO = 104
# include/uapi/linux/in.h
IP_TOS = 1
IP_PKTINFO = 8
IP_RECVTOS = 13
IP_MTU = 14
# include/uapi/linux/in6.h, include/uapi/linux/ipv6.h
IPV6_MTU = 24
IPV6_V6ONLY = 26
IPV6_RECVPKTINFO = 49
IPV6_RECVTCLASS = 66
IPV6_TCLASS = 67
# include/uapi/asm-generic/socket.h
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
SO_PROTOCOL = 38
SO_RXQ_OVFL = 40
SO_MEMINFO = 55
SO_NETNS_COOKIE = 71

SK_MEMINFO_DROPS = 8  # include/uapi/linux/sock_diag.h: place of the counter in SO_MEMINFO
_MEMINFO = struct.Struct("=9I")

MAX_TRAIN = 65_535
"""No train has more bytes: the kernel builds it as one IP packet, of a 16-bit length."""

WANTED_TRAINS = 64
"""Trains that an unread socket should hold before the kernel drops any."""

_SIZES = {
    # What each control message holds at most, in bytes.
    "train": 4,  # int, net/ipv4/udp.c (udp_cmsg_recv)
    "tos": 4,  # u8 of IPv4 and int of IPv6
    "info": 20,  # struct in_pktinfo has 12, struct in6_pktinfo 20
    "time": 16,  # two 64-bit integers
    "drops": 4,  # u32
}
_RESERVE = 128  # for what else was switched on by whoever opened the socket

ICMP_ANSWERS = frozenset(
    getattr(errno, name, 0)  # not all of them are there on other systems
    for name in (
        "EACCES",
        "ECONNREFUSED",
        "EHOSTDOWN",
        "EHOSTUNREACH",
        "EMSGSIZE",
        "ENETUNREACH",
        "ENONET",
        "ENOPROTOOPT",
        "EOPNOTSUPP",
        "EPROTO",
    )
)
"""What a socket is told once, with its next call, of ICMP that answered to an earlier datagram:
icmp_err_convert of net/ipv4/icmp.c, tab_unreach of net/ipv6/icmp.c."""

Given: TypeAlias = "Address | socket.socket | LiveSource"


MSG_ERRQUEUE = 0x2000  # include/linux/socket.h
POLLRDHUP = 0x2000  # include/uapi/asm-generic/poll.h


class Support(Enum):
    """Whether the kernel has UDP_GRO."""

    YES = "yes"
    """It was switched on, and the kernel says so."""
    UNVERIFIABLE = "unverifiable"
    """It could be set, but the kernel cannot tell (before Linux 5.12); less reliable there."""
    NO = "no"
    """It cannot be set (before Linux 5.0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveOptions:
    """What a socket was found to do.

    gro: whether the kernel has UDP_GRO. trains: whether it is switched on here, so that one read
        may give several datagrams.
    ecn, packet_info, timestamps: whether trains say so.
    drops: whether the kernel says how many datagrams or trains it had no room for.
    receive_buffer: what unread datagrams may take, as the kernel accounts it (SO_RCVBUF as read
        back): about twice their bytes, for its own overhead.
    """

    gro: Support
    trains: bool
    ecn: bool
    packet_info: bool
    timestamps: bool
    drops: bool
    receive_buffer: int

    @property
    def trains_held(self) -> int:
        """How many trains of the greatest size an unread socket holds, about."""
        return self.receive_buffer // 2 // MAX_TRAIN


# --- sockets -----------------------------------------------------------------------------------


def adopted(given: Given, *, reuse_port: bool = False) -> socket.socket:
    """A UDP socket of our own, with its own descriptor.

    given: an address (host, port, as the socket module has them) to bind a new socket to, the
        empty host meaning IPv6 and IPv4; or an open socket, or a dispatcher, whose descriptor
        is duplicated. Both descriptors then refer to one socket: options set here hold there.
    reuse_port: share the address with other sockets that ask for the same (SO_REUSEPORT).

    Raises DeviceError where the address cannot be bound or no descriptor is to be had, ConfigError
    for an address that is none and a socket that is not UDP over IPv4 or IPv6, TypeError for
    anything else. A socket that an asyncio transport reads
    is refused: both would take datagrams from it, and the transport would take trains for single
    datagrams.
    """
    require_linux("udp")
    if isinstance(given, tuple):
        return _bound(_checked(given), reuse_port)
    if isinstance(given, LiveSource | socket.socket):
        name = given.name if isinstance(given, LiveSource) else "udp socket"
        with named_failures(name, "cannot be duplicated"):
            opened = socket.socket(fileno=_duplicate(given.fileno()))
    elif type(given).__module__ == "asyncio.trsock":
        raise TypeError(
            "the socket belongs to an asyncio transport, which reads it; open another one"
        )
    else:
        raise TypeError(f"an address or a socket is required, not {type(given).__name__!r}")
    try:
        with named_failures("udp socket", "cannot be used"):
            fault = _unfit(opened)
    except BaseException:
        opened.close()
        raise
    if fault:
        opened.close()
        raise ConfigError("socket", f"UDP over IPv4 or IPv6 is required, not {fault}")
    return opened


def _duplicate(descriptor: int) -> int:
    if descriptor < 0:  # of a socket that is closed
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return os.dup(descriptor)


def _checked(address: tuple[object, ...]) -> Address:
    """An address to bind to, of the right types; ConfigError otherwise."""
    host = address[0] if address else None
    if len(address) not in {2, 4} or not isinstance(host, str) or "\0" in host:
        raise ConfigError("source", f"{address!r} is not an address: (host, port)")
    for number, limit in zip(address[1:], (0xFFFF, 0xFFFFF, 0xFFFFFFFF), strict=False):
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= limit:
            raise ConfigError("source", f"{number!r} in {address!r} is not within 0 to {limit}")
    return address  # type: ignore[return-value]


def _unfit(opened: socket.socket) -> str:
    """What a socket is, where it is not what is required."""
    if opened.family not in {socket.AF_INET, socket.AF_INET6}:
        return f"{opened.family!r}"
    protocol = opened.getsockopt(socket.SOL_SOCKET, SO_PROTOCOL)
    return f"protocol {protocol}" if protocol != socket.IPPROTO_UDP else ""


def _bound(address: Address, reuse_port: bool) -> socket.socket:
    host, port = address[:2]
    name = _name(host, port)
    if host == "":
        with contextlib.suppress(OSError):  # without IPv6 in the kernel
            return _bind(socket.AF_INET6, ("::", port), reuse_port, both=True)
        host = "0.0.0.0"  # noqa: S104 - what the empty host means
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (socket.gaierror, UnicodeError) as error:
        raise DeviceError(name, 0, f"there is no such address: {error}") from error
    family, _, _, _, resolved = found[0]
    target: tuple[object, ...] = resolved
    if family == socket.AF_INET6 and len(address) > 2:
        target = (target[0], *address[1:])
    try:
        return _bind(family, target, reuse_port)
    except OSError as error:
        right = "CAP_NET_BIND_SERVICE" if error.errno == errno.EACCES else None
        raise device_error(name, error, "cannot be bound", right=right) from error


def _bind(
    family: int, target: tuple[object, ...], reuse_port: bool, *, both: bool = False
) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if both:
            opened.setsockopt(socket.IPPROTO_IPV6, IPV6_V6ONLY, 0)
        if reuse_port:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind(target)
    except BaseException:
        opened.close()
        raise
    return opened


def socket_name(opened: socket.socket) -> str:
    """What a socket is called in messages: its address, and its peer's where it is connected."""
    host, port = opened.getsockname()[:2]
    try:
        peer = opened.getpeername()
    except OSError:
        return _name(host, port)
    return f"{_name(host, port)} to {_name(*peer[:2]).removeprefix('udp ')}"


def _name(host: object, port: object) -> str:
    return f"udp [{host}]:{port}" if ":" in str(host) else f"udp {host}:{port}"


# --- what the kernel can do --------------------------------------------------------------------


def kernel_release() -> tuple[int, int]:
    """Major and minor number of the running kernel; (0, 0) where its release names none."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def gro_support(opened: socket.socket) -> Support:
    """Switch UDP_GRO on and say what came of it; it stays on unless the answer is NO."""
    try:
        opened.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
    except OSError:
        return Support.NO
    try:
        on = opened.getsockopt(socket.IPPROTO_UDP, UDP_GRO)
    except OSError:
        return Support.UNVERIFIABLE
    return Support.YES if on else Support.NO


def segmentation_support(opened: socket.socket) -> bool:
    """Whether UDP_SEGMENT can be sent with; nothing is changed.

    A kernel without it takes the control message without a word and sends one long datagram, so
    an error of a send tells nothing: the option has to be there, and the kernel be 4.18 or later.
    Whether a route's device can do it is known only by sending.
    """
    try:
        opened.getsockopt(socket.IPPROTO_UDP, UDP_SEGMENT)
    except OSError:
        return False
    return kernel_release() >= (4, 18)


def prepare(
    opened: socket.socket,
    *,
    gro: bool | None,
    ecn: bool,
    packet_info: bool,
    timestamps: bool,
    receive_buffer: int,
) -> ReceiveOptions:
    """Set the receive options of a socket; what was achieved.

    gro: None switches UDP_GRO on where that can be verified, True also where it cannot be, False
    switches it off. receive_buffer: bytes of datagrams to hold unread, never less than before.
    """
    found = gro_support(opened)
    trains = gro is not False and (
        found is Support.YES or (gro is True and found is Support.UNVERIFIABLE)
    )
    if not trains and found is not Support.NO:
        opened.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 0)
    six = opened.family == socket.AF_INET6
    info = (socket.IPPROTO_IPV6, IPV6_RECVPKTINFO) if six else (socket.IPPROTO_IP, IP_PKTINFO)
    marks = _switched_on(opened, socket.IPPROTO_IP, IP_RECVTOS, ecn)  # also of IPv4 through IPv6
    if six:
        marks = _switched_on(opened, socket.IPPROTO_IPV6, IPV6_RECVTCLASS, ecn)
    return ReceiveOptions(
        gro=found,
        trains=trains,
        ecn=marks,
        packet_info=_switched_on(opened, *info, packet_info),
        timestamps=_switched_on(opened, socket.SOL_SOCKET, SO_TIMESTAMPNS, timestamps),
        drops=_switched_on(opened, socket.SOL_SOCKET, SO_RXQ_OVFL, True),
        receive_buffer=_receive_buffer(opened, receive_buffer),
    )


def control_size(options: ReceiveOptions) -> int:
    """Bytes that the control messages of one read may take (CMSG_SPACE of each that may come)."""
    # Always that of a train: by what the kernel says, not by what was asked of it.
    named = ["train", *(["tos"] * 2 if options.ecn else [])]
    named += ["info"] if options.packet_info else []
    named += ["time"] if options.timestamps else []
    named += ["drops"] if options.drops else []
    return sum(socket.CMSG_SPACE(_SIZES[name]) for name in named) + _RESERVE


def _switched_on(opened: socket.socket, level: int, option: int, wanted: bool) -> bool:
    """Switch an option on or off; whether it is on."""
    try:
        opened.setsockopt(level, option, int(wanted))
    except OSError:
        return False
    return wanted


def _receive_buffer(opened: socket.socket, wanted: int) -> int:
    """Ask for room for ``wanted`` bytes of datagrams; what there is now, as accounted."""
    # The kernel doubles what it is asked for, to account for its own overhead.
    for option in (socket.SO_RCVBUF, SO_RCVBUFFORCE):
        if opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 2 * wanted:
            break
        with contextlib.suppress(OSError):  # SO_RCVBUFFORCE takes CAP_NET_ADMIN
            opened.setsockopt(socket.SOL_SOCKET, option, wanted)
    return opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)


def dropped(opened: socket.socket) -> int | None:
    """The kernel's own count of what the socket had no room for, modulo 2**32; None: unknown.

    It is what SO_RXQ_OVFL says with the next datagram (SO_MEMINFO, Linux 4.12).
    """
    try:
        found = opened.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, _MEMINFO.size)
        return int(_MEMINFO.unpack(found)[SK_MEMINFO_DROPS])
    except (OSError, struct.error):
        return None


def path_mtu(opened: socket.socket, name: bytes) -> int | None:
    """The largest IP packet that gets to a peer whole, as far as the kernel knows; else None.

    name: the peer's socket address, empty for the one that the socket is connected to.
    """
    level, option = (
        (socket.IPPROTO_IPV6, IPV6_MTU)
        if opened.family == socket.AF_INET6 and not is_ipv4(name)
        else (socket.IPPROTO_IP, IP_MTU)
    )
    try:
        if not name:
            return opened.getsockopt(level, option)
        # Only a connected socket can be asked.
        with socket.socket(opened.family, socket.SOCK_DGRAM) as asked:
            if _network(asked) != _network(opened):
                return None
            asked.connect(decode_address(name))
            return asked.getsockopt(level, option)
    except OSError:
        return None


def traffic_class(opened: socket.socket, ipv4: bool) -> int:
    """The type of service or traffic class byte that is sent by default, by IPv4 or by IPv6."""
    try:
        if ipv4:
            return opened.getsockopt(socket.IPPROTO_IP, IP_TOS)
        return opened.getsockopt(socket.IPPROTO_IPV6, IPV6_TCLASS)
    except OSError:
        return 0


def _network(opened: socket.socket) -> int:
    """The number of the network namespace that a socket is of; 0 before Linux 5.14."""
    try:
        found = opened.getsockopt(socket.SOL_SOCKET, SO_NETNS_COOKIE, 8)
    except OSError:
        return 0
    return int.from_bytes(found, "little")


def is_connected(opened: socket.socket) -> bool:
    """Whether the socket has one peer."""
    try:
        opened.getpeername()
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            return False
        raise
    return True


def is_shut(descriptor: int) -> bool:
    """Whether a socket was shut down for reading."""
    asked = select.poll()
    asked.register(descriptor, POLLRDHUP)
    return any(events & POLLRDHUP for _, events in asked.poll(0))


def drain_errors(opened: socket.socket) -> int:
    """Take all errors that a socket keeps (IP_RECVERR); how many."""
    count = 0
    with contextlib.suppress(OSError):
        while True:
            opened.recvmsg(0, 0, MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            count += 1
    return count
