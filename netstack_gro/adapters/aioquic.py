"""aioquic (1.x): connections that take a train at a time, over endpoints that send in trains.

    from netstack_gro.adapters.aioquic import connect, serve

in place of the functions of those names in ``aioquic.asyncio``; they take the same arguments. A
connection then processes its events and transmits once for all datagrams of a train, where aioquic
does so for each: most of what it saves is acknowledgements, which both ends have to make or read.

A protocol class of one's own is given as ``create_protocol``, with `Batched` in front of aioquic's:

    class MyProtocol(Batched, QuicConnectionProtocol): ...

Over another transport such a class works as before. Importing this module imports aioquic.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from netstack_gro.adapters.endpoint import create_datagram_endpoint

__all__ = ["Batched", "BatchedProtocol", "BatchedServer", "connect", "serve"]

LONG_HEADER = 0x80  # RFC 9000 section 17.2


class Batched:
    """To stand in front of a QuicConnectionProtocol: takes the datagrams of a train at once."""

    if TYPE_CHECKING:
        _loop: asyncio.AbstractEventLoop
        _quic: QuicConnection
        _process_events: Callable[[], None]
        transmit: Callable[[], None]

    def datagrams_received(self, datagrams: Iterable[bytes], address: Any) -> None:
        """Take them in, in order; then process events and transmit, once."""
        now = self._loop.time()
        for datagram in datagrams:
            self._quic.receive_datagram(datagram, address, now=now)
        self._process_events()
        self.transmit()


class BatchedProtocol(Batched, QuicConnectionProtocol):
    """aioquic's own protocol, a train at a time."""


class BatchedServer(QuicServer):
    """aioquic's server: hands each connection those datagrams of a train that are its own."""

    def datagrams_received(self, datagrams: Sequence[bytes], address: Any) -> None:
        """Take a train. What belongs to no connection yet goes the usual way, one by one."""
        length = self._configuration.connection_id_length
        pending: list[bytes] = []
        former: Any = None
        for datagram in datagrams:
            protocol = None
            if datagram and not datagram[0] & LONG_HEADER:
                protocol = self._protocols.get(datagram[1 : 1 + length])
            if pending and protocol is not former:
                former.datagrams_received(pending, address)
                pending = []
            former = protocol
            if protocol is not None and hasattr(protocol, "datagrams_received"):
                pending.append(datagram)
            else:
                self.datagram_received(datagram, address)
        if pending:
            former.datagrams_received(pending, address)


async def serve(
    host: str,
    port: int,
    *,
    configuration: QuicConfiguration,
    create_protocol: Callable[..., QuicConnectionProtocol] = BatchedProtocol,
    session_ticket_fetcher: Any = None,
    session_ticket_handler: Any = None,
    retry: bool = False,
    stream_handler: Any = None,
) -> QuicServer:
    """Listen as ``aioquic.asyncio.serve`` does; its ``close`` ends it."""
    _, server = await create_datagram_endpoint(
        lambda: BatchedServer(
            configuration=configuration,
            create_protocol=create_protocol,
            session_ticket_fetcher=session_ticket_fetcher,
            session_ticket_handler=session_ticket_handler,
            retry=retry,
            stream_handler=stream_handler,
        ),
        local_addr=(host, port),
    )
    return server


@asynccontextmanager
async def connect(
    host: str,
    port: int,
    *,
    configuration: QuicConfiguration | None = None,
    create_protocol: Callable[..., QuicConnectionProtocol] = BatchedProtocol,
    session_ticket_handler: Any = None,
    stream_handler: Any = None,
    token_handler: Any = None,
    wait_connected: bool = True,
    local_port: int = 0,
) -> AsyncGenerator[QuicConnectionProtocol, None]:
    """Connect as ``aioquic.asyncio.connect`` does: a context manager that yields the protocol."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    address: Any = found[0][4]
    if found[0][0] == socket.AF_INET:
        address = (f"::ffff:{address[0]}", address[1], 0, 0)  # for a socket of both families
    if configuration is None:
        configuration = QuicConfiguration(is_client=True)
    if configuration.server_name is None:
        configuration.server_name = host
    connection = QuicConnection(
        configuration=configuration,
        session_ticket_handler=session_ticket_handler,
        token_handler=token_handler,
    )
    opened = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        opened.bind(("::", local_port, 0, 0))
    except BaseException:
        opened.close()
        raise
    transport, protocol = await create_datagram_endpoint(
        lambda: create_protocol(connection, stream_handler=stream_handler), sock=opened
    )
    try:
        protocol.connect(address, transmit=wait_connected)
        if wait_connected:
            await protocol.wait_connected()
        yield protocol
    finally:
        protocol.close()
        await protocol.wait_closed()
        transport.close()
