"""The pcap format: one interface, records without padding (draft-ietf-opsawg-pcap).

All integers are in the byte order of the machine that wrote the file, which the magic number at
its start reveals.
"""

from collections.abc import Generator
from struct import Struct
from typing import NamedTuple

from netstack_gro.capture.links import link_name
from netstack_gro.capture.records import MAX_RECORD_LENGTH, Findings, Interface, Record
from netstack_gro.capture.resolution import NANOSECONDS
from netstack_gro.capture.source import ByteSource
from netstack_gro.errors import CaptureTruncatedError

MICROSECOND_MAGIC = 0xA1B2C3D4
NANOSECOND_MAGIC = 0xA1B23C4D
VERSION = (2, 4)

FILE_HEADER_LENGTH = 24
RECORD_HEADER_LENGTH = 16


class Layout(NamedTuple):
    """The headers of a pcap file in one byte order.

    file: magic, major and minor version, two reserved words, snap length, link type.
    record: seconds, fraction, captured length, original length.
    """

    file: Struct
    record: Struct


LAYOUTS = {
    "little": Layout(Struct("<IHHIIII"), Struct("<IIII")),
    "big": Layout(Struct(">IHHIIII"), Struct(">IIII")),
}

_MAGICS = {
    magic.to_bytes(4, order): (LAYOUTS[order], resolution)
    for magic, resolution in ((MICROSECOND_MAGIC, 6), (NANOSECOND_MAGIC, 9))
    for order in ("little", "big")
}
MAGICS = frozenset(_MAGICS)

# The link type field, from the top: 4 bits FCS length, 1 reserved, 1 "FCS length present",
# 10 reserved, 16 link type. What is said of the FCS changes no byte of a packet.
_LINK_TYPE_MASK = 0xFFFF
_LINK_RESERVED = 0x0BFF0000


def read_file_header(source: ByteSource, findings: Findings) -> Generator[Record, None, None]:
    """Read the file header at the start of the buffer; the records are what is returned.

    Raises CaptureTruncatedError where the file is shorter, CaptureFormatError for another
    version or reserved bits, UnsupportedLinkTypeError for a link type that is not read.
    """
    buffer = source.refill(0, FILE_HEADER_LENGTH)
    if len(buffer) < FILE_HEADER_LENGTH:
        message = f"ends within the file header ({len(buffer)} of {FILE_HEADER_LENGTH} bytes)"
        raise CaptureTruncatedError(source.name, message, len(buffer))
    layout, resolution = _MAGICS[buffer[:4]]
    _, major, minor, _, _, snap_length, link_field = layout.file.unpack_from(buffer)
    if (major, minor) != VERSION:
        message = f"pcap version {major}.{minor} is not supported; 2.4 is"
        raise source.damage(4, message)
    if link_field & _LINK_RESERVED:
        raise source.damage(20, f"reserved bits of the link type are set (0x{link_field:08x})")
    link_type = link_field & _LINK_TYPE_MASK
    link_name(link_type, source.name, 20)
    findings.interfaces.append(Interface(link_type, snap_length, resolution=resolution))
    unit = NANOSECONDS // 10**resolution
    return _records(source, findings, layout.record, unit)


def _records(
    source: ByteSource, findings: Findings, header: Struct, unit: int
) -> Generator[Record, None, None]:
    unpack = header.unpack_from
    make = tuple.__new__  # half the time of the class's own constructor
    buffer = source.buffer
    position = FILE_HEADER_LENGTH
    number = 0
    while True:
        end = len(buffer)
        need = RECORD_HEADER_LENGTH
        while position + RECORD_HEADER_LENGTH <= end:
            seconds, fraction, captured, original = unpack(buffer, position)
            start = position + RECORD_HEADER_LENGTH
            stop = start + captured
            if stop > end:
                need = RECORD_HEADER_LENGTH + captured
                break
            number += 1
            if original < captured:
                findings.short_original_length(number)
                original = captured
            position = stop
            yield make(
                Record,
                (
                    buffer[start:stop],
                    seconds * NANOSECONDS + fraction * unit,
                    original,
                    0,
                    (),
                    number,
                ),
            )
        if need > RECORD_HEADER_LENGTH + MAX_RECORD_LENGTH:
            length = need - RECORD_HEADER_LENGTH
            raise source.damage(position, f"captured length {length} is over 256 MiB")
        buffer = source.refill(position, need)
        position = 0
        if len(buffer) < need:
            findings.ended(source.base, len(buffer), need, number, source.cut)
            return
