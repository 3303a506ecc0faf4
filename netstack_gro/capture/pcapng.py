"""The pcapng format: sections of self-delimiting blocks (draft-ietf-opsawg-pcapng).

The section length is not relied on, since every block says its own. Blocks of other types than
those that hold packets or describe interfaces are stepped over.
"""

from collections.abc import Generator
from typing import NoReturn

from netstack_gro.capture import blocks
from netstack_gro.capture.blocks import LAYOUTS, Layout, padding
from netstack_gro.capture.links import LINK_NAMES, link_name
from netstack_gro.capture.records import (
    MAX_BLOCK_LENGTH,
    MAX_INTERFACES,
    MAX_RECORD_LENGTH,
    Findings,
    Interface,
    Record,
)
from netstack_gro.capture.resolution import MAX_TIMESTAMP, MIN_TIMESTAMP, nanoseconds_of
from netstack_gro.capture.source import ByteSource
from netstack_gro.errors import CaptureFormatError, CaptureTruncatedError

_MAX_OPTIONS = 65536  # in one block; keeps the comments of a hostile one within reason
_UNSUPPORTED = 0  # in place of a clock's multiplier, which is never 0


class PcapngParser:
    """Reads the blocks of one file; `records` is a generator of its packets."""

    def __init__(self, source: ByteSource, findings: Findings) -> None:
        """Read the section header that a file begins with.

        Raises CaptureTruncatedError where the file ends within it, CaptureFormatError where it
        is damaged or of another version.
        """
        self._source = source
        self._findings = findings
        self._buffer = source.refill(0, blocks.SECTION_HEADER_LENGTH)
        self._position = 0
        self._number = 0
        # Of the current section: its layout, and for each interface its index among all of the
        # file and what makes nanoseconds of its time stamps.
        self._layout = LAYOUTS["little"]
        self._clocks: list[tuple[int, int, int, int]] = []
        stop = self._whole_block()
        if stop is None:
            message = f"ends within the first section header, after {len(self._buffer)} bytes"
            raise CaptureTruncatedError(source.name, message, len(self._buffer))
        self._read_section(stop)
        self._position = stop

    def records(self) -> Generator[Record, None, None]:
        """Every packet, in the file's order.

        Raises CaptureFormatError at damage, after the packets before it were yielded.
        """
        while True:
            yield from self._enhanced_packets()
            # Another block, or one that is not whole in the buffer, or damage.
            stop = self._whole_block()
            if stop is None:
                return
            block_type, total = self._layout.block.unpack_from(self._buffer, self._position)
            if block_type == blocks.ENHANCED_PACKET:
                if total < blocks.PACKET_LENGTH:
                    raise self._too_short("enhanced packet", total)
                if total > MAX_RECORD_LENGTH:  # never whole in the buffer before it is here
                    fields = self._layout.enhanced.unpack_from(self._buffer, self._position)
                    self._check_captured(fields[5])
                continue
            if block_type == blocks.SECTION_HEADER:
                self._read_section(stop)
            elif block_type == blocks.INTERFACE_DESCRIPTION:
                self._read_interface(total, stop)
            elif block_type == blocks.SIMPLE_PACKET:
                yield self._simple_packet(total)
            elif block_type == blocks.OBSOLETE_PACKET:
                yield self._obsolete_packet(total, stop)
            self._position = stop

    def _enhanced_packets(self) -> Generator[Record, None, None]:
        """The run of enhanced packet blocks that are whole in the buffer: nearly all of a file."""
        buffer, position, end = self._buffer, self._position, len(self._buffer)
        layout, clocks = self._layout, self._clocks
        unpack, unpack_word = layout.enhanced.unpack_from, layout.word.unpack_from
        number = self._number
        make = tuple.__new__  # half the time of the class's own constructor
        comments: tuple[str, ...]
        while position + blocks.PACKET_LENGTH <= end:
            fields = unpack(buffer, position)
            block_type, total, interface, high, low, captured, original = fields
            stop = position + total
            if (
                block_type != blocks.ENHANCED_PACKET
                or stop > end
                or total < blocks.PACKET_LENGTH
                or total & 3
            ):
                break
            self._position = position
            if unpack_word(buffer, stop - 4)[0] != total:
                raise self._trailing_length(total, stop)
            start = position + blocks.PACKET_DATA
            data_end = start + captured
            options = data_end + (-captured & 3)
            if options + 4 > stop:
                raise self._captured_length(captured, total)
            try:
                index, multiplier, divisor, addend = clocks[interface]
            except IndexError:
                self._unknown_interface(interface)
            if multiplier == _UNSUPPORTED:
                self._unsupported(index)
            timestamp = (high << 32 | low) * multiplier
            if divisor != 1:
                timestamp //= divisor
            timestamp += addend
            number += 1
            if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
                timestamp = self._findings.clamped(timestamp, number)
            if original < captured:
                self._findings.short_original_length(number)
                original = captured
            comments = () if options + 4 == stop else self._comments(options, stop - 4)
            self._position = position = stop
            self._number = number
            yield make(
                Record,
                (buffer[start:data_end], timestamp, original, index, comments, number),
            )

    def _whole_block(self) -> int | None:
        """Bring the block at the current position into the buffer; where it stops.

        None where the file ends before it does. Checks both of its lengths.
        """
        if not self._available(blocks.BLOCK_OVERHEAD):
            return None
        if self._buffer.startswith(blocks.SECTION_MAGIC, self._position):
            self._layout = self._section_layout()
        total: int = self._layout.block.unpack_from(self._buffer, self._position)[1]
        if total < blocks.BLOCK_OVERHEAD or total & 3 or total > MAX_BLOCK_LENGTH:
            message = f"block length {total} is not a multiple of 4 from 12 to 257 MiB"
            raise self._source.damage(self._position, message)
        if not self._available(total):
            return None
        stop = self._position + total
        if self._layout.word.unpack_from(self._buffer, stop - 4)[0] != total:
            raise self._trailing_length(total, stop)
        return stop

    def _available(self, need: int) -> bool:
        """Whether ``need`` bytes from the current position on are there; they are read if so."""
        if len(self._buffer) - self._position >= need:
            return True
        self._buffer = self._source.refill(self._position, need)
        self._position = 0
        left = len(self._buffer)
        if left >= need:
            return True
        self._findings.ended(self._source.base, left, need, self._number, self._source.cut)
        return False

    def _section_layout(self) -> Layout:
        magic = self._buffer[self._position + 8 : self._position + 12]
        for layout in LAYOUTS.values():
            if magic == layout.word.pack(blocks.BYTE_ORDER_MAGIC):
                return layout
        message = f"no byte-order magic in the section header, but {magic.hex()}"
        raise self._source.damage(self._position + 8, message)

    def _read_section(self, stop: int) -> None:
        total = stop - self._position
        if total < blocks.SECTION_HEADER_LENGTH:
            raise self._too_short("section header", total)
        fields = self._layout.section.unpack_from(self._buffer, self._position)
        major, minor = fields[3], fields[4]
        # Minor version 2 differs from 0 in nothing but its number, says the draft.
        if major != 1 or minor not in {0, 2}:
            message = f"pcapng version {major}.{minor} is not supported; 1.0 is"
            raise self._source.damage(self._position + 12, message)
        self._options(self._position + blocks.SECTION_OPTIONS, stop - 4)
        self._clocks = []

    def _read_interface(self, total: int, stop: int) -> None:
        if total < blocks.INTERFACE_LENGTH:
            raise self._too_short("interface description", total)
        interfaces = self._findings.interfaces
        if len(interfaces) >= MAX_INTERFACES:
            raise self._source.damage(self._position, f"over {MAX_INTERFACES} interfaces")
        fields = self._layout.interface.unpack_from(self._buffer, self._position)
        link_type, snap_length = fields[2], fields[4]
        name, resolution, offset = None, 6, 0
        for code, value in self._options(self._position + blocks.INTERFACE_OPTIONS, stop - 4):
            if code == blocks.OPTION_INTERFACE_NAME:
                name = _text(value)
            elif code == blocks.OPTION_RESOLUTION:
                self._expect(value, 1, "if_tsresol")
                resolution = value[0]
            elif code == blocks.OPTION_OFFSET:
                self._expect(value, 8, "if_tsoffset")
                offset = self._layout.offset.unpack(value)[0]
        multiplier, divisor, addend = nanoseconds_of(resolution, offset)
        if link_type not in LINK_NAMES:
            multiplier = _UNSUPPORTED
        self._clocks.append((len(interfaces), multiplier, divisor, addend))
        interfaces.append(Interface(link_type, snap_length, name, resolution, offset))

    def _simple_packet(self, total: int) -> Record:
        if total < blocks.SIMPLE_LENGTH:
            raise self._too_short("simple packet", total)
        original: int = self._layout.simple.unpack_from(self._buffer, self._position)[2]
        index, _, _, _ = self._clock(0)
        snap_length = self._findings.interfaces[index].snap_length
        captured = min(original, snap_length) if snap_length else original
        if captured > total - blocks.SIMPLE_LENGTH:
            raise self._captured_length(captured, total)
        self._check_captured(captured)
        start = self._position + blocks.SIMPLE_DATA
        self._number += 1
        data = self._buffer[start : start + captured]
        return Record(data, 0, original, index, (), self._number)

    def _obsolete_packet(self, total: int, stop: int) -> Record:
        if total < blocks.PACKET_LENGTH:
            raise self._too_short("obsolete packet", total)
        fields = self._layout.obsolete.unpack_from(self._buffer, self._position)
        _, _, interface, _, high, low, captured, original = fields
        start = self._position + blocks.PACKET_DATA
        options = start + captured + padding(captured)
        if options + 4 > stop:
            raise self._captured_length(captured, total)
        self._check_captured(captured)
        index, multiplier, divisor, addend = self._clock(interface)
        timestamp = (high << 32 | low) * multiplier // divisor + addend
        comments = self._comments(options, stop - 4)
        self._number += 1
        if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
            timestamp = self._findings.clamped(timestamp, self._number)
        if original < captured:
            self._findings.short_original_length(self._number)
            original = captured
        data = self._buffer[start : start + captured]
        return Record(data, timestamp, original, index, comments, self._number)

    def _clock(self, interface: int) -> tuple[int, int, int, int]:
        if interface >= len(self._clocks):
            self._unknown_interface(interface)
        clock = self._clocks[interface]
        if clock[1] == _UNSUPPORTED:
            self._unsupported(clock[0])
        return clock

    def _comments(self, start: int, stop: int) -> tuple[str, ...]:
        options = self._options(start, stop)
        return tuple(_text(value) for code, value in options if code == blocks.OPTION_COMMENT)

    def _options(self, start: int, stop: int) -> list[tuple[int, bytes]]:
        """Codes and values between two positions. The end-of-options marker may be missing."""
        found: list[tuple[int, bytes]] = []
        unpack = self._layout.option.unpack_from
        while start < stop:
            code, length = unpack(self._buffer, start)
            if code == blocks.OPTION_END:
                break
            value = start + 4
            following = value + length + padding(length)
            if following > stop:
                message = f"option {code} of {length} bytes exceeds its block"
                raise self._source.damage(start, message)
            if len(found) == _MAX_OPTIONS:
                raise self._source.damage(start, f"over {_MAX_OPTIONS} options in one block")
            found.append((code, self._buffer[value : value + length]))
            start = following
        return found

    def _expect(self, value: bytes, length: int, name: str) -> None:
        if len(value) != length:
            message = f"{name} has {len(value)} bytes instead of {length}"
            raise self._source.damage(self._position, message)

    def _check_captured(self, captured: int) -> None:
        if captured > MAX_RECORD_LENGTH:
            message = f"captured length {captured} is over 256 MiB"
            raise self._source.damage(self._position, message)

    def _too_short(self, what: str, total: int) -> CaptureFormatError:
        return self._source.damage(self._position, f"{what} block of {total} bytes is too short")

    def _captured_length(self, captured: int, total: int) -> CaptureFormatError:
        message = f"captured length {captured} exceeds its block of {total} bytes"
        return self._source.damage(self._position, message)

    def _trailing_length(self, total: int, stop: int) -> CaptureFormatError:
        trailing = self._layout.word.unpack_from(self._buffer, stop - 4)[0]
        message = f"block length {total} is repeated as {trailing}"
        return self._source.damage(self._position, message)

    def _unknown_interface(self, interface: int) -> NoReturn:
        message = f"packet of interface {interface}, but the section describes {len(self._clocks)}"
        raise self._source.damage(self._position, message)

    def _unsupported(self, index: int) -> NoReturn:
        link_type = self._findings.interfaces[index].link_type
        link_name(link_type, self._source.name, self._source.base + self._position)
        raise AssertionError(f"link type {link_type} is supported")


def _text(value: bytes) -> str:
    """A string option: UTF-8, ended by a zero byte if there is one; bad bytes are replaced."""
    return value.partition(b"\0")[0].decode("utf-8", "replace")
