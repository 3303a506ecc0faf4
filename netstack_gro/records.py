"""The engine's records: one per packet of a batch, one per head, one per hash bucket.

The interpreted engine uses these classes in lists; the compiled one uses the structs of the same
names and fields in ``records.pxd``, in arrays that are allocated once and never grow. Offsets
and lengths are in bytes; indices are positions in the arrays, -1 for none.
"""

from typing import Any

from netstack_gro.wire import Base

__all__ = [
    "AGGREGATED",
    "NEEDS_CSUM",
    "VNET",
    "Bucket",
    "Head",
    "Parsed",
    "Slot",
    "blank",
    "blank_base",
    "bucket_at",
    "buckets",
    "bytes_base",
    "copy_slot",
    "counters",
    "finished",
    "forget_head",
    "forget_slot",
    "head_at",
    "heads",
    "indices",
    "kept",
    "lend",
    "no_head",
    "parsed",
    "piece",
    "release",
    "reusable",
    "seal",
    "slot_at",
    "slots",
    "space_base",
    "view_base",
    "writable",
]


# What a slot's flags say.
AGGREGATED = 1  # a super-packet of unknown gso_size
VNET = 2  # it came with a gso_type
NEEDS_CSUM = 4  # it came with csum_start and csum_offset


class Slot:
    """One packet of a batch: where it lies, what came with it, and what became of it.

    base, offset, length: the packet's bytes. wire_length: its length before it was cut off.
    vlan: TPID in the upper and TCI in the lower 16 bits, 0 for none. checksum: `ChecksumState`,
    0 for as configured. flags: AGGREGATED, VNET, NEEDS_CSUM. gso_type,
    gso_size, csum_start, csum_offset: its virtio_net_hdr's. Written by the engine: verdict;
    head (index of the head it opened or extends, -1 for a passed-through packet); header_length
    (where its payload starts); following (index of the next segment of its super-packet).
    """

    __slots__ = (
        "base",
        "checksum",
        "csum_offset",
        "csum_start",
        "flags",
        "following",
        "gso_size",
        "gso_type",
        "head",
        "header_length",
        "interface",
        "length",
        "offset",
        "timestamp_ns",
        "verdict",
        "vlan",
        "wire_length",
    )

    def __init__(self) -> None:
        self.base: Base = b""
        self.offset: int = 0
        self.timestamp_ns: int = 0
        self.length: int = 0
        self.wire_length: int = 0
        self.interface: int = 0
        self.vlan: int = 0
        self.checksum: int = 0
        self.flags: int = 0
        self.gso_type: int = 0
        self.verdict: int = 0
        self.gso_size: int = 0
        self.csum_start: int = 0
        self.csum_offset: int = 0
        self.header_length: int = 0
        self.head: int = -1
        self.following: int = -1


class Head:
    """An open super-packet, or the first segment of one to be.

    base, offset: its first packet's bytes, which stand for its flow's key and headers. network,
    transport: where its IP and transport headers start. payload: bytes so far; limit: bytes
    allowed. count, count_limit: segments so far and allowed. sequence: the TCP sequence number that
    continues it. flags: FIN and PSH gathered. ip_id, id_mode: the last ID and how IDs go on.
    ready: whether ip_sum and transport_sum (what is constant in the sums of its packets) are
    there. even_sum, odd_sum: what the checksums of its segments cover beside their payloads,
    apart for payloads that start at an even and at an odd offset. checksum: its packets'
    `ChecksumState`; given: the same as their slots have it; verified: whether its first packet
    has been. closed: `CloseReason`, 0 while open. barrier: the engine's when it opened.
    space: where in the header space its headers are, once it is delivered.
    """

    __slots__ = (
        "barrier",
        "base",
        "checksum",
        "closed",
        "count",
        "count_limit",
        "even_sum",
        "first",
        "flags",
        "given",
        "gso_size",
        "header_length",
        "id_mode",
        "interface",
        "ip_id",
        "ip_sum",
        "last",
        "limit",
        "network",
        "odd_sum",
        "offset",
        "open",
        "payload",
        "protocol",
        "ready",
        "sequence",
        "space",
        "transport",
        "transport_sum",
        "verified",
        "version",
        "vlan",
    )

    def __init__(self) -> None:
        self.base: Base = b""
        self.offset: int = 0
        self.even_sum: int = 0
        self.odd_sum: int = 0
        self.first: int = 0
        self.last: int = 0
        self.network: int = 0
        self.transport: int = 0
        self.header_length: int = 0
        self.payload: int = 0
        self.limit: int = 0
        self.count: int = 0
        self.count_limit: int = 0
        self.gso_size: int = 0
        self.space: int = -1
        self.barrier: int = 0
        self.sequence: int = 0
        self.interface: int = 0
        self.vlan: int = 0
        self.ip_sum: int = 0
        self.transport_sum: int = 0
        self.ip_id: int = 0
        self.version: int = 0
        self.protocol: int = 0
        self.flags: int = 0
        self.checksum: int = 0
        self.given: int = 0
        self.id_mode: int = 0
        self.closed: int = 0
        self.open: bool = False
        self.ready: bool = False
        self.verified: bool = False


