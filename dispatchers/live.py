"""Sources that wait: a descriptor of a running kernel, and how to be woken from waiting for it.

A live source reads first and waits only when there was nothing, with poll(2) on its descriptor
and on an eventfd that `stop` and `close` write to. While it waits it costs nothing: there is no
timer. Errors are `DeviceError`s that name the device.

A signal handler may raise (KeyboardInterrupt) between any two instructions of the main thread.
So what must be undone is undone by its own `finally` and by one around that, each of which may be
the one that is cut short; and letting go can be done again, to do what is left.
"""

import errno
import math
import os
import select
import socket
import sys
import threading
import time
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from netstack_gro.dispatchers.base import Dispatcher, Source
from netstack_gro.dispatchers.interfaces import borrowed_socket
from netstack_gro.errors import (
    DeviceError,
    DeviceGoneError,
    EngineStateError,
    UnsupportedError,
    device_error,
)

__all__ = ["LiveDispatcher", "LiveSource", "named_failures", "require_linux"]

_LOST = 0x08 | 0x10 | 0x20  # POLLERR, POLLHUP, POLLNVAL: include/uapi/asm-generic/poll.h


def require_linux(name: str) -> None:
    """Raise UnsupportedError, naming what was to be opened, on any other system."""
    if sys.platform != "linux":
        raise UnsupportedError(name, 0, f"live dispatchers need Linux, this is {sys.platform}")


@contextmanager
def named_failures(name: str, doing: str) -> Iterator[None]:
    """Have an OSError that names no device raised as a DeviceError that names this one."""
    try:
        yield
    except DeviceError:
        raise
    except OSError as error:
        raise device_error(name, error, doing) from error


