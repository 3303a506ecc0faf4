"""The pcapng format as read: sections, interfaces, time stamps, kinds of packet block, options."""

import struct
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack_gro.capture import Interface, Record
from netstack_gro.errors import CaptureFormatError, CaptureTruncatedError
from tests.capture_files import (
    block,
    enhanced,
    interface,
    obsolete,
    option,
    read_until_error,
    reader_of,
    records_of,
    section,
    simple,
)

pytestmark = pytest.mark.engineless

ORDERS = ["<", ">"]
MOMENT = 1573830016_444223380  # 2019-11-15 15:00:16.444223380 UTC


def nanoseconds(units: int, resolution: int | None, offset: int = 0) -> int:
    """What the draft says, in exact arithmetic."""
    resolution = 6 if resolution is None else resolution
    base = 2 if resolution & 0x80 else 10
    return floor((Fraction(units, base ** (resolution & 0x7F)) + offset) * 10**9)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("resolution", "units", "expected"),
    [
        (9, MOMENT, MOMENT),
        (6, MOMENT // 1000, 1573830016_444223000),
        (None, MOMENT // 1000, 1573830016_444223000),
        (0x8A, (1573830016 << 10) + 454, 1573830016_443359375),  # 454/1024 s
        (0x80, 1573830016, 1573830016_000000000),
        (0, 1573830016, 1573830016_000000000),
        (3, 1573830016_444, 1573830016_444000000),
        (12, 1573_444223380_999, 1573_444223380),
        (0x9E, (1573830016 << 30) + 476981222, 1573830016444223379),
    ],
)
def test_every_form_of_resolution_gives_exact_nanoseconds(
    order: str, resolution: int | None, units: int, expected: int
) -> None:
    assert nanoseconds(units, resolution) == expected
    start = section(order) + interface(1, order, resolution=resolution)
    for packet in (enhanced(b"x", order, units=units), obsolete(b"x", order, units=units)):
        assert [record.timestamp_ns for record in records_of(start + packet)] == [expected]


@given(
    resolution=st.one_of(st.none(), st.integers(0, 255)),
    units=st.integers(0, 2**64 - 1),
    offset=st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**32), 2**32),
    order=st.sampled_from(ORDERS),
)
def test_time_is_exact_for_any_resolution_and_offset_and_clamped_where_it_does_not_fit(
    resolution: int | None, units: int, offset: int, order: str
) -> None:
    described = interface(1, order, resolution=resolution, offset=offset)
    packet = enhanced(b"x", order, units=units)
    reader = reader_of(section(order) + described + packet + packet)
    exact = nanoseconds(units, resolution, offset)
    clamped = max(-(2**63), min(exact, 2**63 - 1))
    assert [record.timestamp_ns for record in reader] == [clamped, clamped]
    assert len(reader.warnings) == (clamped != exact)
    assert reader.interfaces[0].offset == offset


def test_an_offset_is_signed_and_counts_seconds() -> None:
    content = section() + b"".join(interface(offset=offset) for offset in (1234, -1234))
    content += enhanced(b"x", units=2_000_000_000) + enhanced(b"x", interface=1, units=0)
    assert [r.timestamp_ns for r in records_of(content)] == [3234 * 10**9, -1234 * 10**9]


def test_sections_have_their_own_byte_order_and_count_interfaces_from_zero() -> None:
    reader = reader_of(
        section("<")
        + interface(1, "<", options=option(2, b"eth0"))
        + interface(101, "<", resolution=9, snap_length=96)
        + enhanced(b"a", "<", interface=1, units=5)
        + section(">")
        + interface(276, ">", options=option(2, "größe".encode(), ">"))
        + enhanced(b"b", ">", interface=0, units=5)
        + simple(b"c", ">")
        + section("<", version=(1, 2))
        + interface(113, "<")
        + obsolete(b"d", "<", interface=0, units=6)
    )
    assert list(reader) == [
        Record(b"a", 5, 1, 1, (), 1),
        Record(b"b", 5000, 1, 2, (), 2),
        Record(b"c", 0, 1, 2, (), 3),
        Record(b"d", 6000, 1, 3, (), 4),
    ]
    assert reader.interfaces == [
        Interface(1, 0, "eth0", 6, 0),
        Interface(101, 96, None, 9, 0),
        Interface(276, 0, "größe", 6, 0),
        Interface(113, 0, None, 6, 0),
    ]
    assert (reader.format, reader.truncated, reader.warnings) == ("pcapng", False, [])


def test_an_interface_may_be_described_after_packets_of_another() -> None:
    content = section() + interface(1) + enhanced(b"a") + interface(101)
    content += enhanced(b"b", interface=1) + enhanced(b"c")
    assert [(r.data, r.interface) for r in records_of(content)] == [
        (b"a", 0),
        (b"b", 1),
        (b"c", 0),
    ]


