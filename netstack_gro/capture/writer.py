"""Writing capture files: pcap, and pcapng with several interfaces and comments.

Each record goes to the stream in one ``write``. The stream is the caller's: a buffered binary
one, which stays open, and whose own errors (a closed pipe, a full disk) pass through unchanged.
What cannot be written is refused before a byte of it is: with CaptureFormatError a value that
does not fit the format, with TypeError one of another type (a float for a time, say).
"""

import sys
from collections.abc import Iterable
from operator import index
from struct import Struct
from typing import IO, Literal, TypeAlias

from netstack_gro.capture import blocks, pcap
from netstack_gro.capture.records import (
    MAX_BLOCK_LENGTH,
    MAX_INTERFACES,
    MAX_RECORD_LENGTH,
    Interface,
)
from netstack_gro.capture.resolution import NANOSECONDS, units_of
from netstack_gro.errors import CaptureFormatError

__all__ = ["PcapWriter", "PcapngWriter"]

ByteOrder: TypeAlias = Literal["little", "big", "native"]
Buffer: TypeAlias = bytes | bytearray | memoryview

_U16 = 0xFFFF
_U32 = 0xFFFFFFFF
_U64 = 0xFFFFFFFFFFFFFFFF
_DEFAULT_SNAP_LENGTH = 262144  # MAXIMUM_SNAPLEN of libpcap, what tcpdump writes for "all of it"


