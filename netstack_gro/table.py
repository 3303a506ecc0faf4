"""FlowTable: from a packet's flow to the latest head of it.

Open addressing in a table that is at most half full, with full comparison of the key and a
random seed per engine: nothing is ever evicted, and results do not depend on the seed. A new
generation empties it at once.
"""

import os

from netstack_gro import headers, records, wire

# TPID and VLAN ID, IEEE 802.1Q: priority and DEI are no part of the flow.
VLAN_KEY = 0xFFFF0FFF
GENERATIONS = 2**32 - 1


class FlowTable:
    """The flows of one batch. ``heads`` numbers of `attach` are what it holds."""

    __slots__ = (
        "_buckets",
        "_digest",
        "_generation",
        "_heads",
        "_last",
        "_layout",
        "_mask",
        "_position",
        "_seed",
        "_stir",
    )

    _buckets: list[records.Bucket]
    _digest: int
    _generation: int
    _heads: list[records.Head]
    _last: int
    _layout: int
    _mask: int
    _position: int
    _seed: int
    _stir: int

    def __init__(self, layout: int, capacity: int) -> None:
        places = 1 << (2 * capacity - 1).bit_length()  # at most half full
        self._buckets = records.buckets(places)
        self._mask = places - 1
        self._layout = layout
        seed = os.urandom(24)
        self._seed = int.from_bytes(seed[:8], "big")
        self._stir = int.from_bytes(seed[8:16], "big")
        self._last = int.from_bytes(seed[16:], "big") | 1
        self._generation = 1
        self._position = 0
        self._digest = 0

    def __dealloc__(self) -> None:
        records.release(self._buckets)

    def attach(self, heads: list[records.Head]) -> int:
        """Take the array that the numbers in the table are positions in."""
        self._heads = heads
        return 0

    def find(self, slot: records.Slot, parsed: records.Parsed) -> int:
        """The number of the latest head of a packet's flow, or -1.

        The packet's place, or the free one it would take, is noted for `enter`.
        """
        digest = self._seed
        if slot.interface or slot.vlan:
            digest = wire.mix(digest ^ slot.interface, self._stir ^ (slot.vlan & VLAN_KEY))
        digest = headers.flow_digest(
            self._layout, slot.base, slot.offset, parsed, digest, self._stir
        )
        # One product leaves flows that differ in one field at equal distances; a second does not.
        digest = wire.mix(digest, self._last)
        key = digest & wire.MASK32
        position = key & self._mask
        self._digest = key
        while True:
            bucket = records.bucket_at(self._buckets, position)
            if bucket.generation != self._generation:
                self._position = position
                return -1
            if bucket.digest == key:
                head = records.head_at(self._heads, bucket.head)
                if (
                    head.interface == slot.interface
                    and not (head.vlan ^ slot.vlan) & VLAN_KEY
                    and headers.same_flow(self._layout, head, slot.base, slot.offset, parsed)
                ):
                    self._position = position
                    return bucket.head
            position = position + 1 & self._mask

    def enter(self, number: int) -> int:
        """Make a head the latest of the flow that `find` was asked for last."""
        bucket = records.bucket_at(self._buckets, self._position)
        bucket.generation = self._generation
        bucket.digest = self._digest
        bucket.head = number
        return 0

    def empty(self) -> int:
        """Forget all flows."""
        self._generation += 1
        if self._generation == GENERATIONS:
            self._generation = 1
            for position in range(self._mask + 1):
                bucket = records.bucket_at(self._buckets, position)
                bucket.generation = 0
        return 0
