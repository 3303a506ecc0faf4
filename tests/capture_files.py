"""Capture files put together by hand, field by field, and the shortest ways to read one.

Independent of the package's own writers, so that a misreading of the format shows. ``order`` is
``<`` or ``>``, as in struct.
"""

import io
import struct
from collections.abc import Iterator
from pathlib import Path

from netstack_gro.capture import CaptureReader, Record, open_capture

# The repository's neighbour on a development machine; it is no part of the project.
CAPTURES = Path(__file__).resolve().parents[2] / "shared" / "captures"

PCAP_HEADER_LENGTH = 24
PCAP_RECORD_HEADER_LENGTH = 16


def pcap_header(
    order: str = "<",
    *,
    magic: int = 0xA1B2C3D4,
    version: tuple[int, int] = (2, 4),
    snap_length: int = 65535,
    link: int = 1,
) -> bytes:
    return struct.pack(f"{order}IHHIIII", magic, *version, 0, 0, snap_length, link)


def pcap_record(
    data: bytes,
    order: str = "<",
    *,
    seconds: int = 0,
    fraction: int = 0,
    captured: int | None = None,
    original: int | None = None,
) -> bytes:
    captured = len(data) if captured is None else captured
    original = captured if original is None else original
    return struct.pack(f"{order}IIII", seconds, fraction, captured, original) + data


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def block(kind: int, body: bytes, order: str = "<", *, length: int | None = None) -> bytes:
    """A block; ``length`` lies about it, in both places."""
    total = struct.pack(f"{order}I", 12 + len(body) if length is None else length)
    return struct.pack(f"{order}I", kind) + total + body + total


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}HH", code, len(value)) + padded(value)


def section(
    order: str = "<", *, version: tuple[int, int] = (1, 0), length: int = -1, options: bytes = b""
) -> bytes:
    body = struct.pack(f"{order}IHHq", 0x1A2B3C4D, *version, length) + options
    return block(0x0A0D0D0A, body, order)


def interface(
    link: int = 1,
    order: str = "<",
    *,
    snap_length: int = 0,
    resolution: int | None = None,
    offset: int | None = None,
    options: bytes = b"",
) -> bytes:
    if resolution is not None:
        options += option(9, bytes([resolution]), order)
    if offset is not None:
        options += option(14, struct.pack(f"{order}q", offset), order)
    return block(1, struct.pack(f"{order}HHI", link, 0, snap_length) + options, order)


def enhanced(
    data: bytes,
    order: str = "<",
    *,
    interface: int = 0,
    units: int = 0,
    captured: int | None = None,
    original: int | None = None,
    options: bytes = b"",
) -> bytes:
    captured = len(data) if captured is None else captured
    original = captured if original is None else original
    fields = (interface, units >> 32, units & 0xFFFFFFFF, captured, original)
    return block(6, struct.pack(f"{order}IIIII", *fields) + padded(data) + options, order)


def obsolete(
    data: bytes, order: str = "<", *, interface: int = 0, units: int = 0, options: bytes = b""
) -> bytes:
    drops = 0xFFFF  # "unknown"
    fields = (interface, drops, units >> 32, units & 0xFFFFFFFF, len(data), len(data))
    return block(2, struct.pack(f"{order}HHIIII", *fields) + padded(data) + options, order)


def simple(data: bytes, order: str = "<", *, original: int | None = None) -> bytes:
    original = len(data) if original is None else original
    return block(3, struct.pack(f"{order}I", original) + padded(data), order)


def reader_of(content: bytes) -> CaptureReader:
    return open_capture(io.BytesIO(content))


def records_of(content: bytes) -> list[Record]:
    with reader_of(content) as reader:
        return list(reader)


def read_until_error(reader: CaptureReader) -> tuple[list[Record], Exception | None]:
    """Every record up to the end or an error, and that error."""
    records: list[Record] = []

    def keep(source: Iterator[Record]) -> None:
        for record in source:
            records.append(record)  # noqa: PERF402 - extend would lose those before an error

    try:
        keep(reader)
    except Exception as error:
        return records, error
    return records, None
