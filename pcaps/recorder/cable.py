"""A cable made of Python: it carries frames between two devices, and may do things to them.

Queueing disciplines such as netem are not present on every kernel, VLAN devices neither. A
forwarder in user space needs neither of them, and its faults come from a seeded generator.
"""

import os
import random
import selectors
import struct
import threading
from collections.abc import Iterable
from typing import Protocol

from pcaps.recorder.dissect import ECN_CE, Layers, dissect

__all__ = ["Cable", "Direction", "Faults", "Marking", "Tagging", "Untagging"]

IDLE_SECONDS = 0.005
LINKTYPE_ETHERNET = 1


class End(Protocol):
    def fileno(self) -> int: ...

    def receive(self) -> bytes | None: ...

    def send(self, frame: bytes) -> None: ...


class Direction:
    """What happens to frames that go one way; this one leaves them alone."""

    def carry(self, frame: bytes) -> Iterable[bytes]:
        """The frames to send now that this one came in."""
        return (frame,)

    def idle(self) -> Iterable[bytes]:
        """The frames to send because nothing came in for a while."""
        return ()


class Faults(Direction):
    """Drops, swaps and duplicates frames that carry TCP payload; all others pass untouched.

    A swapped frame is sent again into the stream behind the next one to three frames. Rates are
    chances from 0 to 1.
    """

    def __init__(
        self, seed: int, *, drop: float = 0.0, swap: float = 0.0, duplicate: float = 0.0
    ) -> None:
        self._random = random.Random(seed)
        self._drop = drop
        self._swap = swap
        self._duplicate = duplicate
        self._held: list[bytes] = []
        self._until = 0
        self.dropped = self.swapped = self.duplicated = 0

    def carry(self, frame: bytes) -> Iterable[bytes]:
        out = self._harm(frame)
        if self._held and out:
            self._until -= 1
            if self._until <= 0:
                out += self.idle()
        return out

    def idle(self) -> list[bytes]:
        held, self._held = self._held, []
        return held

    def counts(self) -> dict[str, int]:
        """How many frames each fault struck."""
        return {
            "dropped": self.dropped,
            "swapped": self.swapped,
            "duplicated": self.duplicated,
        }

    def _harm(self, frame: bytes) -> list[bytes]:
        layers = dissect(LINKTYPE_ETHERNET, frame)
        if layers.protocol != "tcp" or not layers.payload_length:
            return [frame]
        chance = self._random.random()
        if chance < self._drop:
            self.dropped += 1
            return []
        chance -= self._drop
        if chance < self._swap and not self._held:
            self.swapped += 1
            self._held.append(frame)
            self._until = self._random.randint(1, 3)
            return []
        chance -= self._swap
        if 0 <= chance < self._duplicate:
            self.duplicated += 1
            return [frame, frame]
        return [frame]


class Marking(Direction):
    """Sets Congestion Experienced on some ECN-capable TCP data (RFC 3168, section 5).

    A congested queue marks neighbours: marks come in runs of one to three.
    """

    def __init__(self, seed: int, *, mark: float) -> None:
        self._random = random.Random(seed)
        self._mark = mark
        self._run = 0
        self.marked = 0

    def carry(self, frame: bytes) -> Iterable[bytes]:
        layers = dissect(LINKTYPE_ETHERNET, frame)
        if layers.protocol != "tcp" or not layers.payload_length or not layers.ecn:
            return (frame,)
        if not self._run and self._random.random() < self._mark:
            self._run = self._random.randint(1, 3)
        if not self._run:
            return (frame,)
        self._run -= 1
        self.marked += 1
        return (_congestion_experienced(frame, layers),)


def _congestion_experienced(frame: bytes, layers: Layers) -> bytes:
    marked = bytearray(frame)
    ip = layers.network
    if layers.version == 6:
        marked[ip + 1] |= ECN_CE << 4
        return bytes(marked)
    marked[ip + 1] |= ECN_CE
    before, after = frame[ip + 1], marked[ip + 1]
    # RFC 1624, equation 3: HC' = ~(~HC + ~m + m')
    total = (~_u16(frame, ip + 10) & 0xFFFF) + (~before & 0xFFFF) + after
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", marked, ip + 10, ~total & 0xFFFF)
    return bytes(marked)


def _u16(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 2], "big")


class Tagging(Direction):
    """Puts VLAN tags behind the MAC addresses: (TPID, TCI) pairs, the outer one first."""

    def __init__(self, *tags: tuple[int, int]) -> None:
        self._tags = b"".join(struct.pack("!HH", *tag) for tag in tags)

    def carry(self, frame: bytes) -> Iterable[bytes]:
        return (frame[:12] + self._tags + frame[12:],)


class Untagging(Direction):
    """Takes `count` VLAN tags out again."""

    def __init__(self, count: int) -> None:
        self._bytes = 4 * count

    def carry(self, frame: bytes) -> Iterable[bytes]:
        return (frame[:12] + frame[12 + self._bytes :],)


class Cable:
    """Runs between two ends, in a thread of its own, until `unplug`."""

    def __init__(
        self,
        left: End,
        right: End,
        *,
        rightwards: Direction | None = None,
        leftwards: Direction | None = None,
    ) -> None:
        self._ways = (
            (left, right, rightwards or Direction()),
            (right, left, leftwards or Direction()),
        )
        self._error: BaseException | None = None
        self._wake, self._waker = os.pipe()
        self._thread = threading.Thread(target=self._run, name="cable", daemon=True)
        self._thread.start()

    def unplug(self) -> None:
        """Stop; raises what stopped the cable before, if anything did."""
        os.write(self._waker, b"x")
        self._thread.join()
        os.close(self._wake)
        os.close(self._waker)
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._carry()
        except BaseException as error:
            self._error = error

    def _carry(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ, None)
            for way in self._ways:
                selector.register(way[0].fileno(), selectors.EVENT_READ, way)
            while True:
                ready = selector.select(IDLE_SECONDS)
                for key, _events in ready:
                    if key.data is None:
                        return
                    source, target, direction = key.data
                    while (frame := source.receive()) is not None:
                        for carried in direction.carry(frame):
                            target.send(carried)
                if not ready:
                    for _source, target, direction in self._ways:
                        for carried in direction.idle():
                            target.send(carried)
