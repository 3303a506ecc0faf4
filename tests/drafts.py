"""A packet before it is built, and the table of named changes that can be made to it.

A change works on a `Draft` (the next packet of a flow) with one integer that picks among its
variants, so the same small description always gives the same packet. The changes themselves are
in `faults` (headers) and `faults_around` (links, metadata, whole packets).
"""

import functools
import random
from collections.abc import Callable
from typing import Any

from tests import builders as b
from tests.builders import TCP

BLOB = random.Random(20250101).randbytes(1 << 18)
"""Payloads are slices of these bytes, so that building one costs a copy."""


class Draft:
    """The next packet of a flow: its fields, its frame and its metadata, still to be built."""

    __slots__ = (
        "after",
        "family",
        "fields",
        "flow",
        "frame",
        "inner",
        "link",
        "meta",
        "payload",
        "protocol",
        "stay",
    )

    def __init__(self, flow: Any, fields: dict[str, Any], payload: bytes) -> None:
        self.flow = flow
        self.family: int = flow.family
        self.protocol: int = flow.protocol
        self.link: str = flow.link
        self.fields = fields
        self.payload = payload
        self.frame: dict[str, Any] = flow.frame
        self.meta: dict[str, Any] = flow.meta
        self.inner: list[Callable[[bytes], bytes]] = []  # on the IP packet
        self.after: list[Callable[[bytes], bytes]] = []  # on the whole packet
        self.stay = False  # whether the flow's sequence number stays where it was

    def ip_packet(self) -> bytes:
        """The IP packet as the fields are now, its payload cut to what an IP packet holds."""
        if len(self.payload) > 60000:
            self.resend(min(len(self.payload), self.room()), self.flow.position())
        return b.BUILDERS[self.family, self.protocol](self.payload, **self.fields)

    def build(self) -> bytes:
        """The packet's bytes."""
        data = self.ip_packet()
        for change in self.inner:
            data = change(data)
        data = b.FRAMES[self.link](data, **self.frame)
        for change in self.after:
            data = change(data)
        return data

    def change(self, name: str, value: object, a: int) -> None:
        """Another value for a header field, from now on where `a` is odd."""
        self.fields[name] = value
        if a & 1:
            self.flow.fields[name] = value

    def reframe(self, a: int, **frame: object) -> None:
        """Other link header fields, from now on where `a` is odd."""
        self.frame = {**self.frame, **frame}
        if a & 1:
            self.flow.frame = self.frame

    def tell(self, **meta: object) -> None:
        """Other metadata for this packet only."""
        self.meta = {**self.meta, **meta}

    def describe(self, a: int, **meta: object) -> None:
        """Other metadata, from now on where `a` is odd."""
        self.tell(**meta)
        if a & 1:
            self.flow.meta = self.meta

    def resend(self, length: int, at: int) -> None:
        """A payload of `length` bytes from position `at` of the flow's stream."""
        at &= 0xFFFF
        self.payload = BLOB[at : at + length]

    def resize(self, length: int) -> None:
        """A payload of `length` bytes, or as many as an IP packet holds, of what comes next."""
        self.resend(min(max(length, 0), self.room()), self.flow.position())

    def room(self) -> int:
        """The longest payload that an IP packet with these headers holds."""
        network = self.network_header() - (40 if self.family == 6 else 0)
        return 65535 - network - self.transport_header

    @property
    def transport_header(self) -> int:
        """Bytes of the transport header."""
        return 20 + len(self.fields.get("tcp_options", b"")) if self.protocol == TCP else 8

    def network_header(self) -> int:
        """Bytes of the IP header with options and extensions."""
        if self.family == 4:
            return 20 + len(self.fields.get("options", b""))
        return 40 + sum(len(header) for _, header in self.fields.get("extensions", ()))


Change = Callable[[Draft, int], None]
FAULTS: dict[str, tuple[frozenset[str], Change]] = {}


def fault(needs: str = "") -> Callable[[Change], Change]:
    """Enter a change into `FAULTS` under its function's name.

    `needs` are words of what the flow must be: ``tcp udp v4 v6`` and names of links.
    """

    def add(change: Change) -> Change:
        FAULTS[change.__name__.strip("_")] = frozenset(needs.split()), change
        return change

    return add


@functools.cache
def applicable(family: int, protocol: int, link: str) -> tuple[str, ...]:
    """The names of the changes that make sense for a flow."""
    have = {f"v{family}", "tcp" if protocol == TCP else "udp", link}
    have |= {"cooked"} if link in ("sll", "sll2") else set()
    have |= {"typed"} if link in ("ethernet", "sll", "sll2") else set()
    have |= {"linked"} if link not in ("ip", "ipv4", "ipv6") else set()
    return tuple(name for name, (needs, _) in FAULTS.items() if needs <= have)


def enter(name: str, needs: str, change: Change) -> None:
    """Enter a change into `FAULTS` under `name`."""
    FAULTS[name] = frozenset(needs.split()), change
