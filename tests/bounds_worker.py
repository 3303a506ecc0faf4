"""Reads at the edge of the world: run in a process of its own by `test_bounds`.

Every packet lies flush against pages that may not be touched, behind its end or before its start,
so that a compiled engine that reads or writes outside ends with SIGSEGV; the interpreted one
gets exact buffers, and its reads outside raise IndexError. What is being done is noted in a file
before it is done, for whoever finds the process dead.

    python -m tests.bounds_worker FILE LINK STRIDE
"""

import contextlib
import ctypes
import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from netstack_gro import (
    Batch,
    GroConfig,
    GroDispatcher,
    GsoError,
    IpIdMode,
    VirtioHeader,
    complete_checksum,
    segment,
)
from tests.builders import TCP, UDP, fix_checksums, ip_offset
from tests.drafts import FAULTS
from tests.traffic import FlowSpec, Traffic, TrafficPacket, applicable

PAGE = mmap.PAGESIZE
ROOM = 17 * PAGE  # the largest IP packet with any link header
PROT_NONE = 0  # sys/mman.h
SIZES = (10, 9)  # payloads: of even and odd length


class Fenced:
    """Memory between two pages that may not be touched."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, ROOM + 2 * PAGE)
        view = (ctypes.c_char * len(self.memory)).from_buffer(self.memory)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for page in (0, ROOM + PAGE):
            if libc.mprotect(ctypes.addressof(view) + page, PAGE, PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.room = memoryview(self.memory)[PAGE : PAGE + ROOM]

    def at_end(self, data: bytes) -> memoryview:
        """`data` with its last byte before the fence."""
        view = self.room[ROOM - len(data) :]
        view[:] = data
        return view

    def at_start(self, data: bytes) -> memoryview:
        """`data` with its first byte behind the fence."""
        view = self.room[: len(data)]
        view[:] = data
        return view


class Notes:
    """What is being done, in a file that outlives the process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.count = 0

    def note(self, what: str, *packets: TrafficPacket) -> None:
        self.count += 1
        lines = [what, *(f"[{packet.label}] {packet.data.hex()}" for packet in packets), "", ""]
        os.pwrite(self.descriptor, "\n".join(lines).encode(), 0)


def whole_packets(link: str) -> Iterator[TrafficPacket]:
    """Ordinary packets and every fault that makes sense on the link, small ones of each kind."""
    families = {"ipv4": (4,), "ipv6": (6,)}.get(link, (4, 6))
    for family in families:
        for protocol in (TCP, UDP):
            for name in ("next", *applicable(family, protocol, link)):
                for a in (0, 1, 2, 7):
                    spec = FlowSpec(family, protocol, size=SIZES[a % 2], options=a % 2)
                    traffic = Traffic(link, [spec])
                    traffic.step(0)
                    yield from traffic.step(0, name, a)
                    if name not in FAULTS:
                        break


def truncations(
    packet: TrafficPacket, link: str, lengths: Iterable[int]
) -> Iterator[TrafficPacket]:
    """The packet cut at `lengths`, as it is and with an IP length that agrees with the cut."""
    data = packet.data
    for length in lengths:
        cut = data[:length]
        yield TrafficPacket(cut, checksum=packet.checksum, virtio=packet.virtio, label=packet.label)
        fixed = bytearray(cut)
        try:
            at = ip_offset(cut, link)
            if cut[at] >> 4 == 4:
                fixed[at + 2 : at + 4] = (length - at).to_bytes(2, "big")
            else:
                fixed[at + 4 : at + 6] = max(length - at - 40, 0).to_bytes(2, "big")
            agreeing = fix_checksums(bytes(fixed), link) if len(fixed) == length else cut
        except Exception:  # too little is left to have a length
            continue
        yield TrafficPacket(
            agreeing, checksum=packet.checksum, virtio=packet.virtio, label=f"{packet.label}, fixed"
        )


class Exercise:
    """An engine whose hook touches all that a packet offers."""

    def __init__(self, link: str) -> None:
        self.target = Fenced()
        self.calls = 0
        self.engines = [
            GroDispatcher(self, GroConfig(link=link, udp=True, capacity=4, **fields))
            for fields in ({}, {"received_checksums": "trust"}, {"delivered_checksums": "partial"})
        ]

    def __call__(self, packets: list[Any]) -> None:
        self.calls += 1
        for packet in packets:
            data = bytes(packet)
            if b"".join(packet.buffers()) != data:
                raise AssertionError("pieces are not the packet's bytes")
            packet.copy_into(self.target.room[ROOM - len(data) :])
            packet.copy_into(self.target.room[: len(data)])
            packet.virtio_header()
            packet.fits(1500)
            packet.timestamps()
            for piece in packet.segments():
                len(piece)
            if self.calls & 1 and packet.header:
                packet.header[0] = packet.header[0]
                packet.header[-1] = packet.header[-1]
            if self.calls & 2:
                packet.detach()


