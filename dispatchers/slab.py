"""What the dispatchers that read into a slab have in common: sizes, the batch, one dispatch."""

from abc import abstractmethod
from dataclasses import dataclass, replace

from netstack_gro.batch import Batch
from netstack_gro.config import MAX_IP_LENGTH, GroConfig, Link, within
from netstack_gro.dispatchers.base import DispatcherStats
from netstack_gro.dispatchers.live import LiveDispatcher
from netstack_gro.errors import ConfigError, PinnedError
from netstack_gro.gro import GroDispatcher
from netstack_gro.hook import Hook

__all__ = ["LIVE_CAPACITY", "LiveStats", "SlabDispatcher", "live_config", "stride_of"]

LIVE_CAPACITY = 64
"""Packets in a batch unless the configuration says otherwise: what one poll of a Linux device
gives at most (NAPI_POLL_WEIGHT, include/linux/netdevice.h)."""

MAX_LINK_HEADER = 22  # Ethernet and two VLAN tags
IPV6_HEADER = 40  # RFC 8200 section 3

VNET_SIZES = (0, 10, 12)  # struct virtio_net_hdr; without, or with num_buffers

MAX_FRAME_SIZE = 1 << 20
_LINE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStats(DispatcherStats):
    """`DispatcherStats` of a dispatcher that reads into a slab.

    runts: what was read and was no packet, being shorter than its virtio_net_hdr.
    slabs_replaced: how often a view that the hook kept had the slab replaced.
    """

    runts: int = 0
    slabs_replaced: int = 0


def live_config(config: GroConfig | None, link: Link | None = None) -> GroConfig:
    """The configuration to use: the one given, or the defaults; for ``link``, where it is known."""
    if config is None:
        config = GroConfig(capacity=LIVE_CAPACITY)
    elif not isinstance(config, GroConfig):
        raise TypeError(f"config: a GroConfig is required, not {type(config).__name__!r}")
    return config if link is None or link == config.link else replace(config, link=link)


def stride_of(frame_size: int | None, vnet_size: int, prefix: int = 0) -> int:
    """Bytes from one packet's place in a slab to the next's.

    frame_size: bytes of the largest packet, its link header included; None: what the largest IP
    packet has with the largest link header (the length in an IPv6 header does not count that
    header). prefix: bytes in front that are neither the packet's nor a virtio_net_hdr. There is one
    more byte, which only a packet that was cut off fills. The places are an odd number of cache
    lines apart, or the headers of all packets would compete for the same few sets of the cache.
    """
    if frame_size is None:
        frame_size = IPV6_HEADER + MAX_IP_LENGTH + MAX_LINK_HEADER
    else:
        frame_size = within("frame_size", frame_size, 1, MAX_FRAME_SIZE)
    if vnet_size not in VNET_SIZES:
        raise ConfigError("vnet_size", f"{vnet_size!r} is none of 0, 10 and 12")
    lines = -(-(vnet_size + prefix + frame_size + 1) // _LINE)
    return (lines | 1) * _LINE


class SlabDispatcher(LiveDispatcher):
    """Reads packets into a slab, has them merged, and uses the slab again.

    A subclass implements `_fill`, and `_aim` where it must know of another slab.
    """

    __slots__ = ("_batch", "_failure", "_gro", "_spent")

    def __init__(
        self, descriptor: int, name: str, hook: Hook, config: GroConfig, stride: int
    ) -> None:
        self._gro = GroDispatcher(hook, config)
        self._batch = Batch(
            bytearray(config.capacity * stride),
            capacity=config.capacity,
            max_slabs=config.max_slabs,
        )
        self._failure = 0
        self._spent = False  # the delivery of what is in the batch has begun
        self._aim(self._batch)
        super().__init__(descriptor, name)

    @property
    def gro(self) -> GroDispatcher:
        """The engine."""
        return self._gro

    @abstractmethod
    def _fill(self, batch: Batch) -> int:
        """Read packets into the empty batch; the errno of what ended that, 0 for nothing."""

    def _aim(self, batch: Batch) -> None:
        """Read into the slab of ``batch`` from now on."""

    def _receive(self) -> int:
        # What was read and not delivered waits: for space, or as a signal came between.
        if self._spent or not len(self._batch):
            self._read()
        count = len(self._batch)
        if count:
            self._deliver()
        elif self._failure:  # after packets it waits for their delivery
            failure, self._failure = self._failure, 0
            self._fail(failure)
        return count

    def _read(self) -> None:
        """Read a batch, unless a failure is still to be told."""
        self._batch.recycle()
        self._spent = False
        self._aim(self._batch)  # also the same slab may have come back at another address
        if not self._failure:
            self._failure = self._fill(self._batch)

    def _deliver(self) -> None:
        """Dispatch the batch, which is not empty."""
        gro = self._gro
        if gro.pending:  # by the program itself
            gro.flush()
        before = gro._packets_in
        self._spent = True
        try:
            gro.dispatch(self._batch)
        except PinnedError:
            # An engine that has no space for headers takes nothing: the batch waits until it has.
            self._spent = gro._packets_in != before
            raise
        finally:
            if self._spent:
                self._batch.clear()
