"""What stands behind an engine: a callable that takes one flush at a time.

A plain callable takes what `GroConfig` says. A sink also says what it can take, as ``limits``.
"""

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from netstack_gro.config import Limits
    from netstack_gro.packet import Packet

__all__ = ["Hook", "Sink"]


class Hook(Protocol):
    """Takes what one flush delivers.

    It is called once per flush that delivers something, with packets in the arrival order of
    their first input. The bytes of a packet are readable until the hook returns, its numbers
    afterwards too; `Packet.detach` is how to keep the bytes. What it returns is ignored, what it
    raises reaches the caller of ``dispatch`` or ``flush`` after the engine has reset itself.
    It must not call back into the engine that called it (EngineStateError).
    """

    def __call__(self, packets: "list[Packet]", /) -> object:
        """Take ``packets``; the list is the callee's own."""


@runtime_checkable
class Sink(Hook, Protocol):
    """A hook that says what it can take; against the engine's `GroConfig` the stricter wins."""

    @property
    def limits(self) -> "Limits":
        """What the sink can take now. Read at every batch: replace it to withdraw merging."""
        ...