class PcapWriter:
    """Writes a pcap file of version 2.4; its header at once.

    link_type: LINKTYPE_ number, 0 to 65,535.
    nanoseconds: whether time stamps are in nano- or in microseconds (rounded down).
    byteorder: of all headers; ``native`` is this machine's.
    snap_length: what the file says that packets were cut to, 1 to 2**32 - 1; none may be longer.
    """

    def __init__(
        self,
        stream: IO[bytes],
        *,
        link_type: int,
        nanoseconds: bool = True,
        byteorder: ByteOrder = "native",
        snap_length: int = _DEFAULT_SNAP_LENGTH,
    ) -> None:
        self._stream = stream
        self._name = _name_of(stream)
        layout = pcap.LAYOUTS[_order(self._name, byteorder)]
        _within(self._name, "link type", link_type, 0, _U16)
        _within(self._name, "snap length", snap_length, 1, _U32)
        self._record = layout.record
        self._unit = 1 if nanoseconds else 1000
        self._snap_length = snap_length
        magic = pcap.NANOSECOND_MAGIC if nanoseconds else pcap.MICROSECOND_MAGIC
        stream.write(layout.file.pack(magic, *pcap.VERSION, 0, 0, snap_length, link_type))

    def write(self, data: Buffer, timestamp_ns: int, wire_length: int | None = None) -> None:
        """Write one packet, captured at ``timestamp_ns`` (0 up to 2**32 seconds, in ns).

        ``wire_length`` is its length before it was cut, by default that of ``data``.
        """
        data = memoryview(data).tobytes()
        original = _lengths(self._name, data, wire_length, self._snap_length)
        seconds, nanoseconds = divmod(index(timestamp_ns), NANOSECONDS)
        if not 0 <= seconds <= _U32:
            raise CaptureFormatError(self._name, f"time {timestamp_ns} ns does not fit pcap")
        header = self._record.pack(seconds, nanoseconds // self._unit, len(data), original)
        self._stream.write(header + data)


class PcapngWriter:
    """Writes a pcapng file of one section (its header at once) with enhanced packet blocks.

    byteorder: of the section; ``native`` is this machine's.
    """

    def __init__(self, stream: IO[bytes], *, byteorder: ByteOrder = "native") -> None:
        self._stream = stream
        self._name = _name_of(stream)
        self._interfaces: list[Interface] = []
        self._layout = blocks.LAYOUTS[_order(self._name, byteorder)]
        length = blocks.SECTION_HEADER_LENGTH
        header = self._layout.section.pack(
            blocks.SECTION_HEADER, length, blocks.BYTE_ORDER_MAGIC, 1, 0, -1
        )
        stream.write(header + self._layout.word.pack(length))

    def add_interface(
        self,
        link_type: int,
        *,
        name: str | None = None,
        snap_length: int = 0,
        resolution: int = 9,
        offset: int = 0,
    ) -> int:
        """Describe an interface; the number that `write` knows it by. At any time.

        The fields are those of `Interface`: link_type 0 to 65,535; name without a NUL;
        snap_length 0 for "not limited"; resolution 0 to 255, coded as in if_tsresol; offset a
        signed 64-bit number of seconds.
        """
        if len(self._interfaces) >= MAX_INTERFACES:
            raise CaptureFormatError(self._name, f"over {MAX_INTERFACES} interfaces")
        _within(self._name, "link type", link_type, 0, _U16)
        _within(self._name, "snap length", snap_length, 0, _U32)
        _within(self._name, "resolution", resolution, 0, 255)
        _within(self._name, "offset", offset, -(1 << 63), (1 << 63) - 1)
        values = [(blocks.OPTION_RESOLUTION, bytes([resolution]))]
        if name is not None:
            values.insert(0, (blocks.OPTION_INTERFACE_NAME, _encoded(self._name, "name", name)))
        if offset:
            values.append((blocks.OPTION_OFFSET, self._layout.offset.pack(offset)))
        options = _options(self._layout.option, values)
        length = blocks.INTERFACE_LENGTH + len(options)
        header = self._layout.interface.pack(
            blocks.INTERFACE_DESCRIPTION, length, link_type, 0, snap_length
        )
        self._stream.write(header + options + self._layout.word.pack(length))
        self._interfaces.append(Interface(link_type, snap_length, name, resolution, offset))
        return len(self._interfaces) - 1

    def write(
        self,
        data: Buffer,
        timestamp_ns: int,
        interface: int = 0,
        *,
        wire_length: int | None = None,
        comments: Iterable[str] = (),
    ) -> None:
        """Write one packet of ``interface``, captured at ``timestamp_ns``.

        The time, counted from the interface's offset, is 0 or more and fits 64 bits of its unit;
        a unit longer than a nanosecond rounds down. ``wire_length`` is the packet's length
        before it was cut, by default that of ``data``. A comment has at most 65,535 bytes of
        UTF-8 and no NUL.
        """
        if not 0 <= interface < len(self._interfaces):
            message = f"interface {interface} is unknown; {len(self._interfaces)} were added"
            raise CaptureFormatError(self._name, message)
        described = self._interfaces[interface]
        data = memoryview(data).tobytes()
        original = _lengths(self._name, data, wire_length, described.snap_length or _U32)
        units = units_of(index(timestamp_ns), described.resolution, described.offset)
        if not 0 <= units <= _U64:
            message = f"time {timestamp_ns} ns does not fit interface {interface}"
            raise CaptureFormatError(self._name, message)
        values = [
            (blocks.OPTION_COMMENT, _encoded(self._name, "comment", comment))
            for comment in comments
        ]
        options = _options(self._layout.option, values)
        body = data + bytes(blocks.padding(len(data))) + options
        length = blocks.PACKET_LENGTH + len(body)
        _within(self._name, "block length", length, 0, MAX_BLOCK_LENGTH)
        header = self._layout.enhanced.pack(
            blocks.ENHANCED_PACKET,
            length,
            interface,
            units >> 32,
            units & _U32,
            len(data),
            original,
        )
        self._stream.write(header + body + self._layout.word.pack(length))


def _options(header: Struct, values: list[tuple[int, bytes]]) -> bytes:
    """A list of options, each padded, and its end; nothing for an empty one."""
    if not values:
        return b""
    pieces = [
        header.pack(code, len(value)) + value + bytes(blocks.padding(len(value)))
        for code, value in values
    ]
    return b"".join(pieces) + header.pack(blocks.OPTION_END, 0)


def _encoded(name: str, what: str, text: str) -> bytes:
    try:
        value = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CaptureFormatError(name, f"{what} is not encodable: {error}") from None
    if b"\0" in value:
        raise CaptureFormatError(name, f"{what} holds a NUL, which would end it")
    _within(name, f"length of a {what}", len(value), 0, blocks.MAX_OPTION_LENGTH)
    return value


def _lengths(name: str, data: bytes, wire_length: int | None, longest: int) -> int:
    """The original length, when both lengths can be written."""
    captured = len(data)
    _within(name, "length of a packet", captured, 0, min(longest, MAX_RECORD_LENGTH))
    if wire_length is None:
        return captured
    _within(name, "wire length", wire_length, captured, _U32)
    return wire_length


def _within(name: str, what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise CaptureFormatError(name, f"{what} {value} is not within {low} to {high}")


def _order(name: str, byteorder: ByteOrder) -> str:
    order = sys.byteorder if byteorder == "native" else byteorder
    if order not in pcap.LAYOUTS:
        raise CaptureFormatError(name, f"byte order {byteorder!r} is not native, little or big")
    return order


def _name_of(stream: IO[bytes]) -> str:
    name: object = getattr(stream, "name", None)
    return name if isinstance(name, str) else "<stream>"
