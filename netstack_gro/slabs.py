"""Memory that must not be overwritten while somebody still looks at it.

CPython refuses to resize a bytearray while a view of it exists; that refusal is how a pinned
slab is recognised, without counting anything on the way of a packet.
"""

from netstack_gro.errors import PinnedError

__all__ = ["SlabPool", "is_pinned"]


def is_pinned(slab: bytearray) -> bool:
    """Whether a view of ``slab`` exists. The caller holds none itself; the bytes stay in place."""
    if not slab:
        return False
    last = slab[-1]
    try:
        slab.pop()
    except BufferError:
        return True
    slab.append(last)
    return False


class SlabPool:
    """Slabs of one size, one of them in use: a pinned one is set aside, never overwritten.

    At most ``limit`` slabs exist at once, the one in use included. ``replaced`` counts how often
    another had to take the place of the one in use.
    """

    __slots__ = ("_aside", "current", "limit", "replaced", "size")

    def __init__(self, first: bytearray, limit: int) -> None:
        self.current: bytearray = first
        self.limit: int = limit
        self.size: int = len(first)
        self.replaced: int = 0
        self._aside: list[bytearray] = []

    def renew(self) -> bytearray:
        """A slab of which no view exists, from now on the one in use.

        The caller has released its own view. Raises PinnedError where all ``limit`` are pinned;
        the slab in use stays in use then.
        """
        if len(self.current) != self.size:  # a signal came in the middle of `is_pinned`
            self.current = bytearray(self.size)
            self.replaced += 1
            return self.current
        if not is_pinned(self.current):
            return self.current
        # What a view of a slab exposes (memoryview.obj) may have been resized when it was gone.
        self._aside = [slab for slab in self._aside if len(slab) == self.size]
        for position, slab in enumerate(self._aside):
            if not is_pinned(slab):
                self._aside[position], self.current = self.current, slab
                self.replaced += 1
                return slab
        if len(self._aside) + 1 >= self.limit:
            raise PinnedError(
                f"views kept by the hook pin all {self.limit} slabs of {self.size} bytes; "
                "use Packet.detach() to keep bytes, or raise max_slabs"
            )
        self._aside.append(self.current)
        self.current = bytearray(self.size)
        self.replaced += 1
        return self.current