class _Wakeup:
    """An eventfd, closed when the last one who may write to it has let go of it.

    That may be a signal handler or a thread in the middle of `stop` while another closes the
    dispatcher: closed under its hands, the number might already be another file's.
    """

    __slots__ = ("descriptor",)

    def __init__(self) -> None:
        self.descriptor = -1
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def signal(self) -> None:
        """Make it readable."""
        with suppress(BlockingIOError):  # the counter is full, and so it is readable
            os.eventfd_write(self.descriptor, 1)

    def reset(self) -> None:
        """Make it readable no longer."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def __del__(self) -> None:
        if self.descriptor >= 0:  # else there was none to be had
            os.close(self.descriptor)


_TURN = "turn"
_Turn = list[int]
"""Whoever is in a source: its thread, in a list of its own that is told from others by identity."""


class LiveSource(Source):
    """A source behind a descriptor, which it owns: `close` closes it.

    A subclass implements `_receive`, and `_release_more` where it owns more than that.

    descriptor: made non-blocking, which also concerns whoever shares its open file description.
    name: of the device, for messages.
    """

    __slots__ = (
        "_closer",
        "_descriptor",
        "_name",
        "_poll",
        "_released",
        "_suspect",
        "_turns",
        "_using",
        "_wakeup",
    )

    def __init__(self, descriptor: int, name: str) -> None:
        require_linux(name)
        super().__init__()
        self._name = name
        self._descriptor = descriptor
        self._suspect = False
        # Whoever is in here has put its turn there, by a call that no other comes between.
        self._turns: dict[str, _Turn] = {}
        # Held by whoever uses the descriptor without having the turn, and while it is closed.
        self._using = threading.RLock()
        with named_failures(name, "cannot be read"):
            os.set_blocking(descriptor, False)
        with named_failures(name, "cannot be waited for"):
            self._wakeup: _Wakeup | None = _Wakeup()
        self._poll = select.poll()
        self._poll.register(self._wakeup.descriptor, select.POLLIN)
        self._poll.register(descriptor, select.POLLIN)
        # Its first item closes the descriptor, and there is no second: a number that was closed
        # may be another file's.
        self._closer = map(os.close, iter((descriptor,)))
        self._released = False

    @property
    def name(self) -> str:
        """The device's name, as it stands in messages."""
        return self._name

    @property
    def exhausted(self) -> bool:
        """Whether the other side has ended the source. Most never end."""
        return False

    def fileno(self) -> int:
        """The descriptor: readable when `dispatch_once` has something to do.

        Raises EngineStateError after `close`.
        """
        if self._closed:
            raise EngineStateError("the dispatcher is closed")
        return self._descriptor

    @abstractmethod
    def _receive(self) -> int:
        """Read and deliver one batch of what is there, without waiting; how many packets.

        What a read answers goes to `_fail`, but for EAGAIN; what the hook raises propagates.
        """

    def _release_more(self) -> None:
        """Let go of what a subclass owns; called before the descriptor is closed.

        Called again only where a signal handler cut it short.
        """

    def close(self) -> None:
        """Give back the source and close the engine. Closing again does what an exception left."""
        self._closed = True
        if not self._released:
            self._release()

    def _read_once(self, timeout: float | None) -> int:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout: {timeout!r} is not a number of seconds from 0 on")
        turn = [threading.get_ident()]
        try:
            try:
                self._enter(turn)
                return self._await_batch(timeout)
            finally:
                self._leave(turn)
        finally:
            if self._turns or self._closed:  # where a signal cut that short
                self._leave(turn)

    @contextmanager
    def watched(self) -> Iterator[tuple[int, int]]:
        """For event loops: the descriptors to watch for being readable, for as long as it lasts.

        In between the source belongs to the loop, which calls `turn` when one of them is; nobody
        else may enter it, and closing it takes effect at the end.
        """
        turn = [threading.get_ident()]
        try:
            try:
                self._enter(turn)
                wakeup = self._wakeup
                if self._closed or wakeup is None:
                    raise EngineStateError("the dispatcher is closed")
                yield self._descriptor, wakeup.descriptor
            finally:
                self._leave(turn)
        finally:
            self._leave(turn)

    def turn(self, batches: int) -> tuple[int, bool]:
        """Dispatch up to ``batches`` batches of what is there: how many packets, and is it over.

        It is over when `stop` or `close` was called or the source has ended.
        """
        count = 0
        for _ in range(batches):
            if self._stopping or self._closed:
                break
            taken = self._receive()
            count += taken
            if not taken:
                self._look(0)
                break
        over = self._stopping or self._closed or self.exhausted
        if over:
            self._stopping = False
        return count, over

    def _enter(self, turn: _Turn) -> None:
        """Keep others out until `_leave`. Raises where somebody is in, unless it was closed."""
        holder = self._turns.setdefault(_TURN, turn)
        if holder is not turn and not self._closed:
            mine = holder[0] == threading.get_ident()
            raise EngineStateError(
                f"{self._name}: the dispatcher is at work already, "
                + ("called from its own hook?" if mine else "in another thread")
            )

    def _leave(self, turn: _Turn) -> None:
        """Let others in, if ``turn`` kept them out, and let go where it was closed meanwhile."""
        self._yield(turn)
        if self._closed and not self._released:  # by another thread, the hook or the event loop
            self._release()

    def _yield(self, turn: _Turn) -> None:
        if self._turns.get(_TURN) is turn:
            del self._turns[_TURN]

    def _await_batch(self, timeout: float | None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        left = timeout
        while not self._stopping and not self._closed:
            count = self._receive()
            if count or self.exhausted:
                return count
            if left == 0:
                self._look(0)
                return 0
            # poll(2) takes whole milliseconds of 31 bits; rounded down it would return too early.
            ready = self._look(None if left is None else math.ceil(min(left * 1000, 2**31 - 1)))
            if until is not None:
                left = max(0.0, until - time.monotonic())
                if left == 0 and not ready:
                    return 0
        return 0

    def _look(self, milliseconds: int | None) -> bool:
        """Wait until there may be something to do; whether there is. Raises what is wrong."""
        ready = dict(self._poll.poll(milliseconds))
        wakeup = self._wakeup
        if wakeup is not None and wakeup.descriptor in ready:
            wakeup.reset()
        events = ready.get(self._descriptor, 0)
        if not events & _LOST or events & select.POLLIN:
            self._suspect = False
        elif self._suspect or events & select.POLLNVAL:
            self._explain(events)
        else:
            self._suspect = True  # most say themselves what is wrong, when they are read next
        return bool(ready)

    def _fail(self, number: int) -> NoReturn:
        """Raise what an answer of the kernel to a read means; ``number`` is an errno."""
        raise device_error(self._name, number, "cannot be read")

    def _explain(self, events: int) -> NoReturn:
        """Raise what is wrong with a descriptor that can only fail, and whose reads do not tell."""
        self._suspect = False
        if events & select.POLLNVAL:
            raise DeviceGoneError(self._name, errno.EBADF, "its descriptor was closed by others")
        number = _pending_error(self._descriptor)
        if number:
            self._fail(number)
        if events & select.POLLHUP:
            raise DeviceGoneError(self._name, errno.EPIPE, "the other side has gone")
        raise DeviceError(self._name, errno.EIO, "poll(2) reports an error that a read does not")

    def _wake(self) -> None:
        wakeup = self._wakeup
        if wakeup is not None:
            wakeup.signal()

    def _release(self) -> None:
        turn = [threading.get_ident()]
        try:
            try:
                if self._turns.setdefault(_TURN, turn) is turn:
                    self._let_go()
                else:  # whoever is in lets go on its way out
                    self._wake()
            finally:
                self._yield(turn)
        finally:
            self._yield(turn)

    def _let_go(self) -> None:
        if self._released:
            return
        try:
            self._release_more()
        finally:
            self._wakeup = None
            with self._using:
                self._descriptor = -1
                try:
                    next(self._closer, None)
                except OSError as error:
                    if error.errno != errno.EBADF:  # closed by others, which a read has told
                        raise
            self._released = True

    def __del__(self) -> None:
        if getattr(self, "_released", True):  # or it was never made
            return
        try:
            if not self._closed:
                warnings.warn(
                    f"{self._name}: {type(self).__name__} was never closed",
                    ResourceWarning,
                    stacklevel=2,
                    source=self,
                )
        finally:
            self._closed = True
            self._let_go()


class LiveDispatcher(LiveSource, Dispatcher):
    """A live source of packets, with a batch and an engine of its own."""

    __slots__ = ()

    def _release_more(self) -> None:
        self.gro.close()


def _pending_error(descriptor: int) -> int:
    """The error that a socket holds, which this takes; 0 for none, and for what is no socket."""
    try:
        with borrowed_socket(descriptor) as borrowed:
            return borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    except OSError:
        return 0
