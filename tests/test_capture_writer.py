"""Capture files as written: read back byte for byte, and misuse refused before anything is."""

import io
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack_gro.capture import Interface, PcapngWriter, PcapWriter, Record
from netstack_gro.errors import CaptureError, CaptureFormatError
from tests.capture_files import (
    enhanced,
    interface,
    option,
    pcap_header,
    pcap_record,
    reader_of,
    records_of,
    section,
)

pytestmark = pytest.mark.engineless

ORDERS = {"little": "<", "big": ">"}
MOMENT = 1573830016_444223380
LINKS = [1, 101, 276]

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize("byteorder", ORDERS)
@pytest.mark.parametrize("nanoseconds", [True, False])
def test_a_pcap_file_is_written_field_by_field(byteorder: Any, nanoseconds: bool) -> None:
    stream = io.BytesIO()
    writer = PcapWriter(
        stream, link_type=101, nanoseconds=nanoseconds, byteorder=byteorder, snap_length=99
    )
    writer.write(b"packet", MOMENT)
    writer.write(bytearray(b"cut"), 2**32 * 10**9 - 1, wire_length=1500)
    order = ORDERS[byteorder]
    magic, unit = (0xA1B23C4D, 1) if nanoseconds else (0xA1B2C3D4, 1000)
    assert stream.getvalue() == (
        pcap_header(order, magic=magic, snap_length=99, link=101)
        + pcap_record(b"packet", order, seconds=1573830016, fraction=444223380 // unit)
        + pcap_record(b"cut", order, seconds=2**32 - 1, fraction=999999999 // unit, original=1500)
    )


@pytest.mark.parametrize("byteorder", ORDERS)
def test_a_pcapng_file_is_written_field_by_field(byteorder: Any) -> None:
    stream = io.BytesIO()
    writer = PcapngWriter(stream, byteorder=byteorder)
    assert writer.add_interface(1, name="eth0", snap_length=96, offset=-3) == 0
    assert writer.add_interface(276, resolution=0x8A) == 1
    writer.write(b"packet", MOMENT, comments=["größe", ""])
    writer.write(memoryview(b"cut"), 10**9, 1, wire_length=1500)
    order = ORDERS[byteorder]
    end = option(0, b"", order)
    comments = option(1, "größe".encode(), order) + option(1, b"", order) + end
    offset = option(14, struct.pack(f"{order}q", -3), order)
    described = option(2, b"eth0", order) + option(9, b"\x09", order) + offset + end
    assert stream.getvalue() == (
        section(order)
        + interface(1, order, snap_length=96, options=described)
        + interface(276, order, options=option(9, b"\x8a", order) + end)
        + enhanced(b"packet", order, units=MOMENT + 3 * 10**9, options=comments)
        + enhanced(b"cut", order, interface=1, units=1024, original=1500)
    )


PACKETS = st.lists(
    st.tuples(
        st.binary(max_size=100),
        st.integers(0, 2**32 * 10**9 - 1),
        st.integers(0, 100_000),
        st.lists(TEXT, max_size=3),
    ),
    max_size=8,
)


@given(packets=PACKETS, byteorder=st.sampled_from(["little", "big", "native"]))
def test_what_pcap_writes_reads_back(packets: Any, byteorder: Any) -> None:
    for nanoseconds, unit in ((True, 1), (False, 1000)):
        stream = io.BytesIO()
        writer = PcapWriter(stream, link_type=1, nanoseconds=nanoseconds, byteorder=byteorder)
        for data, time, cut, _ in packets:
            writer.write(data, time, len(data) + cut)
        expected = [
            Record(data, time // unit * unit, len(data) + cut, 0, (), number)
            for number, (data, time, cut, _) in enumerate(packets, 1)
        ]
        assert records_of(stream.getvalue()) == expected


@given(
    packets=PACKETS,
    byteorder=st.sampled_from(["little", "big", "native"]),
    resolution=st.sampled_from([9, 0x9E, 0x9F]),
    name=st.none() | TEXT,
)
def test_what_pcapng_writes_reads_back(
    packets: Any, byteorder: Any, resolution: int, name: str | None
) -> None:
    stream = io.BytesIO()
    writer = PcapngWriter(stream, byteorder=byteorder)
    for number, link in enumerate(LINKS):
        writer.add_interface(link, name=name, resolution=resolution, offset=number * 7)
    expected = []
    for number, (data, since, cut, comments) in enumerate(packets, 1):
        where = number % 3
        time = since + 14 * 10**9  # no offset is later
        writer.write(data, time, where, wire_length=len(data) + cut, comments=iter(comments))
        expected.append(Record(data, time, len(data) + cut, where, tuple(comments), number))
    reader = reader_of(stream.getvalue())
    assert reader.format == "pcapng"
    assert list(reader) == expected
    assert reader.interfaces == [
        Interface(link, 0, name, resolution, number * 7) for number, link in enumerate(LINKS)
    ]


@given(time=st.integers(0, 2**63 - 1), resolution=st.integers(0, 11) | st.integers(0x80, 0x80 + 30))
def test_a_time_reads_back_within_one_unit_of_its_resolution(time: int, resolution: int) -> None:
    stream = io.BytesIO()
    writer = PcapngWriter(stream)
    writer.add_interface(1, resolution=resolution)
    base = 2 if resolution & 0x80 else 10
    per_second = base ** (resolution & 0x7F)
    if time * per_second // 10**9 >= 2**64:
        with pytest.raises(CaptureFormatError, match="does not fit"):
            writer.write(b"x", time)
        return
    writer.write(b"x", time)
    (record,) = records_of(stream.getvalue())
    assert record.timestamp_ns <= time
    assert (time - record.timestamp_ns) * per_second < 10**9 + per_second


def test_a_packet_above_64_kib_and_comments_of_65535_bytes_read_back() -> None:
    stream = io.BytesIO()
    writer = PcapngWriter(stream)
    writer.add_interface(1)
    comments = ["a" * 65535, "é" * 32767]
    writer.write(bytes(100_001), 1, comments=comments)
    (record,) = records_of(stream.getvalue())
    assert (len(record.data), record.comments) == (100_001, tuple(comments))


def test_every_record_is_one_write() -> None:
    class Counting(io.BytesIO):
        writes = 0

        def write(self, data: Any, /) -> int:
            self.writes += 1
            return super().write(data)

    stream = Counting()
    writer = PcapngWriter(stream)
    writer.add_interface(1)
    writer.write(b"packet", 1, comments=["comment"])
    pcap = PcapWriter(stream, link_type=1)
    pcap.write(b"packet", 1)
    assert stream.writes == 5


def test_an_error_of_the_stream_passes_through_unchanged() -> None:
    class Closed(io.BytesIO):
        def write(self, data: Any, /) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        PcapngWriter(Closed())
    with pytest.raises(BrokenPipeError):
        PcapWriter(Closed(), link_type=1)


PCAPNG_MISUSE: dict[str, Callable[[PcapngWriter], object]] = {
    "unknown interface": lambda writer: writer.write(b"x", 0, 1),
    "negative interface": lambda writer: writer.write(b"x", 0, -1),
    "data above the snap length": lambda writer: writer.write(bytes(97), 0),
    "wire length below the data": lambda writer: writer.write(b"1234", 0, wire_length=3),
    "wire length of 33 bits": lambda writer: writer.write(b"1234", 0, wire_length=2**32),
    "time before the interface's offset": lambda writer: writer.write(b"x", -1),
    "time of 65 bits": lambda writer: writer.write(b"x", 2**64),
    "comment above 65,535 bytes": lambda writer: writer.write(b"", 0, comments=["é" * 32768]),
    "comment with a NUL": lambda writer: writer.write(b"", 0, comments=["a\0b"]),
    "comment with a lone surrogate": lambda writer: writer.write(b"", 0, comments=["\ud800"]),
    "link type": lambda writer: writer.add_interface(65536),
    "snap length": lambda writer: writer.add_interface(1, snap_length=-1),
    "resolution": lambda writer: writer.add_interface(1, resolution=256),
    "offset": lambda writer: writer.add_interface(1, offset=2**63),
    "name with a NUL": lambda writer: writer.add_interface(1, name="\0"),
    "name above 65,535 bytes": lambda writer: writer.add_interface(1, name="a" * 65536),
}


@pytest.mark.parametrize("misuse", PCAPNG_MISUSE.values(), ids=PCAPNG_MISUSE)
def test_misuse_of_a_pcapng_writer_is_refused_and_writes_nothing(
    misuse: Callable[[PcapngWriter], object],
) -> None:
    stream = io.BytesIO()
    writer = PcapngWriter(stream)
    writer.add_interface(1, snap_length=96)
    before = stream.getvalue()
    with pytest.raises(CaptureFormatError) as caught:
        misuse(writer)
    assert isinstance(caught.value, CaptureError)
    assert isinstance(caught.value, ValueError)
    assert stream.getvalue() == before
    writer.write(b"still fine", 5)
    assert [record.data for record in records_of(stream.getvalue())] == [b"still fine"]


def test_a_block_or_packet_that_no_reader_here_would_take_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("netstack_gro.capture.writer.MAX_BLOCK_LENGTH", 1000)
    monkeypatch.setattr("netstack_gro.capture.writer.MAX_RECORD_LENGTH", 1000)
    stream = io.BytesIO()
    writer = PcapngWriter(stream)
    writer.add_interface(1)
    with pytest.raises(CaptureFormatError, match="block length 1008 "):
        writer.write(bytes(500), 0, comments=["a" * 468])
    monkeypatch.setattr("netstack_gro.capture.writer.MAX_INTERFACES", 1)
    with pytest.raises(CaptureFormatError, match="over 1 interfaces"):
        writer.add_interface(1)
    with pytest.raises(CaptureFormatError, match="length of a packet 1001 "):
        PcapWriter(stream, link_type=1).write(bytes(1001), 0)


PCAP_MISUSE: dict[str, Callable[[PcapWriter], object]] = {
    "data above the snap length": lambda writer: writer.write(bytes(97), 0),
    "wire length below the data": lambda writer: writer.write(b"1234", 0, 3),
    "wire length of 33 bits": lambda writer: writer.write(b"1234", 0, 2**32),
    "time before 1970": lambda writer: writer.write(b"x", -1),
    "time after 2106": lambda writer: writer.write(b"x", 2**32 * 10**9),
}


@pytest.mark.parametrize("misuse", PCAP_MISUSE.values(), ids=PCAP_MISUSE)
def test_misuse_of_a_pcap_writer_is_refused_and_writes_nothing(
    misuse: Callable[[PcapWriter], object],
) -> None:
    stream = io.BytesIO()
    writer = PcapWriter(stream, link_type=1, snap_length=96)
    before = stream.getvalue()
    with pytest.raises(CaptureFormatError):
        misuse(writer)
    assert stream.getvalue() == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"link_type": -1},
        {"link_type": 65536},
        {"link_type": 1, "snap_length": 0},
        {"link_type": 1, "snap_length": 2**32},
        {"link_type": 1, "byteorder": "middle"},
    ],
)
def test_a_pcap_header_that_cannot_be_is_refused(arguments: Any) -> None:
    stream = io.BytesIO()
    with pytest.raises(CaptureFormatError):
        PcapWriter(stream, **arguments)
    assert stream.getvalue() == b""


@pytest.mark.parametrize(("data", "time"), [(17, 0), ("text", 0), (b"x", 1.5), (b"x", None)])
def test_another_type_than_bytes_and_integer_nanoseconds_is_a_type_error(
    data: Any, time: Any
) -> None:
    stream = io.BytesIO()
    writer = PcapngWriter(stream)
    writer.add_interface(1)
    with pytest.raises(TypeError):
        writer.write(data, time)
    with pytest.raises(TypeError):
        PcapWriter(stream, link_type=1).write(data, time)


def test_an_error_names_the_file(tmp_path: Any) -> None:
    path = tmp_path / "out.pcapng"
    with path.open("wb") as stream, pytest.raises(CaptureFormatError, match=r"out\.pcapng: inter"):
        PcapngWriter(stream).write(b"x", 0)
