"""Sources that wait: a descriptor of a running kernel, and how to be woken from waiting for it.

A live source reads first and waits only when there was nothing, with poll(2) on its descriptor
and on an eventfd that `stop` and `close` write to. While it waits it costs nothing: there is no
timer. Errors are `DeviceError`s that name the device.
"""

import errno
import math
import os
import select
import socket
import sys
import threading
import time
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

__all__ = ["LiveDispatcher", "LiveSource", "require_linux"]

_LOST = 0x08 | 0x10 | 0x20  # POLLERR, POLLHUP, POLLNVAL: include/uapi/asm-generic/poll.h


def require_linux(name: str) -> None:
    """Raise UnsupportedError, naming what was to be opened, on any other system."""
    if sys.platform != "linux":
        raise UnsupportedError(name, 0, f"live dispatchers need Linux, this is {sys.platform}")


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


class LiveSource(Source):
    """A source behind a descriptor, which it owns: `close` closes it.

    A subclass implements `_receive`, and `_release_more` where it owns more than that.

    descriptor: made non-blocking, which also concerns whoever shares its open file description.
    name: of the device, for messages.
    """

    __slots__ = (
        "_descriptor",
        "_name",
        "_poll",
        "_suspect",
        "_thread",
        "_unreleased",
        "_wakeup",
    )

    def __init__(self, descriptor: int, name: str) -> None:
        require_linux(name)
        super().__init__()
        self._name = name
        self._descriptor = descriptor
        self._thread = 0
        self._suspect = False
        # Taken out by whichever thread lets go, so that only one does.
        self._unreleased = [True]
        try:
            os.set_blocking(descriptor, False)
        except OSError as error:
            raise device_error(name, error, "cannot be read") from error
        self._wakeup: _Wakeup | None = _Wakeup()
        self._poll = select.poll()
        self._poll.register(self._wakeup.descriptor, select.POLLIN)
        self._poll.register(descriptor, select.POLLIN)

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
        """Let go of what a subclass owns; called once, before the descriptor is closed."""

    def _read_once(self, timeout: float | None) -> int:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout: {timeout!r} is not a number of seconds from 0 on")
        self._enter()
        try:
            return self._await_batch(timeout)
        finally:
            self._leave()

    @contextmanager
    def watched(self) -> Iterator[tuple[int, int]]:
        """For event loops: the descriptors to watch for being readable, for as long as it lasts.

        In between the source belongs to the loop, which calls `turn` when one of them is; nobody
        else may enter it, and closing it takes effect at the end.
        """
        self._enter()
        try:
            wakeup = self._wakeup
            if self._closed or wakeup is None:
                raise EngineStateError("the dispatcher is closed")
            yield self._descriptor, wakeup.descriptor
        finally:
            self._leave()

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

    def _enter(self) -> None:
        """Keep others out until `_leave`."""
        if self._thread:
            mine = self._thread == threading.get_ident()
            raise EngineStateError(
                f"{self._name}: the dispatcher is at work already, "
                + ("called from its own hook?" if mine else "in another thread")
            )
        self._thread = threading.get_ident()

    def _leave(self) -> None:
        self._thread = 0
        if self._closed:  # meanwhile, by another thread, the hook or the event loop
            self._let_go()

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
        if self._thread:  # the thread that runs it lets go on its way out
            self._wake()
        if not self._thread:
            self._let_go()

    def _let_go(self) -> None:
        try:
            self._unreleased.pop()
        except IndexError:
            return
        try:
            self._release_more()
        finally:
            self._wakeup = None
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.close(descriptor)
            except OSError as error:
                if error.errno != errno.EBADF:  # closed by others, which a read has told
                    raise


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
