"""Packets that come one per read(2), read into the slab of a batch until there are no more."""

from netstack_gro import records
from netstack_gro.batch import Batch
from netstack_gro.dispatchers import frames, native
from netstack_gro.dispatchers.messages import check_places
from netstack_gro.errors import EngineStateError

__all__ = ["Reads"]

AGAIN = 11  # EAGAIN, include/uapi/asm-generic/errno-base.h
INTERRUPTED = 4  # EINTR

TUN_PI = 4  # struct tun_pi, include/uapi/linux/if_tun.h


class Reads:
    """Reads(capacity, stride, vnet_size, trust): how packets are read and described.

    capacity: packets that are read at once, at most. stride: bytes from one packet's place in
    the slab to the next's; a packet that fills all of it was cut off. vnet_size: bytes of the
    virtio_net_hdr in front of each packet, 0, 10 or 12; or 4 of a struct tun_pi, which is not
    trusted. trust: whether that header is believed; otherwise it is taken off and not looked at.
    """

    __slots__ = ("_capacity", "_lengths", "_runts", "_stride", "_truncated", "_trust", "_vnet")

    _capacity: int
    _lengths: list[int]
    _runts: int
    _stride: int
    _trust: bool
    _truncated: int
    _vnet: int

    def __init__(self, capacity: int, stride: int, vnet_size: int, trust: bool) -> None:
        if self._lengths:
            raise EngineStateError("it is initialised once")
        check_places(capacity, stride, 0 if vnet_size == TUN_PI and not trust else vnet_size)
        self._lengths = records.indices(capacity)
        self._capacity = capacity
        self._stride = stride
        self._vnet = vnet_size
        self._trust = trust

    def __dealloc__(self) -> None:
        records.release(self._lengths)

    @property
    def runts(self) -> int:
        """Packets that were shorter than their virtio_net_hdr, and so are none."""
        return self._runts

    @property
    def truncated(self) -> int:
        """Packets that were cut off: they filled their place."""
        return self._truncated

    def fill(self, descriptor: int, batch: Batch) -> int:
        """Read packets into an empty batch, whose slab has ``capacity * stride`` bytes.

        Raises ValueError where it is not empty, has fewer, or cannot be written to.

        Returns why it stopped: 0 where the batch is full or there was no more to read, the errno
        of a read that failed, or -1 at the end of the source.
        """
        if type(batch) is not Batch:
            raise TypeError(f"a batch is required, not {type(batch).__name__!r}")
        if not self._capacity:
            raise EngineStateError("it was not initialised")
        if batch.slab is not None and memoryview(batch.slab).readonly:
            raise ValueError("the batch's slab cannot be written to")
        return self._fill(descriptor, batch)

    def _fill(self, descriptor: int, batch: Batch) -> int:
        if (
            batch._count
            or batch._limit < self._capacity
            or batch._size < self._capacity * self._stride
        ):
            raise ValueError("the batch is not empty, or too small")
        base = records.writable(batch._base)
        done = native.read_many(descriptor, base, self._stride, self._capacity, self._lengths)
        for index in range(done):
            got = self._lengths[index]
            at = index * self._stride
            if got < self._vnet:
                self._runts += 1
                continue
            slot = batch._place(at + self._vnet, got - self._vnet)
            if got == self._stride:
                slot.wire_length += 1  # by how much it was longer, nobody knows
                self._truncated += 1
            if self._trust and self._vnet:
                frames.describe(slot, base, at)
        if done == self._capacity:
            return 0
        failure = -self._lengths[done]
        if failure == 0:
            return -1
        return 0 if failure == AGAIN or failure == INTERRUPTED else failure


records.seal(Reads, ("_capacity", "_runts", "_stride", "_truncated", "_vnet"), ("_lengths",))
