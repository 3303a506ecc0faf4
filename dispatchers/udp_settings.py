"""What a UDP socket was set to before a dispatcher changed it, to be put back.

Options: socket(7), udp(7), ip(7), ipv6(7).
"""

import contextlib
import os
import select
import socket

from netstack_gro.dispatchers.udp_socket import (
    IP_PKTINFO,
    IP_RECVTOS,
    IPV6_RECVPKTINFO,
    IPV6_RECVTCLASS,
    SO_RCVBUFFORCE,
    SO_RXQ_OVFL,
    SO_TIMESTAMPNS,
    UDP_GRO,
)

__all__ = ["Settings", "is_readable", "switch_merging"]

# include/uapi/asm-generic/socket.h
SO_TIMESTAMP = 29
SO_TIMESTAMP_NEW = 63
SO_TIMESTAMPNS_NEW = 64
SO_TIMESTAMPING_NEW = 65
SO_BUF_LOCK = 72  # Linux 5.14


class Settings:
    """The receive options of a socket as they were, to be put back at the end."""

    __slots__ = ("_blocking", "_lock", "_process", "_room", "_times", "_values", "merges")

    merges: bool
    """Whether UDP_GRO was on already."""

    def __init__(self, opened: socket.socket) -> None:
        self._process = os.getpid()
        self._blocking = os.get_blocking(opened.fileno())
        self._values = {
            option: _value(opened, *option)
            for option in (
                (socket.IPPROTO_UDP, UDP_GRO),
                (socket.IPPROTO_IP, IP_RECVTOS),
                (socket.IPPROTO_IP, IP_PKTINFO),
                (socket.IPPROTO_IPV6, IPV6_RECVTCLASS),
                (socket.IPPROTO_IPV6, IPV6_RECVPKTINFO),
                (socket.SOL_SOCKET, SO_RXQ_OVFL),
            )
        }
        self.merges = self._values[socket.IPPROTO_UDP, UDP_GRO] != 0
        # Each of these switches the others off; switched off itself, it switches off all.
        kinds = (SO_TIMESTAMP, SO_TIMESTAMP_NEW, SO_TIMESTAMPNS, SO_TIMESTAMPNS_NEW)
        self._times = [kind for kind in kinds if _value(opened, socket.SOL_SOCKET, kind)]
        stamping = _value(opened, socket.SOL_SOCKET, SO_TIMESTAMPING_NEW)
        self._values |= {(socket.SOL_SOCKET, SO_TIMESTAMPING_NEW): stamping} if stamping else {}
        self._room = _value(opened, socket.SOL_SOCKET, socket.SO_RCVBUF)
        self._lock = _value(opened, socket.SOL_SOCKET, SO_BUF_LOCK)

    @property
    def ours(self) -> bool:
        """Whether this is the process that changed them; a forked child shares the socket."""
        return self._process == os.getpid()

    def put_back(self, opened: socket.socket) -> None:
        """Set them as they were, so that others who have the socket can go on with it.

        Not in a forked child, whose parent has it. What the kernel cannot tell (UDP_GRO before
        5.12) was off unless somebody had set it, and is switched off.
        """
        if not self.ours:
            return
        os.set_blocking(opened.fileno(), self._blocking)
        _set(opened, SO_TIMESTAMPNS, 0)
        for kind in self._times:
            _set(opened, kind, 1)
        for (level, option), value in self._values.items():
            _set(opened, option, value, level)
        if _value(opened, socket.SOL_SOCKET, socket.SO_RCVBUF) != self._room:
            for option in (socket.SO_RCVBUF, SO_RCVBUFFORCE):  # the kernel doubles what it is given
                _set(opened, option, self._room // 2)
                if _value(opened, socket.SOL_SOCKET, socket.SO_RCVBUF) == self._room:
                    break
            _set(opened, SO_BUF_LOCK, self._lock)


def switch_merging(opened: socket.socket, on: bool) -> None:
    """Switch UDP_GRO on or off, where there is any."""
    _set(opened, UDP_GRO, int(on), socket.IPPROTO_UDP)


def is_readable(opened: socket.socket) -> bool:
    """Whether something is queued, without taking it."""
    asked = select.poll()
    asked.register(opened, select.POLLIN)
    return any(events & select.POLLIN for _, events in asked.poll(0))


def _value(opened: socket.socket, level: int, option: int) -> int:
    """The value of an option, 0 where it cannot be read."""
    try:
        return opened.getsockopt(level, option)
    except OSError:
        return 0


def _set(opened: socket.socket, option: int, value: int, level: int = socket.SOL_SOCKET) -> None:
    with contextlib.suppress(OSError):
        opened.setsockopt(level, option, value)
