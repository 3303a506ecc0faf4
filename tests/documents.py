"""The code of the README and the docs: found, and given what it talks of.

A block may name a stage, in a comment above it that no reader sees: ``<!-- stage: sandbox -->``.
The stage puts the reader's own things in place (an interface, a socket that packets wait in), and
looks afterwards whether they got what the text promises. A block without one runs by itself.
"""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import builders, lab

__all__ = ["STAGES", "Block", "End", "blocks"]

FENCE = re.compile(
    r"(?:<!-- stage: (?P<stage>\S+) -->\n+)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """page: relative to the checkout. line: of its first line of code, from 1."""

    page: str
    line: int
    language: str
    code: str
    stage: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class End(Exception):
    """Raised by a stage to end what a reader's program does for ever."""


def blocks(checkout: Path) -> list[Block]:
    """All fenced blocks of the README and of docs/, those without a language included."""
    pages = [
        checkout / "README.md",
        *sorted((checkout / "docs").rglob("*.md")),
        *sorted((checkout / "examples").rglob("*.md")),
    ]
    return [
        Block(
            page.relative_to(checkout).as_posix(),
            text.count("\n", 0, found.start("code")) + 1,
            found["language"],
            found["code"],
            found["stage"],
        )
        for page in pages
        for text in [page.read_text(encoding="utf-8")]
        for found in FENCE.finditer(text)
    ]


def segments(count: int) -> list[bytes]:
    """Consecutive TCP segments of one flow, which merge."""
    return [
        builders.tcp4(bytes(100), seq=1 + number * 100, ident=number) for number in range(count)
    ]


# --- stages: each takes the names that the block will have, and yields once they are there --------


@contextmanager
def _a_stack(names: dict[str, Any]) -> Iterator[None]:
    """`stack.receive`, and `read_many(tun)`, which gives two batches and ends the program."""

    class Stack:
        def __init__(self) -> None:
            self.received: list[bytes] = []

        def receive(self, data: bytes) -> None:
            self.received.append(data)

    batches = iter([segments(4), segments(4)])

    def read_many(tun: object) -> list[bytes]:
        assert tun is names["tun"]
        try:
            return next(batches)
        except StopIteration:
            raise End from None

    names.update(stack=Stack(), tun=object(), read_many=read_many)
    yield
    assert [len(data) for data in names["stack"].received] == [440, 440]


@contextmanager
def _a_sandbox(names: dict[str, Any]) -> Iterator[None]:
    """`sandbox`: a socket in which packets wait, and whose other end is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, lab.Lab() as net, net.namespace():
        for packet in segments(8):
            theirs.send(packet)
        theirs.close()
        names["sandbox"] = ours
        yield
        assert names["writer"].stats.super_packets == 1


@contextmanager
def _an_interface(names: dict[str, Any]) -> Iterator[None]:
    """eth0, on which segments arrive once `dispatcher` is there, if it comes to that."""
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "eth0", there, "eth0")
        addresses = here.mac("eth0") + there.mac("eth0")

        def send(_dispatcher: Any) -> None:
            with there.socket(socket.AF_PACKET, socket.SOCK_RAW) as outside:
                for packet in segments(2):
                    outside.sendto(addresses + b"\x08\x00" + packet, ("eth0", 0x0800))

        with here, _driven(names, send):
            yield


@contextmanager
def _a_network(_names: dict[str, Any]) -> Iterator[None]:
    """A namespace, in which the block makes what it needs."""
    with lab.Lab() as net, net.namespace():
        yield


@contextmanager
def _a_tun(names: dict[str, Any]) -> Iterator[None]:
    """A namespace in which the block makes its TUN device, through which a datagram is sent."""
    with lab.Lab() as net, net.namespace() as here:

        def send(_dispatcher: Any) -> None:
            here.address("tun0", "192.0.2.1/24")
            with here.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside:
                outside.sendto(b"x", ("192.0.2.2", 9))

        with _driven(names, send):
            yield


@contextmanager
def _a_peer(names: dict[str, Any]) -> Iterator[None]:
    """A namespace of its own, and datagrams to port 4433 of it once `dispatcher` is there."""
    with lab.Lab() as net, net.namespace() as here:

        def send(_dispatcher: Any) -> None:
            with here.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside:
                outside.sendto(b"hello", ("127.0.0.1", 4433))

        with _driven(names, send):
            yield


@contextmanager
def _driven(names: dict[str, Any], send: Callable[[Any], None]) -> Iterator[None]:
    """Have a thread wait for the block's `dispatcher`, and send to it."""
    over = threading.Event()

    def drive() -> None:
        while "dispatcher" not in names and not over.wait(0.005):
            pass
        if "dispatcher" in names:
            send(names["dispatcher"])

    sending = lab.Background(drive)
    try:
        yield
    finally:
        over.set()
        sending.result()
    assert names["dispatcher"].closed if "dispatcher" in names else True


STAGES = {
    "interface": _an_interface,
    "network": _a_network,
    "peer": _a_peer,
    "sandbox": _a_sandbox,
    "stack": _a_stack,
    "tun": _a_tun,
}
