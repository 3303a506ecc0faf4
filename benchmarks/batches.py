"""Packets in a slab, as a dispatcher's read leaves them there, and a hook that does nothing."""

from collections.abc import Sequence

from netstack_gro import Batch, Packet

__all__ = ["SLOT", "batch_of", "ignore", "ring_of"]

SLOT = 2048  # bytes from one packet to the next


def batch_of(packets: Sequence[bytes]) -> Batch:
    """A batch of the packets, in a slab of their own."""
    return _batch(bytearray(SLOT * len(packets)), 0, packets)


def ring_of(packets: Sequence[bytes], size: int) -> list[Batch]:
    """As many batches of the packets as fit one slab of ``size`` bytes, one behind the other."""
    slab = bytearray(size)
    step = SLOT * len(packets)
    return [_batch(slab, start, packets) for start in range(0, size - step + 1, step)]


def ignore(packets: list[Packet]) -> None:
    """The hook."""


def _batch(slab: bytearray, start: int, packets: Sequence[bytes]) -> Batch:
    batch = Batch(slab, capacity=len(packets))
    for number, packet in enumerate(packets):
        at = start + number * SLOT
        slab[at : at + len(packet)] = packet
        batch.add(at, len(packet))
    return batch
