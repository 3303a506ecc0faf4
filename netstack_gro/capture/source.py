"""Bytes of a capture from a path, a pipe, standard input or a binary file object, gzip undone.

Nothing here seeks, and nothing reads more than is there: data arrives in pieces of a fixed size,
so memory follows what a file holds and never what a length field in it claims.
"""

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TypeAlias

from netstack_gro.errors import CaptureError, CaptureFormatError

__all__ = ["ByteSource", "Source"]

Source: TypeAlias = "str | os.PathLike[str] | IO[bytes]"

STANDARD_INPUT = "-"

_PIECE = 256 * 1024
_GZIP_MAGIC = b"\x1f\x8b"  # RFC 1952 section 2.3.1
# A damaged deflate stream gives up what it made of the piece at hand, hence small ones.
_GZIP_PIECE = 16 * 1024


class ByteSource:
    """A forward-only source with a buffer that a parser looks into.

    ``buffer`` holds the (decompressed) bytes from offset ``base`` on. ``name`` is for messages.
    ``cut`` says that compressed data ended too early. ``bytes_read`` counts the file's own
    bytes, before decompression; ``size`` is how many it has, or None where that is not known.

    A file that is opened here is closed by `close`; a given file object and standard input stay
    open, positioned anywhere.
    """

    def __init__(self, source: Source) -> None:
        """Open ``source``. CaptureError where it cannot be opened or read."""
        self.buffer: bytes = b""
        self.base: int = 0
        self.cut: bool = False
        self.bytes_read: int = 0
        self.name: str
        self.name, self._stream, self._owned = _open(source)
        self.size: int | None = _size_of(self._stream)
        # read1 returns what is there; read of a buffered pipe would wait for a whole piece.
        self._read_stream: Callable[[int], bytes | None]
        self._read_stream = getattr(self._stream, "read1", self._stream.read)
        self._read: Callable[[int], bytes] = self._read_raw
        try:
            self._detect_gzip()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file if it was opened here. Idempotent."""
        if self._owned:
            self._stream.close()

    def refill(self, consumed: int, need: int) -> bytes:
        """Drop ``consumed`` bytes of the buffer, then read until it has ``need`` or all ends.

        Returns the new buffer, shorter than ``need`` only at the end. Raises CaptureError where
        the file cannot be read, CaptureFormatError where its compressed data is damaged.
        """
        pieces = [self.buffer[consumed:]]
        length = len(pieces[0])
        self.base += consumed
        self.buffer = pieces[0]
        while length < need:
            piece = self._next_piece()
            if not piece:
                break
            pieces.append(piece)
            length += len(piece)
        self.buffer = b"".join(pieces)
        return self.buffer

    def damage(self, position: int, message: str) -> CaptureFormatError:
        """The error for what stands at ``position`` of the buffer."""
        return CaptureFormatError(self.name, message, self.base + position)

    def _next_piece(self) -> bytes:
        try:
            return self._read(_PIECE)
        except EOFError:
            self.cut = True
            return b""
        except (gzip.BadGzipFile, zlib.error) as error:
            offset = self.base + len(self.buffer)
            message = f"compressed data is damaged: {error}"
            raise CaptureFormatError(self.name, message, offset) from error
        except OSError as error:
            raise _os_error(self.name, "cannot be read", error) from error

    def _read_raw(self, size: int) -> bytes:
        piece = self._read_stream(size)
        if piece is None:
            raise BlockingIOError("it is non-blocking and has no data now")
        if not isinstance(piece, bytes):
            raise TypeError(f"{self.name}: a capture is read from a file opened in binary mode")
        self.bytes_read += len(piece)
        return piece

    def _detect_gzip(self) -> None:
        start = self.refill(0, len(_GZIP_MAGIC))
        if start.startswith(_GZIP_MAGIC):
            compressed = _Compressed(start, self._read_raw)
            self._read = gzip.GzipFile(fileobj=compressed, mode="rb").read1
            self.buffer = b""


class _Compressed:
    """The file object that GzipFile reads: bytes already seen, then the rest, in small pieces."""

    def __init__(self, start: bytes, read: Callable[[int], bytes]) -> None:
        self._start = io.BytesIO(start)
        self._read = read

    def read(self, size: int, /) -> bytes:
        size = min(size, _GZIP_PIECE)
        return self._start.read(size) or self._read(size)

    def seek(self, _offset: int, /) -> int:
        raise io.UnsupportedOperation("a capture is read forwards only")


def _open(source: Source) -> tuple[str, IO[bytes], bool]:
    """Name, stream, and whether the stream is ours to close."""
    if isinstance(source, str) and source == STANDARD_INPUT:
        standard_input = getattr(sys.stdin, "buffer", None)
        if standard_input is None:
            raise CaptureError("standard input", "there is none to read bytes from")
        return "standard input", standard_input, False
    if isinstance(source, str | os.PathLike):
        name = os.fsdecode(source)
        try:
            return name, Path(source).open("rb", buffering=0), True
        except OSError as error:
            raise _os_error(name, "cannot be opened", error) from error
        except ValueError as error:  # a NUL in the name
            raise CaptureError(name, f"cannot be opened: {error}") from error
    if not callable(getattr(source, "read", None)):
        raise TypeError(f"a capture is a path or a binary file object, not {source!r}")
    given: object = getattr(source, "name", None)
    return given if isinstance(given, str) else "<stream>", source, False


def _size_of(stream: IO[bytes]) -> int | None:
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _os_error(name: str, what: str, error: OSError) -> CaptureError:
    """The CaptureError for an OSError, which keeps its errno."""
    result = CaptureError(name, f"{what}: {error.strerror or error}")
    result.errno = error.errno
    return result
