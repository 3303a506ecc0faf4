"""What a datagram of a train is at either speed: a `trains.Datagram` or a memoryview."""

from collections.abc import Iterator
from typing import Protocol, overload

__all__ = ["DatagramLike"]


class DatagramLike(Protocol):
    """A read-only bytes-like object: anything that takes the buffer protocol takes it.

    It compares equal to bytes-like objects of the same bytes, and cannot be hashed. A slice of it
    is a memoryview. Programs that use no more than this run the same at either speed.
    """

    def __buffer__(self, flags: int, /) -> memoryview:
        """The buffer protocol, as type checkers know it (PEP 688)."""
        ...

    def __len__(self) -> int:
        """Bytes of payload."""
        ...

    def __iter__(self) -> Iterator[int]: ...

    @overload
    def __getitem__(self, index: int, /) -> int: ...

    @overload
    def __getitem__(self, index: slice, /) -> memoryview: ...

    def __eq__(self, other: object, /) -> bool: ...

    def tobytes(self) -> bytes:
        """A copy of the payload."""
        ...
