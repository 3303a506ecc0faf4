"""What tests of datagram endpoints share: both kinds, and a protocol that keeps a record."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from netstack_gro.adapters.endpoint import create_datagram_endpoint

__all__ = ["CREATORS", "Create", "Recorder", "run"]

Create = Callable[..., Awaitable[tuple[Any, Any]]]


async def of_asyncio(
    factory: Any, local_addr: Any = None, remote_addr: Any = None, **kw: Any
) -> Any:
    loop = asyncio.get_running_loop()
    return await loop.create_datagram_endpoint(factory, local_addr, remote_addr, **kw)


CREATORS: dict[str, Create] = {"asyncio": of_asyncio, "trains": create_datagram_endpoint}
"""Functions that make an endpoint, of the same arguments."""


class Recorder(asyncio.DatagramProtocol):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.got: list[bytes] = []
        self.addresses: list[Any] = []
        self.event = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.told.append(("made",))

    def datagram_received(self, data: bytes, addr: Any) -> None:
        assert type(data) is bytes
        self.got.append(data)
        self.addresses.append(addr)
        self.event.set()

    def error_received(self, exc: Exception) -> None:
        self.told.append(("error", type(exc), getattr(exc, "errno", None)))
        self.event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(("lost", exc))
        self.event.set()

    def pause_writing(self) -> None:
        self.told.append(("pause",))

    def resume_writing(self) -> None:
        self.told.append(("resume",))
        self.event.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.event.clear()
                await self.event.wait()


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(main())  # type: ignore[arg-type]
