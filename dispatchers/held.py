"""Whether somebody still holds memory that is to be overwritten: asked differently at each speed.

The compiled dispatchers hand out objects of their own, which refer to the buffer they lie in, and
count the references to it; ``held.pxd`` is that side of this module, which is never compiled. No
class written in Python can offer the buffer protocol on every version, so the interpreted ones
hand out memoryviews, and a bytearray tells by itself whether there is one.
"""

from typing import Any

from netstack_gro.slabs import is_pinned

__all__ = ["COMPILED", "Lock", "is_held", "lent", "locked", "unlock"]

COMPILED = False

Lock = memoryview | None


def lent(buffer: bytearray) -> Any:
    """What objects that lie in ``buffer`` refer to: a read-only view (itself in compiled code)."""
    return memoryview(buffer).toreadonly()


def locked(buffer: bytearray) -> Lock:
    """Keep ``buffer`` from being resized while the kernel has its address."""
    return memoryview(buffer)


def unlock(lock: Lock) -> None:
    """Undo `locked`, so that `is_held` sees only what others hold."""
    if lock is not None:
        lock.release()


def is_held(buffer: bytearray, known: int) -> bool:
    """Whether somebody refers to ``buffer`` or to objects in it, beyond ``known`` references."""
    del known
    return is_pinned(buffer)
