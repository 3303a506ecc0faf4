"""The sending side: a process in a namespace, and how it is asked to send.

A request is a line of JSON on its standard input; it answers with a line when all was sent. It
ends with its input.
"""

import json
import socket
import subprocess
import sys
from typing import Any, Self

from benchmarks.traffic import Traffic
from tests import lab, namespaces

__all__ = ["ETH_P_IP", "Sender", "body", "stream"]

UDP_SEGMENT = 103  # include/uapi/linux/udp.h
SO_SNDBUFFORCE = 32  # include/uapi/asm-generic/socket.h
ETH_P_IP = 0x0800  # include/uapi/linux/if_ether.h
SEND_BUFFER = 1 << 26
NUMBER = 4  # bytes of a datagram's number
CREDIT = 4  # bytes of a receiver's message: how many segments it has delivered
PATTERN = bytes(at % 251 for at in range(65536))


def body(number: int, size: int) -> bytes:
    """The payload of a datagram: its number, and bytes that do not repeat where it is cut."""
    start = number % 251
    return number.to_bytes(NUMBER, "big") + PATTERN[start : start + size - NUMBER]


def stream(payload: int, segments: int) -> Traffic:
    """Segments of one TCP flow, as a peer sends them that has nothing else to do."""
    return Traffic("stream", segments, 1, payload)


class Sender:
    """A sending process; it is gone when ``net`` is left."""

    def __init__(self, net: lab.Lab, where: lab.Namespace) -> None:
        self._credits, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = net.start(
                where,
                __name__,
                theirs.fileno(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._credits.close()

    def datagrams(
        self, address: str, port: int, *, size: int, segments: int, trains: int, last: int
    ) -> int:
        """Send trains of ``segments`` datagrams of ``size`` bytes, the last of each of ``last``.

        Returns, when they are sent, how many datagrams that were. They are numbered.
        """
        self.ask(
            kind="datagrams",
            to=[address, port],
            size=size,
            segments=segments,
            trains=trains,
            last=last,
        )
        self.wait()
        return segments * trains

    def ask(self, **request: Any) -> None:
        """Give it a request, and do not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Until it has sent what it was asked for."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the sender has ended")

    def credit(self, segments: int) -> None:
        """Tell it that so many more segments of its stream have arrived."""
        self._credits.send(segments.to_bytes(CREDIT, "little"))


def _send_datagrams(opened: socket.socket, request: dict[str, Any]) -> None:
    size, segments = request["size"], request["segments"]
    opened.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)
    address, port = request["to"]
    for first in range(0, request["trains"] * segments, segments):
        train = [body(number, size) for number in range(first, first + segments - 1)]
        train.append(body(first + segments - 1, request["last"]))
        opened.sendto(b"".join(train), (address, port))


def _send_stream(
    frames: socket.socket, credits_: socket.socket, packets: list[bytes], request: dict[str, Any]
) -> None:
    """Send ``count`` segments, at most ``window`` of them not yet delivered; 0: any number."""
    to = (request["interface"], ETH_P_IP, 0, 0, bytes.fromhex(request["mac"]))
    count, window = request["count"], request["window"]
    delivered = 0
    for sent in range(count):
        while window and sent - delivered >= window:
            delivered += _credit(credits_)
        frames.sendto(packets[sent % len(packets)], to)
    while window and delivered < count:
        delivered += _credit(credits_)


def _credit(credits_: socket.socket) -> int:
    told = credits_.recv(CREDIT)
    if not told:
        raise EOFError("the receiver has gone")
    return int.from_bytes(told, "little")


def main(arguments: list[str]) -> None:
    namespaces.die_with_parent()
    with (
        socket.socket(fileno=int(arguments[0])) as credits_,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened,
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) as frames,
    ):
        for sending in (opened, frames):
            sending.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SEND_BUFFER)
        packets: list[bytes] = []
        for line in sys.stdin:
            request = json.loads(line)
            if request["kind"] == "datagrams":
                _send_datagrams(opened, request)
            else:
                packets = packets or stream(request["payload"], request["repeat"]).build()
                _send_stream(frames, credits_, packets, request)
            print("sent", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
