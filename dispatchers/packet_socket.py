"""AF_PACKET sockets: opened with all options before the first packet, and described (packet(7)).

A packet socket sees every frame of its interface below the host's own stack, after the kernel's
GRO where that is on: a "frame" may be a super-packet of 64 KiB whatever the MTU says.
"""

import errno
import socket
import struct
import threading
from array import array
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from netstack_gro.dispatchers.interfaces import (
    AF_PACKET,
    Interface,
    borrowed_socket,
    interface_index,
    is_gone,
)
from netstack_gro.errors import (
    ConfigError,
    DeviceError,
    DeviceGoneError,
    EngineStateError,
    UnsupportedError,
    device_error,
)

__all__ = [
    "LINKS",
    "FanoutGroup",
    "PacketCounters",
    "PacketLink",
    "PacketSocket",
    "open_packet_socket",
]

PacketLink = Literal["ethernet", "ip"]

SOL_PACKET = 263
ETH_P_ALL = 0x0003  # include/uapi/linux/if_ether.h
ETH_P_IP = 0x0800
ETH_P_IPV6 = 0x86DD

# include/uapi/linux/if_packet.h
PACKET_ADD_MEMBERSHIP = 1
PACKET_STATISTICS = 6
PACKET_AUXDATA = 8
PACKET_VNET_HDR = 15
PACKET_FANOUT = 18
PACKET_IGNORE_OUTGOING = 23  # since 4.20
PACKET_MR_PROMISC = 1
PACKET_FANOUT_HASH = 0
PACKET_FANOUT_FLAG_UNIQUEID = 0x2000  # since 4.12
PACKET_FANOUT_FLAG_DEFRAG = 0x8000
PACKET_OTHERHOST = 3
PACKET_OUTGOING = 4

# include/uapi/asm-generic/socket.h
SO_ATTACH_FILTER = 26
SO_DETACH_FILTER = 27
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35

# Which link layer a raw socket's frames begin with, by ARPHRD_* of include/uapi/linux/if_arp.h.
LINKS: dict[int, PacketLink] = {
    1: "ethernet",  # ETHER: also veth, bridge, bond, VLAN, TAP
    772: "ethernet",  # LOOPBACK: addresses of zeros, but there
    512: "ip",  # PPP: the protocol is taken off before
    519: "ip",  # RAWIP
    65534: "ip",  # NONE: TUN, WireGuard
}

VNET_SIZE = 10  # struct virtio_net_hdr, without num_buffers

_DROP, _ACCEPT = 0, 0xFFFFFFFF
_RETURN, _IF_EQUAL, _LOAD_BYTE, _LOAD_HALF = 0x06, 0x15, 0x30, 0x28  # linux/bpf_common.h
_AD_PROTOCOL, _AD_PKTTYPE = 0xFFFFF000, 0xFFFFF004  # SKF_AD_OFF + ..., linux/filter.h
_NOTHING_PASSES = ((_RETURN, 0, 0, _DROP),)

_Program = tuple[tuple[int, int, int, int], ...]


class FanoutGroup:
    """Packet sockets that share the traffic of one interface, each flow on one of them.

    number: 0 to 65,535, the same for all members, also those of other processes of the network
        namespace; None: one that nobody uses, chosen by the kernel when the first socket joins
        (Linux 4.12). Hand the same object to every dispatcher then, and keep one of them open
        until the last has been opened.
    defragment: let the kernel put IPv4 fragments together first (PACKET_FANOUT_FLAG_DEFRAG).

    The kernel picks the member by a hash of addresses and ports that is the same for both
    directions of a flow (PACKET_FANOUT_HASH). The fragments of a datagram have no ports in
    common, so they are hashed by addresses alone: all of them reach one member, though perhaps
    not that of the flow's whole datagrams. ``defragment`` mends that, at the price of packets
    that never were on the wire. A member whose buffer is full drops: spilling to another
    (PACKET_FANOUT_FLAG_ROLLOVER) would tear flows apart. A member that joins or leaves moves
    flows between the others.
    """

    __slots__ = ("_defragment", "_lock", "_number")

    def __init__(self, number: int | None = None, *, defragment: bool = False) -> None:
        if number is not None and not 0 <= number <= 65535:
            raise ConfigError("number", f"{number} is not within 0 to 65535")
        self._number = number
        self._defragment = defragment
        self._lock = threading.Lock()

    @property
    def number(self) -> int | None:
        """The group's number; None until the kernel has chosen one."""
        return self._number

    def __repr__(self) -> str:
        return f"<FanoutGroup {'unnumbered' if self._number is None else self._number}>"

    def join(self, member: socket.socket) -> None:
        """Make a bound packet socket a member. Raises OSError where the kernel refuses."""
        with self._lock:  # the second to join needs the number that the first was given
            flags = PACKET_FANOUT_FLAG_DEFRAG if self._defragment else 0
            if self._number is None:
                flags |= PACKET_FANOUT_FLAG_UNIQUEID
            value = (PACKET_FANOUT_HASH | flags) << 16 | (self._number or 0)
            member.setsockopt(SOL_PACKET, PACKET_FANOUT, struct.pack("=I", value))
            if self._number is None:
                self._number = member.getsockopt(SOL_PACKET, PACKET_FANOUT) & 0xFFFF


