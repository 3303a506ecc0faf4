"""Room in the kernel: which answers say that there is none, and how long a call waits for some."""

import errno
import math
import select
import time

from netstack_gro.errors import ConfigError

__all__ = ["FULL", "Room", "check_seconds"]

FULL = frozenset({errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM})
"""What a write or a send answers for want of room; it may be taken a moment later."""

_PAUSE_S = 0.001  # nothing tells when there is memory again


def check_seconds(name: str, value: object) -> None:
    """Raise ConfigError, which names the parameter, unless it is a number from 0 on."""
    if not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(name, f"{value!r} is not a number of seconds from 0 on")


class Room:
    """Room(timeout): waits for room, ``timeout`` seconds in all between one `begin` and the next.

    The time runs from the first wait on, so that a call which never waits does not ask for it.
    """

    __slots__ = ("_timeout", "_until")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._until = 0.0

    def begin(self) -> None:
        """Start anew: another call has its own time."""
        self._until = 0.0

    def wait(self, descriptor: int, why: int) -> bool:
        """Wait after the errno ``why``, one of `FULL`; False when the time is up."""
        now = time.monotonic()
        if not self._until:
            self._until = now + self._timeout
        left = self._until - now
        if left <= 0:
            return False
        if why == errno.EAGAIN:
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            # poll(2) takes whole milliseconds of 31 bits.
            writable.poll(math.ceil(min(left * 1000, 2**31 - 1)))
        else:
            time.sleep(min(left, _PAUSE_S))
        return True
