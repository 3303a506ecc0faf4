"""The memory of a packet ring, block by block, and what becomes of a block that is looked at.

A view that somebody kept into a block must go on showing the same bytes, while the kernel needs
the block again. So such a block is replaced: its pages are exchanged, in place, for a private copy
that lives as long as its views do, and the ring's own pages are mapped again elsewhere. The mmap
module has no word for that, and would keep a duplicate of the socket open: this uses mmap(2).

What the views of a block refer to is an mmap object all the same, made without a file for the
sake of its addresses, to which the ring's pages are moved. It unmaps what is there when the last
reference to it goes, later than every callback and finalizer of a collected cycle: those may still
look at the block.
"""

import contextlib
import ctypes
import mmap
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
    """The ring of a packet socket, mapped: ``count`` blocks of ``size`` bytes, each by itself.

    blocks: each as an object with the buffer protocol, to be looked at through its views only.
    headers: writable views of the struct tpacket_block_desc that each begins with.
    Both lists are changed by `replace`, and empty after `close`.

    Raises OSError where the kernel refuses.
    """

    __slots__ = ("_alone", "_count", "_descriptor", "_kept", "_size", "blocks", "headers")

    def __init__(self, descriptor: int, size: int, count: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._count = count
        self._kept: list[weakref.ref[Any]] = []
        self.blocks: list[Any] = []
        self.headers: list[memoryview] = []
        start = self._map_ring()
        try:
            for number in range(count):
                self.blocks.append(_moved(start + number * size, size))
        except BaseException as error:
            # The one at hand may have been moved already when a signal came.
            done = (len(self.blocks) + (not isinstance(error, OSError))) * size
            if done < count * size:
                _munmap(start + done, count * size - done)
            raise
        self.headers += map(_header, self.blocks)
        # However many references this interpreter counts for an object that nobody else has.
        self._alone = sys.getrefcount(self.blocks[0])

    @property
    def kept(self) -> int:
        """Blocks that are the ring's no longer, and of which views still exist."""
        self._kept = [kept for kept in self._kept if kept() is not None]
        return len(self._kept)

    def is_looked_at(self, number: int) -> bool:
        """Whether a view of a block exists."""
        return sys.getrefcount(self.blocks[number]) > self._alone

    def replace(self, number: int) -> None:
        """Leave a block's bytes, as a copy, to its views, and map the ring's pages elsewhere.

        Raises OSError where there is no memory; nothing has changed then.
        """
        fresh = self._map_block(number)
        header = _header(fresh)
        former = self.blocks[number], self.headers[number]
        self.blocks[number], self.headers[number] = fresh, header
        try:
            _copy_in_place(former[0], self._size)
        except OSError:
            self.blocks[number], self.headers[number] = former
            raise
        except BaseException:  # a signal: before or after, and a copy can be copied
            _copy_in_place(former[0], self._size)
            raise
        finally:
            if self.blocks[number] is fresh:
                self._kept.append(weakref.ref(former[0]))

    def close(self) -> None:
        """Unmap the ring. Views of its blocks stay readable. Closing again does nothing.

        Where there is no memory for a copy of a block that is looked at, the block itself stays
        mapped until its views are gone, and the kernel keeps the ring for as long.
        """
        while self.blocks:
            last = len(self.blocks) - 1
            if self.is_looked_at(last):
                former = self.blocks[last]
                with contextlib.suppress(OSError):
                    _copy_in_place(former, self._size)
                self._kept.append(weakref.ref(former))
                del former
            del self.headers[last:]
            del self.blocks[last:]

    def _map_ring(self) -> int:
        """Map all of the ring: the kernel gives all or nothing."""
        return _mapped(_mmap(None, self._count * self._size, PROT, MAP_SHARED, self._descriptor, 0))

    def _map_block(self, number: int) -> mmap.mmap:
        """Map one block of the ring once more."""
        size = self._size
        before = number * size
        after = (self._count - number - 1) * size
        start = self._map_ring()
        try:
            return _moved(start + before, size)
        except OSError:
            _munmap(start + before, size)
            raise
        finally:
            if before:
                _munmap(start, before)
            if after:
                _munmap(start + before + size, after)


def _moved(address: int, size: int) -> mmap.mmap:
    """An object that has the pages at ``address``, which are moved to where it is."""
    block = mmap.mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS, prot=PROT)
    _move(address, size, _address(block))
    return block


def _copy_in_place(block: mmap.mmap, size: int) -> None:
    """Exchange the pages of a block for a copy, which nobody else writes to."""
    address = _address(block)
    copy = _mapped(_mmap(None, size, PROT, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))
    try:
        ctypes.memmove(copy, address, size)
        _move(copy, size, address)
    except OSError:
        _munmap(copy, size)
        raise


def _move(address: int, size: int, target: int) -> None:
    """Move pages in place of others."""
    _mapped(_mremap(address, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, target))


def _address(block: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(block))


def _header(block: mmap.mmap) -> memoryview:
    return memoryview(block)[:BLOCK_HEADER]


def _mapped(address: int | None) -> int:
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address
