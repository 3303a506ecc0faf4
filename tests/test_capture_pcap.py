"""The pcap format as read: byte orders, time stamps, link type field, lengths."""

import random

import pytest

from netstack_gro.capture import Interface, Record
from netstack_gro.errors import CaptureFormatError, CaptureTruncatedError
from tests.capture_files import (
    PCAP_HEADER_LENGTH,
    pcap_header,
    pcap_record,
    read_until_error,
    reader_of,
    records_of,
)

pytestmark = pytest.mark.engineless

MICROSECONDS, NANOSECONDS = 0xA1B2C3D4, 0xA1B23C4D


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "fraction"), [(MICROSECONDS, 444223), (NANOSECONDS, 444223380)])
def test_both_byte_orders_and_resolutions_give_exact_nanoseconds(
    order: str, magic: int, fraction: int
) -> None:
    reader = reader_of(
        pcap_header(order, magic=magic, snap_length=1234, link=101)
        + pcap_record(b"first", order, seconds=1573830016, fraction=fraction, original=9000)
        + pcap_record(b"", order, seconds=2**32 - 1, fraction=0)
    )
    exact = 1573830016_444223380 if magic == NANOSECONDS else 1573830016_444223000
    assert list(reader) == [
        Record(b"first", exact, 9000, 0, (), 1),
        Record(b"", (2**32 - 1) * 10**9, 0, 0, (), 2),
    ]
    resolution = 9 if magic == NANOSECONDS else 6
    assert reader.interfaces == [Interface(101, 1234, None, resolution, 0)]
    assert (reader.format, reader.truncated, reader.warnings) == ("pcap", False, [])


def test_a_file_without_packets_is_an_empty_capture() -> None:
    reader = reader_of(pcap_header())
    assert list(reader) == []
    assert not reader.truncated
    assert len(reader.interfaces) == 1


@pytest.mark.parametrize("snap_length", [0, 1, 2**31, 2**32 - 1])
def test_the_snap_length_of_the_file_is_reported_and_never_believed(snap_length: int) -> None:
    reader = reader_of(pcap_header(snap_length=snap_length) + pcap_record(b"x" * 100))
    assert [len(record.data) for record in reader] == [100]
    assert reader.interfaces[0].snap_length == snap_length


def test_frames_above_the_mtu_and_above_64_kib_are_read_whole() -> None:
    lengths = [1514, 2802, 65549, 92442, 3_000_000]
    frames = [random.Random(length).randbytes(length) for length in lengths]
    content = pcap_header() + b"".join(map(pcap_record, frames))
    assert [record.data for record in records_of(content)] == frames


@pytest.mark.parametrize("upper", [0x24000000, 0xF4000000, 0xF0000000])
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_frame_check_sequence_length_is_no_part_of_the_link_type(order: str, upper: int) -> None:
    frame = b"frame with FCS"
    reader = reader_of(pcap_header(order, link=upper | 276) + pcap_record(frame, order))
    assert [record.data for record in reader] == [frame]
    assert reader.interfaces[0].link_type == 276


@pytest.mark.parametrize("reserved", [0x08000000, 0x02000000, 0x00010000])
def test_reserved_bits_of_the_link_type_are_an_error(reserved: int) -> None:
    with pytest.raises(CaptureFormatError, match="byte 20: reserved bits"):
        reader_of(pcap_header(link=reserved | 1))


@pytest.mark.parametrize("version", [(1, 0), (2, 3), (2, 5), (3, 4), (543, 0)])
def test_another_version_is_refused_by_its_number(version: tuple[int, int]) -> None:
    with pytest.raises(CaptureFormatError, match=rf"version {version[0]}\.{version[1]} is not"):
        reader_of(pcap_header(version=version))


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_modified_pcap_format_is_refused_by_name(order: str) -> None:
    with pytest.raises(CaptureFormatError, match="modified pcap"):
        reader_of(pcap_header(order, magic=0xA1B2CD34))


@pytest.mark.parametrize("length", range(PCAP_HEADER_LENGTH))
def test_a_file_cut_within_its_header_is_truncated(length: int) -> None:
    with pytest.raises(CaptureTruncatedError) as caught:
        reader_of(pcap_header()[:length])
    assert caught.value.offset == length


@pytest.mark.parametrize("captured", [2**28 + 1, 2**31, 2**32 - 1])
def test_an_absurd_captured_length_is_damage_and_not_a_file_cut_short(captured: int) -> None:
    start = pcap_header() + pcap_record(b"good")
    reader = reader_of(start + pcap_record(b"x" * 64, captured=captured))
    records, error = read_until_error(reader)
    assert [record.data for record in records] == [b"good"]
    assert isinstance(error, CaptureFormatError)
    assert not isinstance(error, CaptureTruncatedError)
    assert error.offset == len(start)
    assert f"captured length {captured}" in str(error)
    assert not reader.truncated
    assert list(reader) == []


def test_a_captured_length_past_the_end_is_a_file_cut_short() -> None:
    reader = reader_of(pcap_header() + pcap_record(b"x" * 64, captured=2**28))
    assert list(reader) == []
    assert reader.truncated
    assert len(reader.warnings) == 1


def test_an_original_length_below_the_captured_one_is_raised_to_it_with_one_warning() -> None:
    reader = reader_of(
        pcap_header() + pcap_record(b"x" * 64, original=63) + pcap_record(b"x" * 64, original=0)
    )
    assert [record.wire_length for record in reader] == [64, 64]
    assert len(reader.warnings) == 1
    assert reader.warnings[0].startswith("record 1: original length")
