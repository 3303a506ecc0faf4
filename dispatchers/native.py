"""Memory that the kernel reads and writes: native-order loads and stores, layouts, system calls.

Python has no recvmmsg(2) and no sendmmsg(2). The interpreted dispatchers call them through
ctypes, the compiled ones directly: ``native.pxd`` and ``_native.h`` are the C side of this
module, which is never compiled. Memory is a bytearray here and a pointer there, ``at`` an
offset into it. The system calls release the GIL, and answer with ``-errno`` instead of raising.
"""

import ctypes
import os
import sys
from struct import Struct
from typing import Any

__all__ = [
    "CMSGHDR",
    "CMSG_LEVEL",
    "CMSG_TYPE",
    "IOVEC",
    "IOV_BASE",
    "IOV_LEN",
    "MMSGHDR",
    "MSG_CONTROL",
    "MSG_CONTROLLEN",
    "MSG_FLAGS",
    "MSG_IOV",
    "MSG_IOVLEN",
    "MSG_LEN",
    "MSG_NAME",
    "MSG_NAMELEN",
    "address",
    "cmsg_align",
    "i32",
    "i64",
    "put16",
    "put32",
    "put_size",
    "read_many",
    "recvmmsg",
    "sendmmsg",
    "size",
    "u16",
    "u32",
]


class _IoVec(ctypes.Structure):  # struct iovec, include/uapi/linux/uio.h
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _MsgHdr(ctypes.Structure):  # struct msghdr as glibc and musl have it, recvmsg(2)
    _fields_ = (
        ("name", ctypes.c_void_p),
        ("namelen", ctypes.c_uint),
        ("iov", ctypes.c_void_p),
        ("iovlen", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("controllen", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _MMsgHdr(ctypes.Structure):  # struct mmsghdr, recvmmsg(2)
    _fields_ = (("header", _MsgHdr), ("length", ctypes.c_uint))


class _CMsgHdr(ctypes.Structure):  # struct cmsghdr, cmsg(3)
    _fields_ = (("length", ctypes.c_size_t), ("level", ctypes.c_int), ("type", ctypes.c_int))


_WORD = ctypes.sizeof(ctypes.c_size_t)

MMSGHDR = ctypes.sizeof(_MMsgHdr)
MSG_NAME = _MsgHdr.name.offset
MSG_NAMELEN = _MsgHdr.namelen.offset
MSG_IOV = _MsgHdr.iov.offset
MSG_IOVLEN = _MsgHdr.iovlen.offset
MSG_CONTROL = _MsgHdr.control.offset
MSG_CONTROLLEN = _MsgHdr.controllen.offset
MSG_FLAGS = _MsgHdr.flags.offset
MSG_LEN = _MMsgHdr.length.offset
IOVEC = ctypes.sizeof(_IoVec)
IOV_BASE = _IoVec.base.offset
IOV_LEN = _IoVec.length.offset
CMSGHDR = -(-ctypes.sizeof(_CMsgHdr) // _WORD) * _WORD
CMSG_LEVEL = _CMsgHdr.level.offset
CMSG_TYPE = _CMsgHdr.type.offset

_U16 = Struct("=H")
_U32 = Struct("=I")
_I32 = Struct("=i")
_I64 = Struct("=q")
_SIZE = Struct("@N")

Memory = bytes | bytearray | memoryview

if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
    _recvmmsg = _libc.recvmmsg
    _recvmmsg.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_uint,
        ctypes.c_int,
        ctypes.c_void_p,
    )
    _sendmmsg = _libc.sendmmsg
    _sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


def u16(base: Memory, at: int) -> int:
    """The unsigned 16 bits at ``at``."""
    return _U16.unpack_from(base, at)[0]  # type: ignore[no-any-return]


def u32(base: Memory, at: int) -> int:
    """The unsigned 32 bits at ``at``."""
    return _U32.unpack_from(base, at)[0]  # type: ignore[no-any-return]


def i32(base: Memory, at: int) -> int:
    """The signed 32 bits at ``at``."""
    return _I32.unpack_from(base, at)[0]  # type: ignore[no-any-return]


def i64(base: Memory, at: int) -> int:
    """The signed 64 bits at ``at``."""
    return _I64.unpack_from(base, at)[0]  # type: ignore[no-any-return]


def size(base: Memory, at: int) -> int:
    """The size_t at ``at``."""
    return _SIZE.unpack_from(base, at)[0]  # type: ignore[no-any-return]


def put16(base: Any, at: int, value: int) -> None:
    """Store unsigned 16 bits."""
    _U16.pack_into(base, at, value)


def put32(base: Any, at: int, value: int) -> None:
    """Store unsigned 32 bits."""
    _U32.pack_into(base, at, value)


def put_size(base: Any, at: int, value: int) -> None:
    """Store a size_t or a pointer."""
    _SIZE.pack_into(base, at, value)


def address(base: Any, at: int) -> int:
    """The address of a byte: for as long as ``base`` is neither resized nor freed."""
    return ctypes.addressof(ctypes.c_char.from_buffer(base, at))


def cmsg_align(length: int) -> int:
    """``length`` rounded up to where the next control message starts (CMSG_ALIGN)."""
    return (length + _WORD - 1) // _WORD * _WORD


def recvmmsg(fd: int, base: Memory, at: int, count: int, flags: int) -> int:
    """Receive into the vector of ``count`` struct mmsghdr at ``at``: messages, or -errno."""
    result = _recvmmsg(fd, address(base, at), count, flags, None)
    return result if result >= 0 else -ctypes.get_errno()


def sendmmsg(fd: int, base: Memory, at: int, count: int, flags: int) -> int:
    """Send the vector of ``count`` struct mmsghdr at ``at``: messages, or -errno."""
    result = _sendmmsg(fd, address(base, at), count, flags)
    return result if result >= 0 else -ctypes.get_errno()


def read_many(fd: int, base: Memory, stride: int, count: int, lengths: list[int]) -> int:
    """Read up to ``count`` packets, one read(2) each, ``stride`` bytes apart: how many.

    ``lengths`` holds the bytes of each. Where fewer than ``count`` were read, the entry after
    the last says why: 0 for the end, else -errno.
    """
    with memoryview(base) as view:
        for done in range(count):
            with view[done * stride : (done + 1) * stride] as room:
                try:
                    got = os.readv(fd, [room])
                except OSError as error:
                    got = -(error.errno or 0)
            lengths[done] = got
            if got <= 0:
                return done
    return count
