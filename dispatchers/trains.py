"""Train: the datagrams of one sender that one read of a UDP socket gave; Datagram: one of them.

With UDP_GRO the kernel hands on what arrived back to back as one buffer and one segment size, up
to 64 datagrams from the wire and 128 from the same host. All but the last have that size.

A `Datagram` takes 20 to 24 nanoseconds to make, where a slice of a memoryview takes 110.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from netstack_gro import records
from netstack_gro.buffers import exact
from netstack_gro.dispatchers import held
from netstack_gro.dispatchers.addresses import (
    ECN_MASK,
    Address,
    PacketInfo,
    decode_address,
    decode_info,
)

if TYPE_CHECKING:
    from netstack_gro.dispatchers.datagrams import DatagramLike

__all__ = ["Datagram", "Train"]


class Datagram:
    """One datagram of a train: a read-only bytes-like object that shares the train's memory.

    It takes part in whatever takes the buffer protocol: ``memoryview(d)``, ``bytes(d)``,
    ``b"".join``, ``sendto``, ``struct.unpack_from``. It stays valid for as long as it is held,
    and keeps the whole buffer of its train from being used again: keep ``bytes(d)`` of a few
    datagrams rather than the datagrams.

    Only compiled dispatchers make them. The interpreted ones give read-only memoryviews in their
    place: `DatagramLike` is what both are.
    """

    __slots__ = ("_length", "_offset", "_owner")

    _length: int
    _offset: int
    _owner: Any

    def __init__(self) -> None:
        raise TypeError("cannot create 'Datagram' instances")

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'Datagram' object")

    def __len__(self) -> int:
        """Bytes of payload."""
        return self._length

    def __eq__(self, other: object) -> bool:
        return memoryview(self) == other  # type: ignore[arg-type]

    def __getitem__(self, index: Any) -> Any:
        return memoryview(self)[index]  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        return iter(memoryview(self))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<Datagram of {self._length} bytes>"

    def tobytes(self) -> bytes:
        """A copy of the payload."""
        return bytes(self)


class Train:
    """The datagrams that one read gave: a sequence of them, with what they have in common.

    ``len(train)`` is how many; ``train[0]``, ``for datagram in train`` and `datagrams` give them
    as bytes-like objects (`DatagramLike`), in the order in which they arrived. A train stays
    valid for as long as it is held, also after the hook has returned, and keeps its buffer from
    being used again. Only a dispatcher makes them.
    """

    __slots__ = ("_info", "_length", "_memory", "_name", "_segment", "_time", "_tos")

    _info: bytes | None
    _length: int
    _memory: Any
    _name: bytes | None
    _segment: int
    _time: int
    _tos: int

    def __init__(self) -> None:
        raise TypeError("cannot create 'Train' instances")

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'Train' object")

    def __len__(self) -> int:
        """How many datagrams; an empty datagram is one."""
        return self._count()

    def __iter__(self) -> "Iterator[DatagramLike]":
        return iter(self.datagrams())

    def __getitem__(self, index: int | slice) -> Any:
        """One datagram, or a list of those of a slice."""
        if isinstance(index, slice):
            return self.datagrams()[index]
        count = self._count()
        place = exact(index)
        if place < 0:
            place += count
        if not 0 <= place < count:
            raise IndexError("train index out of range")
        start = place * self._segment
        return self._cut(start, min(start + self._segment, self._length))

    def __repr__(self) -> str:
        count = self._count()
        size = f"{self._segment} bytes" if count > 1 else f"{self._length} bytes"
        return f"<Train of {count} x {size}>"

    def datagrams(self) -> "list[DatagramLike]":
        """All datagrams, in a list of their own."""
        return self._cut_all()

    def tobytes(self) -> bytes:
        """The payloads of all datagrams, one after another, copied."""
        return bytes(self.buffer)

    @property
    def buffer(self) -> memoryview:
        """The payloads of all datagrams, one after another: a read-only view."""
        return memoryview(self._cut(0, self._length))

    @property
    def length(self) -> int:
        """Bytes of all payloads together."""
        return self._length

    @property
    def segment_size(self) -> int:
        """Bytes of payload of each datagram but the last, which may have fewer."""
        return self._segment

    @property
    def address(self) -> Address | None:
        """Where they came from, as the socket module gives it; None where that is unknown."""
        name = self._name
        return decode_address(name) if name else None

    @property
    def tos(self) -> int | None:
        """Their IPv4 type of service or IPv6 traffic class byte; None where it was not told."""
        return None if self._tos < 0 else self._tos

    @property
    def ecn(self) -> int | None:
        """Their ECN mark, 0 to 3 (RFC 3168 section 5); None where it was not told."""
        return None if self._tos < 0 else self._tos & ECN_MASK

    @property
    def packet_info(self) -> PacketInfo | None:
        """The address they were sent to and their interface; None where it was not told."""
        info = self._info
        return decode_info(info) if info else None

    @property
    def timestamp_ns(self) -> int | None:
        """When the kernel received the first, in nanoseconds since 1970; None: not told."""
        return None if self._time < 0 else self._time

    def _count(self) -> int:
        if self._length <= self._segment:
            return 1
        return (self._length + self._segment - 1) // self._segment

    def _cut(self, start: int, stop: int) -> Any:
        """Bytes ``start`` to ``stop``, which lie within the train, as an object of their own."""
        if self._memory is None:
            return memoryview(b"")  # of a train that nobody made
        if held.COMPILED:
            datagram = Datagram.__new__(Datagram)
            datagram._owner = self._memory
            datagram._offset = start
            datagram._length = stop - start
            return datagram
        return self._memory[start:stop]

    def _cut_all(self) -> "list[DatagramLike]":
        if self._length <= self._segment:
            return [self._cut(0, self._length)]
        start = 0
        datagrams = []
        while start < self._length:
            stop = start + self._segment
            stop = min(stop, self._length)
            datagrams.append(self._cut(start, stop))
            start = stop
        return datagrams


def make_train(memory: Any, length: int, segment: int) -> Train:
    """A train of the first ``length`` bytes of ``memory`` (`held.lent`), cut every ``segment``."""
    train = Train.__new__(Train)
    train._memory = memory
    train._length = length
    train._segment = segment
    train._name = None
    train._info = None
    train._tos = -1
    train._time = -1
    return train


records.seal(Datagram, ("_length", "_offset"), ("_owner",))
records.seal(Train, ("_length", "_segment", "_time", "_tos"), ("_info", "_memory", "_name"))