class Parsed:
    """What one pass over a packet's headers found (see `headers.parse`)."""

    __slots__ = (
        "barrier",
        "flags",
        "header_length",
        "length",
        "network",
        "payload",
        "protocol",
        "readable",
        "refused",
        "transport",
        "version",
    )

    def __init__(self) -> None:
        self.network: int = 0
        self.transport: int = 0
        self.header_length: int = 0
        self.payload: int = 0
        self.length: int = 0
        self.version: int = 0
        self.protocol: int = 0
        self.flags: int = 0
        self.readable: bool = False
        self.barrier: bool = False
        self.refused: bool = False


class Bucket:
    """One place of the flow table; it is empty unless its generation is the engine's."""

    __slots__ = ("digest", "generation", "head")

    def __init__(self) -> None:
        self.generation: int = 0
        self.digest: int = 0
        self.head: int = -1


def slots(count: int) -> list[Slot]:
    """``count`` slots."""
    return [Slot() for _ in range(count)]


def heads(count: int) -> list[Head]:
    """``count`` heads."""
    return [Head() for _ in range(count)]


def parsed() -> Parsed:
    """One `Parsed`."""
    return Parsed()


def buckets(count: int) -> list[Bucket]:
    """``count`` empty buckets; generation 0 is never the engine's."""
    return [Bucket() for _ in range(count)]


def indices(count: int) -> list[int]:
    """``count`` indices."""
    return [0] * count


def counters(count: int) -> list[int]:
    """``count`` counters at zero."""
    return [0] * count


def release(records: object) -> None:
    """Free an array of records; here the garbage collector does."""


def slot_at(records: list[Slot], index: int) -> Slot:
    """The slot at ``index`` (a pointer in compiled code)."""
    return records[index]


def head_at(records: list[Head], index: int) -> Head:
    """The head at ``index`` (a pointer in compiled code)."""
    return records[index]


def no_head() -> Any:
    """No head: false (a null pointer in compiled code)."""
    return None


def bucket_at(records: list[Bucket], index: int) -> Bucket:
    """The bucket at ``index`` (a pointer in compiled code)."""
    return records[index]


def bytes_base(data: bytes) -> Base:
    """Where the bytes of a bytes object lie."""
    return data


def lend(slot: Slot, packets: list[Any], index: int, longest: int) -> bool:
    """Point a slot at an element of a list; False unless that is bytes, at most ``longest``."""
    packet = packets[index]
    if type(packet) is not bytes or len(packet) > longest:
        return False
    slot.base = packet
    slot.offset = 0
    slot.length = len(packet)
    return True


def view_base(data: object, view: memoryview) -> Base:
    """Where the bytes of ``data`` lie, of which ``view`` is a contiguous view."""
    return data if type(data) is bytes or type(data) is bytearray else view


def writable(base: Any) -> bytearray:
    """The same memory, for those who own it: a slab that a dispatcher reads into."""
    return base  # type: ignore[no-any-return]


def copy_slot(to: Slot, source: Slot) -> None:
    """Copy every field."""
    for name in Slot.__slots__:
        setattr(to, name, getattr(source, name))


def space_base(space: bytearray) -> bytearray:
    """Where the bytes of a bytearray lie; it must not be resized while this is used."""
    return space


def blank(count: int) -> bytearray:
    """``count`` bytes to be filled in and then passed to `finished` (bytes in compiled code)."""
    return bytearray(count)


def blank_base(data: bytearray) -> bytearray:
    """Where the bytes of a `blank` lie."""
    return data


def finished(data: bytearray) -> bytes:
    """A filled `blank` as bytes."""
    return bytes(data)


def kept(value: object, known: int) -> bool:
    """Whether somebody holds ``value`` beyond ``known`` references.

    Counting references is for compiled code; here the answer is always yes, which is safe.
    """
    del value, known
    return True


def reusable(data: object, count: int) -> bool:
    """Whether a former `blank` of ``count`` bytes is held by the asking variable alone, and may
    be filled in again; its hash is forgotten then.

    Counting references is for compiled code; here the answer is always no, which is safe.
    """
    del data, count
    return False


def piece(base: Base, at: int, count: int) -> bytes:
    """A copy of some bytes."""
    if at < 0 or at + count > len(base):
        raise IndexError(f"bytes {at} to {at + count} of {len(base)}")
    return bytes(base[at : at + count])


def seal(kind: type, zeros: tuple[str, ...], nones: tuple[str, ...]) -> None:
    """Make a class behave as the compiled one: nobody derives from it, and it starts empty.

    zeros, nones: attributes that are 0 or None in an instance whose ``__init__`` has not run.
    """

    def refuse(_cls: type) -> None:
        raise TypeError(f"type '{kind.__module__}.{kind.__name__}' is not an acceptable base type")

    def new(cls: type, *_args: object, **_kwargs: object) -> object:
        self: object = object.__new__(cls)
        for name in zeros:
            setattr(self, name, 0)
        for name in nones:
            setattr(self, name, None)
        return self

    kind.__init_subclass__ = classmethod(refuse)  # type: ignore[method-assign,assignment]
    kind.__new__ = new  # type: ignore[method-assign,assignment]


def forget_slot(slot: Slot) -> None:
    """Refer to the packet's memory no longer (a pointer holds nothing in compiled code)."""
    slot.base = b""


def forget_head(head: Head) -> None:
    """Refer to the first packet's memory no longer."""
    head.base = b""
