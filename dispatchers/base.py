"""The contract that all dispatchers keep.

A packet dispatcher owns what it reads from, a preallocated `Batch` and one engine. It reads a
batch, has it merged, and the engine's flush hands the result to the hook before the next read:
nothing is held in between. One thread runs it, and there is neither lock nor timer.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from netstack_gro.errors import EngineStateError
from netstack_gro.gro import GroDispatcher
from netstack_gro.stats import Stats, shown

__all__ = ["Dispatcher", "DispatcherStats", "Source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatcherStats:
    """What a dispatcher has done since it was made.

    engine: the counters of its engine; of all its engines together where it has several.
    truncated: packets of which the source gave fewer bytes than they had.
    dropped: packets that the source itself lost before they were read, by its own count.

    Its repr leaves out counters that are 0.
    """

    engine: Stats = field(default_factory=Stats)
    truncated: int = 0
    dropped: int = 0

    def __repr__(self) -> str:
        return shown(self)

    def __init_subclass__(cls) -> None:
        # Before `dataclass` sees the class, which would give it a repr of its own.
        cls.__repr__ = DispatcherStats.__repr__  # type: ignore[method-assign]


class Source(ABC):
    """Reads batches and delivers them to a hook. A context manager; leaving it closes it.

    A subclass implements `exhausted`, `_read_once` and `_release`, and `_wake` where a read of it
    may wait.
    """

    __slots__ = ("_closed", "_stopping")

    def __init__(self) -> None:
        self._closed = False
        self._stopping = False

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether the source has ended, and all that was read from it has been delivered."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def dispatch_once(self, timeout: float | None = None) -> int:
        """Read one batch, merge it and deliver it; how many packets it had.

        timeout: seconds to wait for a first packet at most; None: until there is one or `stop`
        is called. 0 packets mean that the time was up, that it was stopped, or `exhausted`.

        What the hook raises propagates, and counts as delivered; so does what the source raises,
        after the packets that it gave before have been delivered. Raises EngineStateError after
        `close`.
        """
        if self._closed:
            raise EngineStateError("the dispatcher is closed")
        count = self._read_once(timeout)
        if not count:
            self._stopping = False  # a stop is used up by the call that it ends
        return count

    def run(self) -> int:
        """Dispatch until `stop` is called or the source is exhausted; how many packets.

        A call of `stop` before `run` ends it at once, and is used up by it; `close` by another
        thread ends it as well.
        """
        if self._closed:
            raise EngineStateError("the dispatcher is closed")
        count = 0
        try:
            while not (self._stopping or self.closed or self.exhausted):
                count += self._read_once(None)
        finally:
            self._stopping = False
        return count

    def stop(self) -> None:
        """End `run` after the batch at hand, or a `dispatch_once` that waits.

        From any thread, a signal handler or the hook.
        """
        self._stopping = True
        self._wake()

    def close(self) -> None:
        """Give back the source and close the engine. Closing again does nothing."""
        if not self._closed:
            self._closed = True
            self._release()

    @abstractmethod
    def _read_once(self, timeout: float | None) -> int:
        """`dispatch_once` of a dispatcher that is open."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of the source and the engine, once."""

    def _wake(self) -> None:  # noqa: B027 - nothing to do where no read waits
        """End a read that waits. Safe in a signal handler and from any thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Dispatcher(Source):
    """A source of packets, which its engine merges."""

    __slots__ = ()

    @property
    @abstractmethod
    def gro(self) -> GroDispatcher:
        """The engine."""

    @property
    @abstractmethod
    def stats(self) -> DispatcherStats:
        """A snapshot of the counters; also after `close`."""