HEADERS = [
    VirtioHeader(flags, gso, 0, size, start, offset)
    for flags, gso, size, start, offset in (
        (1, 1, 3, 20, 16),
        (1, 4, 3, 40, 16),
        (1, 5, 3, 20, 6),
        (0, 5, 1, 40, 6),
        (0, 1, 1, 34, 16),
        (1, 1, 3, 36, 16),
        (1, 4, 3, 54, 16),
        (0, 0x81, 65534, 0, 0),
        (1, 0, 0, 0, 0),
        (1, 0, 0, 65535, 65535),
    )
]


def cut_and_complete(view: memoryview, link: str, start: int) -> None:
    """Cut and complete by headers that fit and that do not; only GsoError may come of it."""
    size = len(view)
    edges = [
        VirtioHeader(1, 0, 0, 0, min(at, 65535), offset)
        for at in (max(size - 2, 0), size, start)
        for offset in (0, 1, 2, 16)
    ]
    fitting = [VirtioHeader(1, gso, 0, 2, start, 6 if gso == 5 else 16) for gso in (1, 4, 5)]
    for header in (*HEADERS, *fitting):
        for named in (None, link):
            with contextlib.suppress(GsoError):
                for piece in segment(view, header, IpIdMode.INCREMENT, link=named):
                    len(piece)
    for header in (*HEADERS, *edges, *fitting):
        with contextlib.suppress(GsoError):
            complete_checksum(view, header)


class Run:
    """Everything on one link.

    Faulty packets are cut at every `stride`-th length, others at 12 times as many.
    """

    def __init__(self, link: str, stride: int, notes: Notes) -> None:
        self.link = link
        self.stride = stride
        self.notes = notes
        self.first, self.second = Fenced(), Fenced()
        self.slab = Batch(self.first.room, capacity=2)
        self.exercise = Exercise(link)
        self.heads: list[TrafficPacket] = []
        self.seen: set[tuple[object, ...]] = set()

    def all(self) -> None:
        """Every packet, whole and truncated."""
        for number, whole in enumerate(whole_packets(self.link)):
            if not whole.label:
                self.heads.append(whole)
            step = self.stride if whole.label else max(1, self.stride // 12)
            lengths = range(number % step, min(len(whole.data), 140), step)
            for packet in (whole, *truncations(whole, self.link, lengths)):
                key = (packet.data, packet.checksum, packet.virtio)
                if key not in self.seen:
                    self.seen.add(key)
                    self.one(packet, len(self.seen))

    def one(self, packet: TrafficPacket, number: int) -> None:
        """One packet, by itself, behind a head and as a head, cut and completed."""
        data, note = packet.data, self.notes.note
        meta: dict[str, Any] = {"checksum": packet.checksum, "virtio": packet.virtio}
        gro = self.exercise.engines[number % 3]
        head = self.heads[number % len(self.heads)]
        place = ("at_end", "at_end", "at_start")[number % 3]
        other = getattr(self.second, place)(head.data)
        view = getattr(self.first, place)(data)
        note(f"{place}, enqueued by itself", packet)
        gro.enqueue(view, **meta)
        gro.flush()
        note(f"{place}, alone in its batch", packet)
        gro.dispatch([view])
        note(f"{place}, behind a head", head, packet)
        gro.enqueue(other)
        gro.enqueue(view, **meta)
        gro.enqueue(view, **meta)
        gro.flush()
        note(f"{place}, as a head", packet, head)
        gro.enqueue(view, **meta)
        gro.enqueue(other)
        gro.flush()
        if number % 3 == 0:
            note("cut and completed", packet)
            cut_and_complete(view, self.link, transport_of(data, self.link))
        if number % 4 == 0:
            self.first.at_end(data)
            note("at the end of a slab", packet)
            self.slab.add(ROOM - len(data), len(data), **meta)
            self.slab.add(ROOM, 0)
            gro.dispatch(self.slab)
            self.slab.clear()


def transport_of(data: bytes, link: str) -> int:
    """Where the transport header of an ordinary packet is, or would be."""
    try:
        at = ip_offset(data, link)
        return at + (20 if data[at] >> 4 == 4 else 40)
    except Exception:  # it ends before that
        return len(data)


def main(name: str, link: str, stride: str) -> int:
    """Returns the exit status; standard output says how much was done."""
    with open(name, "wb", buffering=0) as stream:  # noqa: PTH123
        notes = Notes(stream.fileno())
        Run(link, int(stride), notes).all()
    print(f"{notes.count} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
