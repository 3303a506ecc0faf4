"""Reading a capture file, whatever its format: `open_capture` and the reader it returns."""

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Literal, Self, TypeAlias

from netstack_gro.capture import blocks, pcap
from netstack_gro.capture.pcapng import PcapngParser
from netstack_gro.capture.records import Findings, Interface, Record
from netstack_gro.capture.source import ByteSource, Source
from netstack_gro.errors import CaptureFormatError, CaptureTruncatedError

__all__ = ["CaptureReader", "open_capture"]

_Format: TypeAlias = Literal["pcap", "pcapng"]

_MAGIC_LENGTH = 4

# Files that are often taken for captures that are read here, and what to tell their owner.
_OTHER_FORMATS = {
    bytes.fromhex("a1b2cd34"): "the modified pcap format of old Linux patches is not supported",
    bytes.fromhex("34cdb2a1"): "the modified pcap format of old Linux patches is not supported",
    b"snoo": "a snoop file; convert it to pcapng",
    bytes.fromhex("28b52ffd"): "compressed with zstd; decompress it first",
    bytes.fromhex("04224d18"): "compressed with lz4; decompress it first",
    b"\xfd7zX": "compressed with xz; decompress it first",
    b"BZh9": "compressed with bzip2; decompress it first",
}


def open_capture(source: Source) -> "CaptureReader":
    """Open a pcap or pcapng capture, plain or compressed with gzip, for reading.

    ``source`` is a path, ``-`` for standard input, or a binary file object; a pipe does as
    well, because nothing seeks. Format, byte order and compression are told from the content.

    Raises CaptureError where it cannot be opened or read, CaptureTruncatedError where it ends
    within its first header, CaptureFormatError where it is no capture, and
    UnsupportedLinkTypeError for a pcap file of a link type that is not in `LINK_NAMES`.
    """
    return CaptureReader(source)


class CaptureReader:
    """An open capture: a context manager, and an iterator of its `Record`s. See `open_capture`.

    Iterating raises CaptureFormatError (with name and byte offset) at damage, after all records
    before it; then, as at the end, there are no more. UnsupportedLinkTypeError comes with the
    first packet of an interface whose link type is not read; one without packets does no harm.
    Damage of gzip data may cost the records of the 16 KiB before it.

    Memory is bounded by the largest record that the file really holds, at most 257 MiB.
    """

    __slots__ = ("_closed", "_findings", "_format", "_records", "_source")

    def __init__(self, source: Source) -> None:
        self._closed = False
        self._findings = Findings()
        self._source = ByteSource(source)
        try:
            self._format, self._records = _begin(self._source, self._findings)
        except BaseException:
            self._source.close()
            raise

    @property
    def name(self) -> str:
        """The path, or what stands for it in messages."""
        return self._source.name

    @property
    def format(self) -> _Format:
        """Which of the two formats the file has."""
        return self._format

    @property
    def interfaces(self) -> list[Interface]:
        """The interfaces described so far, which `Record.interface` indexes.

        A pcapng file describes each anywhere before its first packet, so the list grows with
        reading. It counts on over the sections of a file, each of which begins at 0 for itself.
        """
        return self._findings.interfaces

    @property
    def warnings(self) -> list[str]:
        """What was amiss and could be read all the same, in words, without the file's name."""
        return self._findings.warnings

    @property
    def truncated(self) -> bool:
        """The file ended within a record, or its compressed data ended early.

        All whole records were read, and there is a warning. False until the end is reached.
        """
        return self._findings.truncated

    @property
    def size(self) -> int | None:
        """Bytes in the file, or None for a pipe or an object without a descriptor."""
        return self._source.size

    @property
    def bytes_read(self) -> int:
        """Bytes of the file (compressed ones, if it is) taken from it so far."""
        return self._source.bytes_read

    def close(self) -> None:
        """Close the file, if `open_capture` opened it. Idempotent."""
        self._closed = True
        self._records.close()
        self._source.close()

    def __iter__(self) -> Iterator[Record]:
        """One iterator for all loops: a second one goes on where the first was left."""
        self._check_open()
        return self._records

    def __next__(self) -> Record:
        self._check_open()
        return next(self._records)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self.name}: the capture was closed")


def _begin(source: ByteSource, findings: Findings) -> tuple[_Format, Generator[Record, None, None]]:
    """Tell the format by the magic number and read the first header."""
    start = source.refill(0, _MAGIC_LENGTH)
    magic = start[:_MAGIC_LENGTH]
    if len(magic) < _MAGIC_LENGTH:
        message = f"holds {len(magic)} bytes, which is no capture" if magic else "is empty"
        raise CaptureTruncatedError(source.name, message, len(magic))
    if magic in pcap.MAGICS:
        return "pcap", pcap.read_file_header(source, findings)
    if magic == blocks.SECTION_MAGIC:
        return "pcapng", PcapngParser(source, findings).records()
    reason = _OTHER_FORMATS.get(magic, f"neither pcap nor pcapng: it begins with {magic.hex()}")
    raise CaptureFormatError(source.name, reason, 0)
