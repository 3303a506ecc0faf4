"""ReadvDispatcher: any descriptor that yields a packet per read."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from netstack_gro.batch import Batch
from netstack_gro.config import GroConfig, within
from netstack_gro.dispatchers.live import require_linux
from netstack_gro.dispatchers.reads import TUN_PI, Reads
from netstack_gro.dispatchers.slab import LiveStats, SlabDispatcher, live_config, stride_of
from netstack_gro.errors import ConfigError
from netstack_gro.hook import Hook

if TYPE_CHECKING:
    import socket

__all__ = ["ReadvDispatcher"]


class ReadvDispatcher(SlabDispatcher):
    """Reads packets from a descriptor, one per read(2), until there are no more or a batch is full.

    descriptor: of a TUN device, a packet pipe (O_DIRECT), a datagram or seqpacket socket, or
        whatever else keeps the boundaries of packets; an integer, or an object that gives its
        own up by ``detach()``. The dispatcher owns it from now on, also where it cannot be made.
    hook: takes each batch's result.
    config: for the engine; its link layer is that of the packets, its capacity that of the batch.
        None: the defaults, with a capacity of 64.
    vnet_size: bytes of the struct virtio_net_hdr in front of each packet, in native byte order:
        0, 10 or 12.
    prefix: bytes in front of each packet that are skipped, 0 or 4: the struct tun_pi of a TUN
        device that somebody opened without IFF_NO_PI. Not together with ``vnet_size``.
    trust: whether that header is believed. Only where the kernel or this program itself wrote it:
        a peer that is believed decides what is merged as verified.
    frame_size: bytes of the largest packet, without virtio_net_hdr; None: 65,535 and the largest
        link header. What is longer is cut off by the kernel; it is delivered unmerged, with a
        `Packet.wire_length` above its length, and counted.
    name: of the device, for messages.

    A read of 0 bytes is the end of the source (`exhausted`). Reading errors raise DeviceError
    after the packets read before have been delivered, ConfigError and TypeError what cannot be.
    """

    __slots__ = ("_ended", "_reads")

    def __init__(
        self,
        descriptor: "int | socket.socket",
        hook: Hook,
        config: GroConfig | None = None,
        *,
        vnet_size: int = 0,
        prefix: int = 0,
        trust: bool = False,
        frame_size: int | None = None,
        name: str | None = None,
    ) -> None:
        number = _given_up(descriptor)
        if name is None:
            name = f"descriptor {number}"
        try:
            require_linux(name)
            settings = live_config(config)
            stride = stride_of(frame_size, vnet_size, _skipped(prefix, vnet_size))
            self._ended = False
            trusted = bool(trust and vnet_size)
            self._reads = Reads(settings.capacity, stride, vnet_size + prefix, trusted)
            super().__init__(number, name, hook, settings, stride)
        except BaseException:
            with suppress(OSError):  # it may not have been open at all
                os.close(number)
            raise

    @property
    def exhausted(self) -> bool:
        """Whether a read has met the end of the source."""
        return self._ended

    @property
    def stats(self) -> LiveStats:
        """A snapshot of the counters; also after `close`."""
        return LiveStats(
            engine=self._gro.stats,
            truncated=self._reads.truncated,
            runts=self._reads.runts,
            slabs_replaced=self._batch.slabs_replaced,
        )

    def _fill(self, batch: Batch) -> int:
        failure = self._reads.fill(self._descriptor, batch)
        if failure == -1:
            self._ended = True
            return 0
        return failure


def _skipped(prefix: int, vnet_size: int) -> int:
    if within("prefix", prefix, 0, TUN_PI) and (prefix != TUN_PI or vnet_size):
        raise ConfigError("prefix", f"{prefix} is neither 0 nor {TUN_PI}, without a vnet_size")
    return prefix


def _given_up(descriptor: object) -> int:
    """The number of a descriptor, whose former owner has it no more."""
    if isinstance(descriptor, int):
        return within("descriptor", descriptor, 0, 2**31 - 1)
    detach = getattr(descriptor, "detach", None)
    number = detach() if callable(detach) else None
    if not isinstance(number, int):  # -1 of a closed one is told as what is not open
        raise TypeError(
            "descriptor: an integer, or an object whose detach() gives one, is required, "
            f"not {type(descriptor).__name__!r}"
        )
    return number
