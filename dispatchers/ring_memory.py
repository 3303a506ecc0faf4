"""The memory of a packet ring, block by block, and what becomes of a block that is looked at.

A view that somebody kept into a block must go on showing the same bytes, while the kernel needs
the block again. So such a block is replaced: its pages are exchanged, in place, for a private copy
that lives as long as its views do, and the ring's own pages are mapped again elsewhere. The mmap
module has no word for that, and would keep a duplicate of the socket open: this uses mmap(2).
"""

import ctypes
import os
import sys
import weakref
from typing import Any

__all__ = ["RingMemory"]

BLOCK_HEADER = 48  # struct tpacket_block_desc, include/uapi/linux/if_packet.h

PROT = 1 | 2  # PROT_READ | PROT_WRITE, include/uapi/asm-generic/mman-common.h
MAP_SHARED = 1  # include/uapi/linux/mman.h
MAP_PRIVATE = 2
MAP_ANONYMOUS = 0x20
MREMAP_MAYMOVE = 1
MREMAP_FIXED = 2
_FAILED = ctypes.c_void_p(-1).value

if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
    _mmap = _libc.mmap
    _mmap.restype = ctypes.c_void_p
    _mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    _munmap = _libc.munmap
    _munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _mremap = _libc.mremap
    _mremap.restype = ctypes.c_void_p
    _mremap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_void_p,
    )


class RingMemory:
    """The ring of a packet socket, mapped: ``count`` blocks of ``size`` bytes.

    blocks: each as an object with the buffer protocol, to be looked at through its views only.
    headers: writable views of the struct tpacket_block_desc that each begins with.
    Both lists are changed by `replace`.

    Raises OSError where the kernel refuses.
    """

    __slots__ = (
        "_addresses",
        "_alone",
        "_count",
        "_descriptor",
        "_kept",
        "_size",
        "blocks",
        "headers",
    )

    def __init__(self, descriptor: int, size: int, count: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._count = count
        self._kept: list[weakref.finalize[Any, Any]] = []
        start = self._map_ring()
        self._addresses = [start + number * size for number in range(count)]
        self.blocks: list[Any] = [self._block(address) for address in self._addresses]
        self.headers: list[memoryview] = [_header(address) for address in self._addresses]
        # However many references this interpreter counts for an object that nobody else has.
        self._alone = sys.getrefcount(self.blocks[0])

    @property
    def kept(self) -> int:
        """Replaced blocks of which views still exist."""
        self._kept = [end for end in self._kept if end.alive]
        return len(self._kept)

    def is_looked_at(self, number: int) -> bool:
        """Whether a view of a block exists."""
        return sys.getrefcount(self.blocks[number]) > self._alone

    def replace(self, number: int) -> None:
        """Leave a block's bytes, as a copy, to its views, and map the ring's pages elsewhere.

        Raises OSError where there is no memory; nothing has changed then.
        """
        start = self._map_ring()
        try:
            self._part_with(number)
        except BaseException:
            _munmap(start, self._count * self._size)
            raise
        address = start + number * self._size
        end = address + self._size
        if number:
            _munmap(start, address - start)
        if number + 1 < self._count:
            _munmap(end, start + self._count * self._size - end)
        self._addresses[number] = address
        self.blocks[number] = self._block(address)
        self.headers[number] = _header(address)

    def close(self) -> None:
        """Unmap the ring. Views of its blocks stay readable. Closing again does nothing."""
        for number, address in enumerate(self._addresses):
            if self.is_looked_at(number):
                self._part_with(number)
            else:
                _munmap(address, self._size)
        self._addresses = []
        self.blocks = []
        self.headers = []

    def _block(self, address: int) -> Any:
        return (ctypes.c_ubyte * self._size).from_address(address)

    def _map_ring(self) -> int:
        """Map all of the ring: the kernel gives all or nothing."""
        return _mapped(_mmap(None, self._count * self._size, PROT, MAP_SHARED, self._descriptor, 0))

    def _part_with(self, number: int) -> None:
        """Exchange the pages of a block for a copy, which is freed when its views are gone."""
        size = self._size
        address = self._addresses[number]
        copy = _mapped(_mmap(None, size, PROT, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))
        ctypes.memmove(copy, address, size)
        try:
            _mapped(_mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, address))
        except OSError:
            _munmap(copy, size)
            raise
        end = weakref.finalize(self.blocks[number], _munmap, address, size)
        end.atexit = False  # views may be read until the very end
        self._kept.append(end)


def _header(address: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * BLOCK_HEADER).from_address(address)).cast("B")


def _mapped(address: int | None) -> int:
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address
