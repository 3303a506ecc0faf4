"""Sockets for datagram endpoints, opened by the arguments and rules of asyncio."""

import asyncio
import socket
import sys
from typing import Any

__all__ = ["is_udp", "open_socket"]


def is_udp(opened: socket.socket) -> bool:
    """Whether it is a UDP socket that can be read in trains. ValueError for no datagram socket."""
    if not isinstance(opened, socket.socket):
        return False
    if opened.type != socket.SOCK_DGRAM:
        raise ValueError(f"A datagram socket was expected, got {opened!r}")
    internet = opened.family in {socket.AF_INET, socket.AF_INET6}
    return internet and sys.platform == "linux"


async def open_socket(
    loop: asyncio.AbstractEventLoop,
    local: Any,
    remote: Any,
    family: int,
    proto: int,
    flags: int,
    reuse_port: bool | None,
    allow_broadcast: bool | None,
) -> socket.socket:
    """A socket bound and connected to the first pair of addresses with which that is possible.

    The parameters are those of ``loop.create_datagram_endpoint``; one address at least. Raises as
    it does: ValueError where the addresses have no family in common, OSError for the first that
    cannot be used.
    """
    found: list[dict[int, Any]] = []
    for address in (local, remote):
        by_family: dict[int, Any] = {}
        if address is not None:
            if not isinstance(address, tuple) or len(address) < 2:
                raise TypeError("2-tuple is expected")
            host, port = address[:2]
            for kind, _, _, _, number in await loop.getaddrinfo(
                host, port, family=family, type=socket.SOCK_DGRAM, proto=proto, flags=flags
            ):
                by_family.setdefault(kind, number)
        found.append(by_family)
    near, far = found
    families: list[int] = [
        kind
        for kind in near or far
        if (local is None or kind in near) and (remote is None or kind in far)
    ]
    if not families:
        raise ValueError("can not get address information")
    failures: list[OSError] = []
    for which in families:
        opened = socket.socket(which, socket.SOCK_DGRAM, proto)
        try:
            if reuse_port:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if allow_broadcast:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            opened.setblocking(False)
            if local is not None:
                opened.bind(near[which])
            if remote is not None:
                await loop.sock_connect(opened, far[which])
        except OSError as error:
            opened.close()
            failures.append(error)
        except BaseException:
            opened.close()
            raise
        else:
            return opened
    raise failures[0]