class PacketCounters:
    """The kernel's counters of a packet socket (PACKET_STATISTICS), summed up.

    The kernel starts again from zero at every reading, so that all must go through one object.
    """

    __slots__ = ("_lock", "dropped", "frozen", "seen")

    def __init__(self) -> None:
        self.seen: int = 0
        """Packets that came to the socket, dropped ones included."""
        self.dropped: int = 0
        """Packets that found its buffer or ring full."""
        self.frozen: int = 0
        """How often a TPACKET_V3 ring was found full and stopped."""
        self._lock = threading.Lock()

    def read(self, descriptor: int) -> None:
        """Add what the kernel has counted since the last reading. OSError where it refuses.

        May be called by any thread and in a signal handler: where a reading is going on already,
        this one does nothing.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            with borrowed_socket(descriptor) as borrowed:
                data = borrowed.getsockopt(SOL_PACKET, PACKET_STATISTICS, 12)
            seen, dropped, *frozen = struct.unpack(f"={len(data) // 4}I", data)
            self.seen += seen
            self.dropped += dropped
            self.frozen += sum(frozen)
        finally:
            self._lock.release()


class PacketSocket:
    """A bound AF_PACKET socket and what is known of it. Made by `open_packet_socket`.

    name, index: of the interface when it was opened. link: what its packets begin with.
    hardware: the interface's ARPHRD_* number. mtu: its MTU then, in bytes. vnet_size: bytes of
    the virtio_net_hdr before each packet, 10 or 0. auxdata, timestamps: whether a message comes
    with PACKET_AUXDATA and SCM_TIMESTAMPNS. receive_buffer: SO_RCVBUF as the kernel accounts it.
    counters: what the kernel counts. It owns the descriptor until `detach`.
    """

    __slots__ = (
        "_socket",
        "auxdata",
        "counters",
        "hardware",
        "index",
        "link",
        "mtu",
        "name",
        "receive_buffer",
        "timestamps",
        "vnet_size",
    )

    def __init__(
        self,
        opened: socket.socket,
        interface: Interface,
        *,
        link: PacketLink,
        vnet_size: int,
        auxdata: bool,
        timestamps: bool,
        receive_buffer: int,
    ) -> None:
        self._socket = opened
        self.name: str = interface.name
        self.index: int = interface.index
        self.hardware: int = interface.hardware
        self.mtu: int = interface.mtu
        self.link: PacketLink = link
        self.vnet_size: int = vnet_size
        self.auxdata: bool = auxdata
        self.timestamps: bool = timestamps
        self.receive_buffer: int = receive_buffer
        self.counters: PacketCounters = PacketCounters()

    def fileno(self) -> int:
        """The descriptor. Raises EngineStateError when it was detached or closed."""
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise EngineStateError(f"{self.name}: the packet socket was detached or closed")
        return descriptor

    def detach(self) -> int:
        """Hand the descriptor over: the caller closes it from now on."""
        self.fileno()
        return self._socket.detach()

    def close(self) -> None:
        """Close the socket, unless it was detached. Closing again does nothing."""
        self._socket.close()

    def failure(self, descriptor: int, number: int, doing: str = "cannot be read") -> DeviceError:
        """The error to raise for ``number``, which the kernel gave for the socket.

        ENETDOWN is all that the kernel says when an interface is deleted; this finds out whether
        it was, and is a DeviceGoneError then.
        """
        if number == errno.ENETDOWN and is_gone(descriptor):
            return DeviceGoneError(self.name, errno.ENODEV, f"{doing}: the interface was deleted")
        return device_error(self.name, number, doing)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PacketSocket of {self.name!r}, link {self.link!r}>"


def open_packet_socket(
    interface: str | int,
    *,
    link: PacketLink | None = None,
    vnet_hdr: bool | None = None,
    auxdata: bool = True,
    timestamps: bool = False,
    ignore_outgoing: bool = True,
    ignore_others: bool = False,
    fanout: FanoutGroup | int | None = None,
    receive_buffer: int | None = None,
    promiscuous: bool = False,
    prepare: Callable[[socket.socket], object] | None = None,
) -> PacketSocket:
    """A non-blocking packet socket that sees the traffic of one interface from now on.

    interface: its name or index. It may be down.
    link: ``ethernet``: frames with their Ethernet header; ``ip``: IP packets (of an interface
        with link headers, those are taken off by the kernel, and what is neither IPv4 nor IPv6
        is left out); None: as the interface has it.
    vnet_hdr: have each packet preceded by a virtio_net_hdr (PACKET_VNET_HDR), which says what is
        known of its checksum and of what super-packet it is. The kernel cannot do that where it
        takes link headers off. None: where it can; True: or raise UnsupportedError. The kernel
        drops a super-packet of a kind that the header has no name for: a recvmmsg(2) that meets
        it fails with EINVAL, a ring counts it as dropped.
    auxdata: have the VLAN tag that the kernel took out of a frame, and its checksum state, come
        with each message (PACKET_AUXDATA).
    timestamps: have the arrival time come with each message (SO_TIMESTAMPNS).
    ignore_outgoing: leave out what this host sends (on ``lo`` every packet is sent and received).
    ignore_others: leave out what is addressed to another station (PACKET_OTHERHOST).
    fanout: share the traffic with the other sockets of a group. A number stands for
        ``FanoutGroup(number)``. Before Linux 6.13 the interface must be up.
    receive_buffer: bytes of packets that may wait in the socket, with what the kernel adds to
        each; without CAP_NET_ADMIN the kernel gives net.core.rmem_max at most, and what it
        gave is `PacketSocket.receive_buffer`. None: net.core.rmem_default.
    promiscuous: have the interface receive what is addressed to others, for as long as the
        socket is open.
    prepare: called with the socket when all options are set, before it is bound (for a ring).

    Raises DeviceGoneError for an interface that does not exist, NotPermittedError without
    CAP_NET_RAW, UnsupportedError for what this kernel or kind of interface cannot do, and
    DeviceError for whatever else is refused.
    """
    group = FanoutGroup(fanout) if isinstance(fanout, int) else fanout
    found = Interface.find(interface)
    name = found.name
    native = LINKS.get(found.hardware)
    if native is None and link != "ip":
        raise UnsupportedError(
            name,
            errno.EOPNOTSUPP,
            f"frames of devices of type {found.hardware} (ARPHRD_*, linux/if_arp.h) are not "
            "understood; link='ip' has the kernel take their headers off",
        )
    if link == "ethernet" and native != "ethernet":
        raise UnsupportedError(
            name, errno.EOPNOTSUPP, "has no Ethernet headers; its packets are those of link='ip'"
        )
    chosen: PacketLink = link or native or "ip"
    cooked = chosen != native
    if cooked and vnet_hdr:
        raise UnsupportedError(
            name,
            errno.EINVAL,
            "the kernel gives no virtio_net_hdr where it takes the link header off: "
            "use link='ethernet', or vnet_hdr=False",
        )
    with_vnet = not cooked if vnet_hdr is None else vnet_hdr
    opened = _create(name, socket.SOCK_DGRAM if cooked else socket.SOCK_RAW)
    try:
        asked = _Asking(name, opened)
        if with_vnet:
            asked.option(SOL_PACKET, PACKET_VNET_HDR, 1, "PACKET_VNET_HDR")
        if auxdata:
            asked.option(SOL_PACKET, PACKET_AUXDATA, 1, "PACKET_AUXDATA")
        if timestamps:
            asked.option(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1, "SO_TIMESTAMPNS")
        if receive_buffer is not None:
            _set_receive_buffer(asked, receive_buffer)
        refused = {PACKET_OTHERHOST} if ignore_others else set()
        # A fanout group does not look at what its members ignore.
        if ignore_outgoing and (group is not None or not _ignore_outgoing(opened)):
            refused.add(PACKET_OUTGOING)
        program = _program(frozenset(refused), only_ip=cooked)
        # A socket that is bound and not yet a member would see what belongs to the others.
        asked.filter(program if group is None else _NOTHING_PASSES)
        if prepare is not None:
            prepare(opened)
        asked.bind(found.index)
        if promiscuous:
            request = struct.pack("=iHH8x", found.index, PACKET_MR_PROMISC, 0)
            asked.option(SOL_PACKET, PACKET_ADD_MEMBERSHIP, request, "promiscuous mode")
        if group is not None:
            asked.join(group)
            asked.filter(program)
        size = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    except BaseException:
        opened.close()
        raise
    return PacketSocket(
        opened,
        found,
        link=chosen,
        vnet_size=VNET_SIZE if with_vnet else 0,
        auxdata=auxdata,
        timestamps=timestamps,
        receive_buffer=size,
    )


class _Asking:
    """What is asked of a socket that is being opened, with refusals told by the device's name."""

    def __init__(self, name: str, opened: socket.socket) -> None:
        self._name = name
        self._socket = opened
        self._filtered = False

    def option(self, level: int, number: int, value: int | bytes, known_as: str) -> None:
        try:
            self._socket.setsockopt(level, number, value)
        except OSError as error:
            if error.errno in {errno.ENOPROTOOPT, errno.EOPNOTSUPP}:
                raise UnsupportedError(
                    self._name, error.errno, f"this kernel does not know {known_as}"
                ) from error
            raise device_error(self._name, error, f"{known_as} was refused") from error

    def filter(self, program: _Program) -> None:
        """Attach a classic BPF program in place of the last one; nothing for one that is empty."""
        if program:
            code = array("B", b"".join(struct.pack("=HBBI", *line) for line in program))
            described = struct.pack("@HP", len(program), code.buffer_info()[0])
            self.option(socket.SOL_SOCKET, SO_ATTACH_FILTER, described, "SO_ATTACH_FILTER")
        elif self._filtered:
            self.option(socket.SOL_SOCKET, SO_DETACH_FILTER, 0, "SO_DETACH_FILTER")
        self._filtered = bool(program)

    def bind(self, index: int) -> None:
        name = self._name
        try:
            self._socket.bind((name, ETH_P_ALL))
            bound = interface_index(self._socket, name)
        except OSError as error:
            raise device_error(name, error, "cannot be bound to") from error
        if bound != index:
            raise device_error(name, errno.ENODEV, "was replaced while it was opened")
        # An interface that is down is no fault yet: its packets come when it is up.
        failure = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure not in {0, errno.ENETDOWN}:
            raise device_error(name, failure, "cannot be bound to")

    def join(self, group: FanoutGroup) -> None:
        try:
            group.join(self._socket)
        except OSError as error:
            doing = f"cannot join {group!r}"
            if error.errno == errno.EINVAL:
                doing += " (of another interface, or with other options, or the interface is down)"
            raise device_error(self._name, error, doing) from error


