"""Applications that make the kernel's TCP and UDP send something worth recording.

Each runs both sides from one process, with the sockets of either side in its own namespace, and
checks that what was sent came in. Payload is numbered text: the same at each recording, easy on
compression, and different at each offset, so that a byte in the wrong place shows.
"""

import random
import socket
import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pcaps.recorder.network import Namespace

__all__ = [
    "Side",
    "TrafficLostError",
    "bulk",
    "datagrams",
    "many_flows",
    "requests",
    "text",
    "trains",
]

SOL_UDP = 17  # include/uapi/linux/udp.h
UDP_SEGMENT = 103
SO_RCVBUFFORCE = 33  # include/uapi/asm-generic/socket.h
UDP_RECEIVE_BUFFER = 16 << 20
PATIENCE_SECONDS = 20.0


class TrafficLostError(Exception):
    """What came in is not what was sent."""


class Side:
    """A namespace and the addresses that its sockets use."""

    def __init__(self, namespace: Namespace, ipv4: str, ipv6: str) -> None:
        self.namespace = namespace
        self.addresses = {socket.AF_INET: ipv4, socket.AF_INET6: ipv6}

    def open_socket(self, family: socket.AddressFamily, kind: int, port: int) -> socket.socket:
        """A socket bound to this side's address of the family."""
        made = self.namespace.open_socket(family, kind)
        made.settimeout(PATIENCE_SECONDS)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((self.addresses[family], port))
        return made

    def address(self, family: socket.AddressFamily, port: int) -> tuple[str, int]:
        return self.addresses[family], port


def text(name: str, size: int) -> bytes:
    """`size` bytes of numbered lines."""
    words = random.Random(name)
    lines = (
        f"{name:<12.12}{offset:>9} {words.choice(WORDS):<9}\n".encode()
        for offset in range(0, size + LINE, LINE)
    )
    return b"".join(lines)[:size]


LINE = 32
WORDS = ("segment", "datagram", "payload", "merge", "order", "batch", "flush", "hook")


def bulk(
    left: Side,
    right: Side,
    family: socket.AddressFamily,
    size: int,
    *,
    port: int = 5001,
    source: int = 40001,
) -> None:
    """One connection from left to right that carries `size` bytes and is closed by both."""
    payload = text(f"bulk-{source}", size)
    with (
        right.open_socket(family, socket.SOCK_STREAM, port) as listener,
        left.open_socket(family, socket.SOCK_STREAM, source) as client,
        ThreadPoolExecutor(1) as server,
    ):
        listener.listen()
        received = server.submit(_receive_one, listener)
        client.connect(right.address(family, port))
        client.sendall(payload)
        client.shutdown(socket.SHUT_WR)
        _read_to_end(client)
        _expect(received.result(), payload)


def _receive_one(listener: socket.socket) -> bytes:
    connection, _peer = listener.accept()
    with connection:
        connection.settimeout(PATIENCE_SECONDS)
        return _read_to_end(connection)


def _read_to_end(connection: socket.socket) -> bytes:
    received = bytearray()
    while data := connection.recv(1 << 16):
        received += data
    return bytes(received)


def _expect(received: bytes, sent: bytes) -> None:
    if received != sent:
        raise TrafficLostError(f"{len(sent)} bytes were sent, {len(received)} came in, or others")


def many_flows(
    left: Side,
    right: Side,
    family: socket.AddressFamily,
    *,
    flows: int,
    write: int,
    rounds: int,
    port: int = 5002,
) -> None:
    """Connections that are all open at once and write in turn, `write` bytes in each round."""
    clients = [
        left.open_socket(family, socket.SOCK_STREAM, 41000 + number) for number in range(flows)
    ]
    payloads = [text(f"flow-{number}", write * rounds) for number in range(flows)]
    with (
        right.open_socket(family, socket.SOCK_STREAM, port) as listener,
        ThreadPoolExecutor(1) as server,
    ):
        listener.listen(flows)
        received = server.submit(_receive_all, listener, flows)
        for client in clients:
            client.connect(right.address(family, port))
        for at in range(0, write * rounds, write):
            for client, payload in zip(clients, payloads, strict=True):
                client.sendall(payload[at : at + write])
        for client in clients:
            client.shutdown(socket.SHUT_WR)
        for client in clients:
            _read_to_end(client)
            client.close()
        _expect(b"".join(received.result()), b"".join(payloads))


