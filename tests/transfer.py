"""One end of a TCP transfer, a program by itself: it runs where `lab.Lab.start` puts it.

    python -m tests.transfer receive ADDRESS          says its port, then what it received
    python -m tests.transfer send ADDRESS PORT BYTES SEED

Each prints JSON lines. The sender writes pseudo-random bytes in pieces of random sizes and closes
its direction; the receiver answers with the SHA-256 of all it read, which the sender compares
with its own. `run` is what tests call.
"""

import hashlib
import json
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests import namespaces

if TYPE_CHECKING:
    from tests import lab  # imports pyroute2, which takes the children longer than a transfer

__all__ = ["Transfer", "run"]

BLOCK = 1 << 20
LARGEST_PIECE = 256 << 10
SILENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Transfer:
    """What both ends say of one transfer."""

    sent: int
    received: int
    digest_sent: str
    digest_received: str
    seconds: float
    """From the connection to the digest that came back."""
    retransmits: int
    """Segments that the sender sent again (tcpi_total_retrans)."""


def pieces(size: int, seed: int) -> Iterator[memoryview]:
    """``size`` bytes in pieces. Each block of a megabyte has its number in front, so that a
    block in another's place shows, and every byte is another one somewhere else in the block."""
    generator = random.Random(seed)
    block = bytearray(generator.randbytes(BLOCK))
    number = left = 0
    while size:
        if not left:
            number += 1
            struct.pack_into("=Q", block, 0, number)
            left = BLOCK
        length = min(size, left, generator.randint(1, LARGEST_PIECE))
        start = BLOCK - left
        yield memoryview(block)[start : start + length]
        left -= length
        size -= length


def send(address: str, port: int, size: int, seed: int) -> dict[str, Any]:
    digest = hashlib.sha256()
    with socket.create_connection((address, port), SILENCE_S) as connection:
        started = time.monotonic()
        for piece in pieces(size, seed):
            digest.update(piece)
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while data := connection.recv(1024):
            answer += data
        seconds = time.monotonic() - started
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    if answer.decode() != digest.hexdigest():
        raise ValueError(f"the receiver has {answer!r}, it should be {digest.hexdigest()}")
    # tcpi_total_retrans, include/uapi/linux/tcp.h
    (retransmits,) = struct.unpack_from("=I", information, 100)
    return {
        "bytes": size,
        "sha256": digest.hexdigest(),
        "seconds": seconds,
        "retransmits": retransmits,
    }


def receive(listener: socket.socket) -> dict[str, Any]:
    digest = hashlib.sha256()
    size = 0
    buffer = memoryview(bytearray(BLOCK))
    connection, _peer = listener.accept()
    with connection:
        connection.settimeout(SILENCE_S)
        while length := connection.recv_into(buffer):
            digest.update(buffer[:length])
            size += length
        connection.sendall(digest.hexdigest().encode())
    return {"bytes": size, "sha256": digest.hexdigest()}


def run(
    net: "lab.Lab",
    sender: "lab.Namespace",
    receiver: "lab.Namespace",
    address: str,
    size: int,
    *,
    seed: int,
    timeout: float = 60.0,
) -> Transfer:
    """Send ``size`` bytes from a process in one namespace to one at ``address`` in another."""
    until = time.monotonic() + timeout
    server = net.start(receiver, __name__, "receive", address, stdout=subprocess.PIPE)
    port = _answer(server, until)["port"]
    client = net.start(sender, __name__, "send", address, port, size, seed, stdout=subprocess.PIPE)
    sent = _answer(client, until)
    received = _answer(server, until)
    for child in (client, server):
        if net.end(child):
            raise ChildProcessError(f"{child.args!r} ended with {child.returncode}")
    return Transfer(
        sent=sent["bytes"],
        received=received["bytes"],
        digest_sent=sent["sha256"],
        digest_received=received["sha256"],
        seconds=sent["seconds"],
        retransmits=sent["retransmits"],
    )


def _answer(child: subprocess.Popen[str], until: float) -> dict[str, Any]:
    """The next line of a child. It writes one at a time, so that none waits in the buffer."""
    assert child.stdout is not None
    if not select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
        raise TimeoutError(f"{child.args!r} did not answer in time")
    line = child.stdout.readline()
    if not line:
        raise ChildProcessError(f"{child.args!r} ended without an answer")
    answer: dict[str, Any] = json.loads(line)
    return answer


def main(arguments: list[str]) -> None:
    namespaces.die_with_parent()
    role, address, *numbers = arguments
    if role == "send":
        print(json.dumps(send(address, *map(int, numbers))), flush=True)
        return
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        listener.settimeout(SILENCE_S)
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        print(json.dumps(receive(listener)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