def test_an_interface_of_an_earlier_section_is_unknown_in_a_later_one() -> None:
    start = section() + interface() + enhanced(b"a") + section()
    for packet in (enhanced(b"b"), obsolete(b"b"), simple(b"b")):
        records, error = read_until_error(reader_of(start + packet))
        assert len(records) == 1
        assert isinstance(error, CaptureFormatError)
        assert error.offset == len(start)
        assert "interface 0" in str(error)


@pytest.mark.parametrize("length", [-1, 0, 4, 2**62, -(2**63)])
def test_the_section_length_is_not_relied_on(length: int) -> None:
    body = interface() + enhanced(b"a")
    content = section(length=len(body)) + body + section(length=length) + body
    assert [record.interface for record in records_of(content)] == [0, 1]


@pytest.mark.parametrize("order", ORDERS)
def test_a_simple_packet_is_cut_at_the_snap_length_of_the_first_interface(order: str) -> None:
    content = section(order) + interface(1, order, snap_length=5) + interface(101, order)
    content += simple(b"12345", order, original=1500) + simple(b"123", order)
    assert records_of(content) == [
        Record(b"12345", 0, 1500, 0, (), 1),
        Record(b"123", 0, 3, 0, (), 2),
    ]


def test_comments_of_a_packet_are_read_in_order() -> None:
    options = (
        option(1, b"first")
        + option(2, struct.pack("<I", 1))  # epb_flags
        + option(1, "zweiter: ∑".encode())
        + option(1, b"")
        + option(1, b"ends here\0not there")
        + option(1, b"bad \xff byte")
        + option(0x8001, b"private")
    )
    ended = options + option(0, b"") + option(1, b"behind the end")
    for packet in (enhanced(b"x" * 3, options=options), enhanced(b"x" * 3, options=ended)):
        (record,) = records_of(section() + interface() + packet)
        assert record.data == b"xxx"
        assert record.comments == ("first", "zweiter: ∑", "", "ends here", "bad � byte")
    (record,) = records_of(section() + interface() + obsolete(b"x", options=option(1, b"old")))
    assert record.comments == ("old",)


def test_unknown_blocks_are_stepped_over_wherever_they_stand() -> None:
    unknown = block(5, bytes(20)) + block(0x80000BAD, b"1234") + block(0xFFFFFFFF, b"")
    large = block(10, bytes(600_000))
    parts = [section(), interface(), enhanced(b"a"), enhanced(b"b")]
    content = b"".join(part + unknown + large for part in parts)
    assert [record.data for record in records_of(content)] == [b"a", b"b"]


def test_frames_of_a_megabyte_among_small_ones_are_read_whole() -> None:
    frames = [b"a", bytes(1_000_000), b"b" * 1514, bytes(300_001)]
    content = section() + interface() + b"".join(map(enhanced, frames))
    assert [record.data for record in records_of(content)] == frames


def test_an_original_length_below_the_captured_one_is_raised_to_it_with_one_warning() -> None:
    old = bytearray(obsolete(b"x" * 9))
    old[24:28] = struct.pack("<I", 8)
    for packet in (enhanced(b"x" * 9, original=8), bytes(old)):
        reader = reader_of(section() + interface() + 2 * packet)
        assert [record.wire_length for record in reader] == [9, 9]
        assert len(reader.warnings) == 1


def test_the_time_of_an_obsolete_packet_is_clamped_as_well() -> None:
    reader = reader_of(section() + interface() + obsolete(b"x", units=2**64 - 1))
    assert [record.timestamp_ns for record in reader] == [2**63 - 1]
    assert len(reader.warnings) == 1


@pytest.mark.parametrize("version", [(0, 0), (1, 1), (1, 3), (2, 0)])
def test_another_version_is_refused_by_its_number(version: tuple[int, int]) -> None:
    with pytest.raises(CaptureFormatError, match=rf"byte 12: pcapng version {version[0]}"):
        reader_of(section(version=version))


def test_a_section_without_byte_order_magic_is_damage() -> None:
    damaged = bytearray(section())
    damaged[8] ^= 1
    with pytest.raises(CaptureFormatError, match="byte 8: no byte-order magic"):
        reader_of(bytes(damaged))


def test_a_file_cut_within_its_first_section_header_is_truncated() -> None:
    header = section(options=option(4, b"a writer's name"))
    for length in range(len(header)):
        with pytest.raises(CaptureTruncatedError):
            reader_of(header[:length])
    assert records_of(header) == []