def _create(name: str, kind: int) -> socket.socket:
    try:
        # Protocol 0: it receives nothing before it is bound, as it would from all interfaces.
        return socket.socket(AF_PACKET, kind | socket.SOCK_NONBLOCK, 0)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            raise UnsupportedError(
                name, error.errno, "this kernel has no packet sockets (CONFIG_PACKET)"
            ) from error
        raise device_error(
            name, error, "a packet socket was refused", right="CAP_NET_RAW"
        ) from error


def _ignore_outgoing(opened: socket.socket) -> bool:
    """Whether the kernel knows how to leave out what the host sends."""
    try:
        opened.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    except OSError:
        return False
    return True


def _set_receive_buffer(asked: _Asking, size: int) -> None:
    """Ask with the right to exceed net.core.rmem_max, or else without."""
    try:
        asked.option(socket.SOL_SOCKET, SO_RCVBUFFORCE, size, "SO_RCVBUFFORCE")
    except DeviceError:
        asked.option(socket.SOL_SOCKET, socket.SO_RCVBUF, size, "SO_RCVBUF")


def _program(refused: frozenset[int], *, only_ip: bool) -> _Program:
    """The filter that leaves out packet types, and all that is not IP; empty for none."""
    lines: list[tuple[int, int, int, int]] = []
    if refused:
        lines.append((_LOAD_BYTE, 0, 0, _AD_PKTTYPE))
        for kind in sorted(refused):
            lines += [(_IF_EQUAL, 0, 1, kind), (_RETURN, 0, 0, _DROP)]
    if only_ip:
        lines += [
            (_LOAD_HALF, 0, 0, _AD_PROTOCOL),
            (_IF_EQUAL, 2, 0, ETH_P_IP),
            (_IF_EQUAL, 1, 0, ETH_P_IPV6),
            (_RETURN, 0, 0, _DROP),
        ]
    return (*lines, (_RETURN, 0, 0, _ACCEPT)) if lines else ()
