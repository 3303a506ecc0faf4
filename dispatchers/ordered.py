"""Words that another processor writes or reads at the same time, loaded and stored in order.

Whoever sees a word by `load32` also sees what was written before it; what was read before
`store32` was read before others see its word. The compiled functions are those of ``_ordered.h``;
this twin, which is never compiled, relies on what an interpreter does between two instructions.
"""

from netstack_gro.dispatchers import native

__all__ = ["load32", "store32"]


def load32(base: native.Memory, at: int) -> int:
    """The unsigned 32 bits at ``at``, before anything that is read afterwards."""
    return native.u32(base, at)


def store32(base: native.Memory, at: int, value: int) -> None:
    """Store unsigned 32 bits, after everything that was read or written before."""
    native.put32(base, at, value)
