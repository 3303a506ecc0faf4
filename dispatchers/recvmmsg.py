"""RecvMmsgDispatcher: packets of an interface or a socket, many in one recvmmsg(2)."""

import errno
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from netstack_gro.batch import Batch
from netstack_gro.config import GroConfig, Link
from netstack_gro.dispatchers import native
from netstack_gro.dispatchers.interfaces import is_gone
from netstack_gro.dispatchers.live import named_failures, require_linux
from netstack_gro.dispatchers.messages import PacketMessages
from netstack_gro.dispatchers.packet_socket import PacketSocket, open_packet_socket
from netstack_gro.dispatchers.slab import LiveStats, SlabDispatcher, live_config, stride_of
from netstack_gro.errors import ConfigError
from netstack_gro.hook import Hook

__all__ = ["RecvMmsgDispatcher"]

_AUXDATA_SIZE = 20  # struct tpacket_auxdata, include/uapi/linux/if_packet.h
_TIMESPEC_SIZE = 16  # struct timespec, of two 64-bit numbers at most
_ETHERNET_HEADER = 14
_REFUSALS = 16
"""Super-packets that the kernel could not describe, dropped one after the other by one read."""


class RecvMmsgDispatcher(SlabDispatcher):
    """Reads packets into one slab by recvmmsg(2): as many as there are, up to a batch.

    source: the name or index of an interface, whose frames are read through a packet socket with
        the defaults of `open_packet_socket`; a `PacketSocket` that was opened with others; or a
        datagram or seqpacket socket that carries a packet per message, such as one end of a
        sandbox's socket pair. The dispatcher owns it from now on, also where it cannot be made.
    hook: takes each batch's result.
    config: for the engine; its capacity is that of the batch. Its link layer is that of the
        packets; of a packet socket, the dispatcher finds it out. None: the defaults, with a
        capacity of 64.
    vnet_size: of a socket that is no packet socket: bytes of the struct virtio_net_hdr in front of
        each packet, in native byte order: 0, 10 or 12.
    trust: of such a socket: whether that header is believed. A peer that is believed decides what
        is merged as verified, so that is for peers of this program's own.
    frame_size: bytes of the largest packet, without virtio_net_hdr; None: 65,535 and the largest
        link header, as the kernel's own receive offload makes packets of that size whatever the
        MTU is. What is longer is cut off; it is delivered unmerged, with a `Packet.wire_length`
        above its length, and counted.

    `Packet.interface` is the interface's index, 0 for other sockets. Reading errors raise
    DeviceError: DeviceDownError when the interface went down (it can be read again when it is
    up), DeviceGoneError when it was deleted; of an interface that was down before, the kernel says
    no more, so that the next call of `dispatch_once` finds it out.

    For a lower cost per packet at the price of a delay see `PacketRingDispatcher`; this one
    delivers a lone packet as soon as it has come.
    """

    __slots__ = ("_down", "_ended", "_messages", "_refused", "_socket")

    def __init__(
        self,
        source: str | int | PacketSocket | socket.socket,
        hook: Hook,
        config: GroConfig | None = None,
        *,
        vnet_size: int = 0,
        trust: bool = False,
        frame_size: int | None = None,
    ) -> None:
        if isinstance(source, bool) or not isinstance(
            source, str | int | PacketSocket | socket.socket
        ):
            raise TypeError(
                "source: an interface's name or index, a PacketSocket or a socket.socket is "
                f"required, not {type(source).__name__!r}"
            )
        if isinstance(source, str | int):
            require_linux(str(source))
            with named_failures(str(source), "cannot be opened"):
                source = open_packet_socket(source)
        self._ended = False
        self._refused = 0
        self._down = True  # for all that is known
        self._socket = source if isinstance(source, PacketSocket) else None
        descriptor = -1
        try:
            kind = _kind_of(source, vnet_size, trust)
            settings = live_config(config, kind.link)
            stride = stride_of(frame_size, kind.vnet_size)
            self._messages = PacketMessages(
                settings.capacity,
                stride,
                kind.vnet_size,
                trust=kind.trust,
                control_size=kind.control_size,
                largest=kind.largest,
                interface=kind.interface,
                ends=kind.ends,
            )
            descriptor = source.detach()
            super().__init__(descriptor, kind.name, hook, settings, stride)
        except BaseException:
            if descriptor < 0:
                source.close()
            else:
                os.close(descriptor)
            raise

    @property
    def exhausted(self) -> bool:
        """Whether the peer of a seqpacket socket has closed its end."""
        return self._ended

    @property
    def stats(self) -> LiveStats:
        """A snapshot of the counters; also after `close`.

        dropped: of a packet socket, what found its buffer full and what the kernel could not
        describe in a virtio_net_hdr.
        """
        self._count_drops()
        return LiveStats(
            engine=self._gro.stats,
            truncated=self._messages.truncated,
            dropped=self._refused + (0 if self._socket is None else self._socket.counters.dropped),
            runts=self._messages.runts,
            slabs_replaced=self._batch.slabs_replaced,
        )

    def _count_drops(self) -> None:
        """Have the kernel's counters added, while the socket is open."""
        if self._socket is not None:
            with self._using, suppress(OSError):  # closed by others: what was counted stays
                if self._descriptor >= 0:
                    self._socket.counters.read(self._descriptor)

    def _aim(self, batch: Batch) -> None:
        self._messages.aim(batch)

    def _fill(self, batch: Batch) -> int:
        for _ in range(_REFUSALS):
            failure = self._messages.fill(self._descriptor, batch)
            if failure == -1:
                self._ended = True
                return 0
            if failure != errno.EINVAL or self._socket is None:
                return self._told(failure, batch)
            self._refused += 1  # and dropped by the kernel: the next call is about the next packet
        return 0

    def _told(self, failure: int, batch: Batch) -> int:
        """The errno of a read, or what the kernel keeps silent about: that a device was deleted.

        A socket is told when its interface goes down, but no more of one that is down.
        """
        if len(batch):
            self._down = False
        elif failure:
            self._down = True
        elif self._down and self._socket is not None and is_gone(self._descriptor):
            return errno.ENODEV
        return failure

    def _fail(self, number: int) -> NoReturn:
        if self._socket is not None:
            raise self._socket.failure(self._descriptor, number)
        super()._fail(number)

    def _release_more(self) -> None:
        try:
            super()._release_more()
        finally:
            self._count_drops()


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a socket's messages are like.

    control_size: bytes of the control messages that come with one, CMSG_SPACE of each. largest:
    bytes of the largest frame that is a single packet, where no virtio_net_hdr tells; 0 for any.
    ends: whether an empty message is the end.
    """

    name: str
    link: Link | None = None
    vnet_size: int = 0
    trust: bool = False
    control_size: int = 0
    largest: int = 0
    interface: int = 0
    ends: bool = False


def _kind_of(source: PacketSocket | socket.socket, vnet_size: int, trust: bool) -> _Kind:
    if isinstance(source, PacketSocket):
        if vnet_size or trust:
            raise ConfigError(
                "vnet_size" if vnet_size else "trust",
                "a packet socket says itself what is in front of its packets",
            )
        sizes = [_AUXDATA_SIZE] * source.auxdata + [_TIMESPEC_SIZE] * source.timestamps
        link_header = _ETHERNET_HEADER if source.link == "ethernet" else 0
        return _Kind(
            source.name,
            link=source.link,
            vnet_size=source.vnet_size,
            trust=True,
            control_size=sum(native.CMSGHDR + native.cmsg_align(size) for size in sizes),
            largest=0 if source.vnet_size else source.mtu + link_header,
            interface=source.index,
        )
    name = f"socket {source.fileno()}"
    require_linux(name)
    if source.type not in {socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW}:
        raise ConfigError("source", f"{name} does not keep the boundaries of packets")
    ends = source.type == socket.SOCK_SEQPACKET
    return _Kind(name, vnet_size=vnet_size, trust=bool(trust), ends=ends)
