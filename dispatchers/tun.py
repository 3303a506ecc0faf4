"""TunDispatcher: reads a TUN or TAP device, the kernel's own super-packets included."""

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.dispatchers.live import named_failures, require_linux
from netstack_gro.dispatchers.readv import ReadvDispatcher
from netstack_gro.dispatchers.slab import LiveStats, live_config
from netstack_gro.dispatchers.tun_device import TunDevice
from netstack_gro.gro import GroDispatcher
from netstack_gro.hook import Hook
from netstack_gro.packet import Packet

__all__ = ["TunDispatcher"]


class TunDispatcher(ReadvDispatcher):
    """Reads one queue of a TUN or TAP device, a packet per read(2), until there are no more.

    device: a `TunDevice`, which stays the caller's to close (the dispatcher reads through a
        descriptor of its own, so that others may write to the device for as long as they like);
        or a name, whose TUN device is opened with all offloads and closed by `close`.
    hook: takes each batch's result.
    config: for the engine; its link layer is that of the device, its capacity that of the batch.
        None: the defaults, with a capacity of 64.
    split: have the kernel's super-packets cut to wire packets with complete checksums, and merge
        nothing: for a consumer that wants neither.
    frame_size: bytes of the largest packet, without virtio_net_hdr; None: 65,535 and the largest
        link header, which no super-packet of a kernel exceeds. What is longer is cut off by the
        kernel; it is delivered unmerged and counted.

    A super-packet of the kernel is delivered as such, with its ``gso_size``. Checksums that the
    kernel left partial are completed, those of small packets too, unless ``config`` has
    ``delivered_checksums`` partial.

    While the interface is down there is nothing to read. DeviceGoneError when it was deleted; a
    device that does not persist goes with its last descriptor.
    """

    __slots__ = ("_cutter", "_device", "_owns_device")

    def __init__(
        self,
        device: TunDevice | str,
        hook: Hook,
        config: GroConfig | None = None,
        *,
        split: bool = False,
        frame_size: int | None = None,
    ) -> None:
        self._owns_device = isinstance(device, str)
        if isinstance(device, str):
            require_linux(device)
            device = TunDevice(device)
        self._device = device
        self._cutter: _Cutter | None = None
        try:
            settings = live_config(config, device.link)
            if split:
                settings = replace(settings, tcp=False, udp=False)
                hook = self._cutter = _Cutter(hook, settings)
            with named_failures(device.name, "cannot be opened"):
                descriptor = os.dup(device.fileno())
            super().__init__(
                descriptor,
                hook,
                settings,
                vnet_size=device.vnet_size,
                trust=True,  # it is the kernel that wrote the header
                frame_size=frame_size,
                name=device.name,
            )
        except BaseException:
            if self._owns_device:
                device.close()
            raise

    @classmethod
    def open_queues(
        cls,
        name: str | None,
        hooks: Iterable[Hook],
        config: GroConfig | None = None,
        *,
        split: bool = False,
        **options: Any,
    ) -> list[Self]:
        """A device with a queue and a dispatcher for each hook; each closes its own queue.

        The kernel sends every flow to one of the queues, so each hook sees whole flows.

        options: those of `TunDevice`. Raises as it does, with nothing left open.
        """
        opened: list[Self] = []
        try:
            first: TunDevice | None = None
            for hook in hooks:
                if first is None:
                    device = first = TunDevice(name, multi_queue=True, **options)
                else:
                    device = first.open_queue()
                try:
                    dispatcher = cls(device, hook, config, split=split)
                except BaseException:
                    device.close()
                    raise
                dispatcher._owns_device = True
                opened.append(dispatcher)
        except BaseException:
            for dispatcher in opened:
                dispatcher.close()
            raise
        return opened

    @property
    def device(self) -> TunDevice:
        """The device, to write to it for example."""
        return self._device

    @property
    def gro(self) -> GroDispatcher:
        """The engine; with ``split`` the one that hands the wire packets on."""
        return self._gro if self._cutter is None else self._cutter.gro

    @property
    def stats(self) -> LiveStats:
        """A snapshot of the counters; also after `close`."""
        stats = super().stats
        return stats if self._cutter is None else replace(stats, engine=self._cutter.gro.stats)

    def _release_more(self) -> None:
        try:
            super()._release_more()
        finally:
            if self._owns_device:
                self._device.close()


class _Cutter:
    """A hook that hands wire packets to another one, through an engine that merges nothing."""

    __slots__ = ("gro",)

    def __init__(self, hook: Hook, config: GroConfig) -> None:
        self.gro = GroDispatcher(hook, config)

    def __call__(self, packets: list[Packet], /) -> None:
        gro = self.gro
        for packet in packets:
            if packet.gso_size:
                for piece in packet.segments():
                    gro.enqueue(piece, checksum=ChecksumState.VERIFIED)
            else:
                gro.enqueue(
                    bytes(packet),
                    wire_length=packet.wire_length,
                    checksum=packet.checksum,
                    virtio=packet.virtio_header(),
                )
        gro.flush()