def _receive_all(listener: socket.socket, flows: int) -> list[bytes]:
    connections = [listener.accept()[0] for _ in range(flows)]
    received = []
    for connection in connections:
        with connection:
            connection.settimeout(PATIENCE_SECONDS)
            received.append(_read_to_end(connection))
    return received


def requests(
    left: Side,
    right: Side,
    family: socket.AddressFamily,
    rounds: int,
    *,
    port: int = 5003,
    source: int = 42001,
) -> None:
    """A conversation: a short request, a short response, one at a time."""
    sizes = random.Random(rounds)
    exchange = [(sizes.randint(16, 200), sizes.randint(16, 700)) for _ in range(rounds)]
    with (
        right.open_socket(family, socket.SOCK_STREAM, port) as listener,
        left.open_socket(family, socket.SOCK_STREAM, source) as client,
        ThreadPoolExecutor(1) as server,
    ):
        listener.listen()
        answered = server.submit(_answer, listener, exchange)
        client.connect(right.address(family, port))
        for number, (request, response) in enumerate(exchange):
            client.sendall(text(f"request-{number}", request))
            _expect(_read_exactly(client, response), text(f"response-{number}", response))
        client.shutdown(socket.SHUT_WR)
        _read_to_end(client)
        answered.result()


def _answer(listener: socket.socket, exchange: Sequence[tuple[int, int]]) -> None:
    connection, _peer = listener.accept()
    with connection:
        connection.settimeout(PATIENCE_SECONDS)
        for number, (request, response) in enumerate(exchange):
            _expect(_read_exactly(connection, request), text(f"request-{number}", request))
            connection.sendall(text(f"response-{number}", response))
        _read_to_end(connection)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        if not (data := connection.recv(size - len(received))):
            raise TrafficLostError(f"the connection ended after {len(received)} of {size} bytes")
        received += data
    return bytes(received)


def trains(
    left: Side,
    right: Side,
    family: socket.AddressFamily,
    shapes: Sequence[tuple[int, int]],
    *,
    port: int = 5004,
    source: int = 43001,
    connected: bool = True,
) -> None:
    """UDP trains from left to right, each of one `sendmsg` with UDP_SEGMENT.

    A shape is (total bytes, bytes of each datagram); the last one holds what remains. IPv4 IDs
    count up within a train, but one call takes only one ID of its socket, if `connected`, or of
    the counter that other sockets share: the next train repeats most of them.
    """
    with (
        right.open_socket(family, socket.SOCK_DGRAM, port) as receiver,
        left.open_socket(family, socket.SOCK_DGRAM, source) as sender,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, UDP_RECEIVE_BUFFER)
        if connected:
            sender.connect(right.address(family, port))
        for number, (total, size) in enumerate(shapes):
            payload = text(f"train-{number}", total)
            control = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))]
            to = () if connected else (0, right.address(family, port))
            sender.sendmsg([payload], control, *to)
            for at in range(0, total, size):
                _expect(receiver.recv(1 << 16), payload[at : at + size])
            # Trains of one flow would otherwise follow each other closer than applications
            # let them.
            time.sleep(0.002)


def datagrams(
    left: Side,
    right: Side,
    family: socket.AddressFamily,
    sizes: Sequence[int],
    *,
    port: int,
    source: int,
    options: Sequence[tuple[int, int, int | bytes]] = (),
) -> None:
    """Single datagrams from left to right, sent with these socket options."""
    with (
        right.open_socket(family, socket.SOCK_DGRAM, port) as receiver,
        left.open_socket(family, socket.SOCK_DGRAM, source) as sender,
    ):
        for level, name, value in options:
            sender.setsockopt(level, name, value)
        for number, size in enumerate(sizes):
            payload = text(f"datagram-{number}", size)
            sender.sendto(payload, right.address(family, port))
            _expect(receiver.recv(1 << 16), payload)
