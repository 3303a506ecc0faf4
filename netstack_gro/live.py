"""Live: a dispatcher whose hook only counts, run in one thread that also shows the counts.

    with observe_interface("eth0") as live:
        total = live.run(lambda sample, total: print(sample.to_json()), duration=10)

It is what the command ``netstack-gro live`` does. Samples are taken and shown between two calls
of the dispatcher's `dispatch_once`: there is no other thread, and no lock.
"""

import errno
import math
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from types import TracebackType
from typing import Any, Protocol, Self

from netstack_gro.config import GroConfig
from netstack_gro.dispatchers.interfaces import Interface
from netstack_gro.dispatchers.packet_socket import open_packet_socket
from netstack_gro.dispatchers.recvmmsg import RecvMmsgDispatcher
from netstack_gro.dispatchers.ring import DEFAULT_CAPACITY, PacketRingDispatcher
from netstack_gro.dispatchers.slab import LIVE_CAPACITY
from netstack_gro.dispatchers.tun import TunDispatcher
from netstack_gro.dispatchers.tun_device import TunDevice, TunKind, TunOffloads
from netstack_gro.dispatchers.udp import UdpDispatcher
from netstack_gro.errors import DeviceDownError, DeviceError
from netstack_gro.probe.netlink import unsent
from netstack_gro.samples import Meter, PacketMeter, Sample, TrainMeter

__all__ = ["Live", "observe_interface", "observe_tun", "observe_udp"]

RECEIVE_BUFFER = 8 << 20
"""Bytes that may wait while a sample is shown, where the system permits that many."""


class Running(Protocol):
    """What is needed of a dispatcher."""

    @property
    def name(self) -> str:
        """The device's name."""

    @property
    def stats(self) -> Any:
        """A snapshot of its counters; also after `close`."""

    @property
    def exhausted(self) -> bool:
        """Whether there will be nothing more."""

    def dispatch_once(self, timeout: float | None = None) -> int:
        """Read one batch and deliver it."""

    def stop(self) -> None:
        """End a `dispatch_once` that waits."""

    def close(self) -> None:
        """Let go of the source."""


class Live:
    """A dispatcher, and the meter that is its hook. A context manager; leaving it closes both.

    kind: how packets are read: "recvmmsg", "ring", "tun" or "udp".
    """

    def __init__(self, kind: str, dispatcher: Running, meter: Meter) -> None:
        self.kind = kind
        self.dispatcher = dispatcher
        self.failure: DeviceError | None = None
        """What ended `run` before it was stopped, or None."""
        self._meter = meter
        self._stopped = False

    @property
    def name(self) -> str:
        """The device's name."""
        return self.dispatcher.name

    def stop(self) -> None:
        """End `run`, or the next one. From any thread or a signal handler."""
        self._stopped = True
        self.dispatcher.stop()

    def run(
        self,
        show: Callable[[Sample, Sample], object],
        *,
        every: float = 1.0,
        duration: float | None = None,
        notice: Callable[[str], object] | None = None,
    ) -> Sample:
        """Dispatch until `stop` is called, the time is up or the device is gone; the total.

        show: called once per ``every`` seconds, and at the end, with what came since it was
        called last, and with what came since the beginning. duration: seconds. notice: called
        with what happens in between, in words.

        What ``show`` and ``notice`` raise propagates. A device that goes down is waited for, one
        that fails ends the run and is `failure`.
        """
        start = last = now = time.monotonic()
        end = math.inf if duration is None else start + duration
        due = start + every
        while not self._stopped and now < end and not self.dispatcher.exhausted:
            try:
                self.dispatcher.dispatch_once(max(0.0, min(due, end) - now))
            except DeviceDownError as error:
                if notice is not None:
                    notice(f"{error}; its packets are waited for")
            except DeviceError as error:
                self.failure = error
                break
            now = time.monotonic()
            if due <= now < end:
                self._show(show, start, last, now)
                last = now
                due += every * (1 + (now - due) // every)  # without those that were missed
        self._stopped = False
        return self._show(show, start, last, time.monotonic())

    def close(self) -> None:
        """Let go of the device."""
        self.dispatcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _show(
        self, show: Callable[[Sample, Sample], object], start: float, last: float, now: float
    ) -> Sample:
        """Show a sample; the total at the same instant."""
        stats = self.dispatcher.stats
        about = {"source": self.name, "dispatcher": self.kind, "elapsed": now - start}
        sample = self._meter.sample(stats, **about, interval=now - last)
        total = self._meter.total(stats, **about, interval=now - start, summary=True)
        show(sample, total)
        return total


def observe_interface(
    interface: str, *, batch: int | None = None, udp: bool = True, ring: bool = False
) -> Live:
    """Count what an interface receives; the packets themselves go their way, this sees copies.

    batch: packets that are merged together at most; None: as many as the dispatcher has by
    default. udp: whether UDP is merged as well. ring: read through a TPACKET_V3 ring.

    Raises what `RecvMmsgDispatcher` or `PacketRingDispatcher` does.
    """
    meter = PacketMeter()
    if ring:
        config = GroConfig(capacity=batch or DEFAULT_CAPACITY, udp=udp)
        return Live("ring", PacketRingDispatcher(interface, meter, config), meter)
    config = GroConfig(capacity=batch or LIVE_CAPACITY, udp=udp)
    source = open_packet_socket(interface, receive_buffer=RECEIVE_BUFFER)
    return Live("recvmmsg", RecvMmsgDispatcher(source, meter, config), meter)


def observe_tun(
    name: str, *, batch: int | None = None, udp: bool = True, offloads: bool = False
) -> Live:
    """Count what the system sends into a TUN or TAP device, which consumes it.

    name: of a device that exists, of either kind and with one queue or several, or of a TUN device
    to make. It is gone when this is closed, unless it is persistent. offloads: have the kernel
    send super-packets and partial checksums of its own; a persistent device keeps the setting.

    Raises what `TunDevice` does.
    """
    config = GroConfig(capacity=batch or LIVE_CAPACITY, udp=udp)
    with _attach(name, None if offloads else TunOffloads.none()) as device:
        meter = PacketMeter(_Unsent(Interface.find(device.name).index))
        # It reads through a descriptor of its own.
        return Live("tun", TunDispatcher(device, meter, config), meter)


class _Unsent:
    """What a TUN device has dropped because its queue was full; its descriptor does not tell."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._start = unsent(index)
        self._last = self._start

    def __call__(self) -> int:
        with suppress(OSError):  # it may be gone
            self._last = unsent(self._index)
        return self._last - self._start


def _attach(name: str, offloads: TunOffloads | None) -> TunDevice:
    """The device of that name, of whichever kind it is."""
    first: DeviceError | None = None
    for kind, several in product(_KINDS, (False, True)):
        try:
            return TunDevice(name, kind=kind, multi_queue=several, offloads=offloads)
        except DeviceError as error:
            if error.errno != errno.EINVAL:
                raise
            first = first or error
    assert first is not None
    raise first


_KINDS: tuple[TunKind, ...] = ("tun", "tap")


def observe_udp(address: tuple[str, int], *, batch: int | None = None, gro: bool = True) -> Live:
    """Count the datagrams that are sent to a UDP address, which consumes them.

    address: host and port; an empty host stands for any. batch: trains in one read. gro: have the
    kernel merge where it can.

    Raises what `UdpDispatcher` does.
    """
    meter = TrainMeter()
    options: dict[str, Any] = {} if batch is None else {"batch": batch}
    dispatcher = UdpDispatcher(address, meter, gro=None if gro else False, **options)
    return Live("udp", dispatcher, meter)