OVERRUN = struct.pack("<HH", 1, 5) + b"1234"
DAMAGE = {
    "block length 0": (block(6, b"", length=0), "block length 0 is"),
    "block length 8": (block(6, b"", length=8), "block length 8 is"),
    "block length 13": (block(5, bytes(4), length=13), "block length 13 is"),
    "block length 30": (block(6, bytes(20), length=30), "block length 30 is"),
    "block length over 257 MiB": (
        block(5, bytes(100), length=2**28 + 2**20 + 4),
        "block length 269484036",
    ),
    "block length 2**32 - 4": (block(6, bytes(100), length=2**32 - 4), "block length 4294967292"),
    "enhanced packet: lengths differ": (
        enhanced(b"data")[:-4] + struct.pack("<I", 40),
        "block length 36 is repeated as 40",
    ),
    "unknown block: lengths differ": (
        block(5, bytes(8))[:-1] + b"\1",
        "20 is repeated as 16777236",
    ),
    "enhanced packet too short": (block(6, bytes(16)), "enhanced packet block of 28 bytes"),
    "obsolete packet too short": (block(2, bytes(16)), "obsolete packet block of 28 bytes"),
    "simple packet too short": (block(3, b""), "simple packet block of 12 bytes"),
    "interface description too short": (block(1, bytes(4)), "description block of 16 bytes"),
    "section header too short": (
        block(0x0A0D0D0A, struct.pack("<I", 0x1A2B3C4D)),
        "section header block of 16 bytes",
    ),
    "enhanced packet: captured too long": (enhanced(b"data", captured=5), "captured length 5 exc"),
    "enhanced packet: captured absurd": (
        enhanced(b"data", captured=2**32 - 1),
        "captured length 4294967295 exceeds",
    ),
    "simple packet: original too long": (simple(b"data", original=5), "captured length 5 exceeds"),
    "enhanced packet: unknown interface": (enhanced(b"data", interface=1), "packet of interface 1"),
    "enhanced packet: absurd interface": (
        enhanced(b"data", interface=2**32 - 1),
        "packet of interface 4294967295",
    ),
    "obsolete packet: unknown interface": (
        obsolete(b"data", interface=65535),
        "packet of interface 65535",
    ),
    "enhanced packet: options overrun": (enhanced(b"data", options=OVERRUN), "option 1 of 5 bytes"),
    "obsolete packet: options overrun": (obsolete(b"data", options=OVERRUN), "option 1 of 5 bytes"),
    "interface: options overrun": (interface(options=OVERRUN), "option 1 of 5 bytes exceeds"),
    "section: options overrun": (section(options=OVERRUN), "option 1 of 5 bytes exceeds"),
    "absurd option": (
        enhanced(b"", options=struct.pack("<HH", 1, 65535)),
        "option 1 of 65535 bytes exceeds",
    ),
    "if_tsresol of two bytes": (interface(options=option(9, b"\6\0")), "if_tsresol has 2 bytes"),
    "if_tsresol of no bytes": (interface(options=option(9, b"")), "if_tsresol has 0 bytes"),
    "if_tsoffset of four bytes": (interface(options=option(14, bytes(4))), "if_tsoffset has 4"),
    "65,537 options": (enhanced(b"", options=option(1, b"") * 65537), "over 65536 options"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_damage_ends_iteration_with_its_offset_after_all_records_before_it(
    damage: bytes, reason: str
) -> None:
    start = section() + interface() + enhanced(b"one") + enhanced(b"two")
    reader = reader_of(start + damage + enhanced(b"never") * 3)
    records, error = read_until_error(reader)
    assert [record.data for record in records] == [b"one", b"two"]
    assert type(error) is CaptureFormatError
    assert reason in str(error)
    assert error.name == "<stream>"
    assert error.offset is not None
    assert len(start) <= error.offset < len(start) + len(damage)
    assert not reader.truncated
    assert list(reader) == []


def test_an_enhanced_packet_of_unaligned_length_is_damage_where_its_options_would_do() -> None:
    # 37 bytes; the one before the trailing length and two of that read as the end of options.
    unaligned = block(6, bytes(12) + 2 * struct.pack(">I", 1) + bytes(5), ">")
    _, error = read_until_error(reader_of(section(">") + interface(1, ">") + unaligned))
    assert type(error) is CaptureFormatError
    assert "block length 37 is" in str(error)


def test_an_obsolete_packet_whose_captured_length_exceeds_its_block_is_damage() -> None:
    damaged = bytearray(obsolete(b"data"))
    damaged[20:24] = struct.pack("<I", 5)
    _, error = read_until_error(reader_of(section() + interface() + bytes(damaged)))
    assert type(error) is CaptureFormatError


def test_the_number_of_interfaces_is_bounded() -> None:
    reader = reader_of(section() + interface() * 65537)
    records, error = read_until_error(reader)
    assert (records, len(reader.interfaces)) == ([], 65536)
    assert type(error) is CaptureFormatError
