"""scapy and dpkt read what is written here, and the other way round; captures made by others."""

import gzip
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dpkt.pcap  # type: ignore[import-untyped]
import dpkt.pcapng  # type: ignore[import-untyped]
import pytest
from scapy.utils import RawPcapNgReader, RawPcapNgWriter, RawPcapReader, RawPcapWriter

from netstack_gro.capture import PcapngWriter, PcapWriter, open_capture
from netstack_gro.errors import UnsupportedLinkTypeError
from tests.capture_files import CAPTURES, read_until_error

pytestmark = pytest.mark.engineless

RNG = random.Random("capture witnesses")
PACKETS = [
    (RNG.randbytes(RNG.randrange(1515)), 1573830016_444223000 + number * 1_000_003_000)
    for number in range(200)
]
COMMENTS = ["one comment", "größer: ∑ 你好", ""]


def written_pcap(path: Path, **settings: Any) -> Path:
    with path.open("wb") as stream:
        writer = PcapWriter(stream, link_type=101, **settings)
        for data, time in PACKETS:
            writer.write(data, time, len(data) + 7)
    return path


def written_pcapng(path: Path, **settings: Any) -> Path:
    with path.open("wb") as stream:
        writer = PcapngWriter(stream, **settings)
        writer.add_interface(101, name="tun0", resolution=6)
        writer.add_interface(1, name="eth0", snap_length=2000)
        for number, (data, time) in enumerate(PACKETS):
            comments = COMMENTS[: number % 4]
            writer.write(data, time, number % 2, wire_length=len(data) + 7, comments=comments)
    return path


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("nanoseconds", [True, False])
def test_scapy_reads_the_pcap_that_is_written(
    byteorder: str, nanoseconds: bool, tmp_path: Path
) -> None:
    path = written_pcap(tmp_path / "x.pcap", byteorder=byteorder, nanoseconds=nanoseconds)
    with RawPcapReader(str(path)) as reader:
        assert reader.linktype == 101
        unit = 1 if reader.nano else 1000
        assert reader.nano == nanoseconds
        read = [(data, meta.sec * 10**9 + meta.usec * unit, meta.wirelen) for data, meta in reader]
    assert read == [(data, time, len(data) + 7) for data, time in PACKETS]


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("nanoseconds", [True, False])
def test_dpkt_reads_the_pcap_that_is_written(
    byteorder: str, nanoseconds: bool, tmp_path: Path
) -> None:
    path = written_pcap(tmp_path / "x.pcap", byteorder=byteorder, nanoseconds=nanoseconds)
    with path.open("rb") as stream:
        reader = dpkt.pcap.Reader(stream)
        assert reader.datalink() == 101
        read = list(reader)
    assert [data for _, data in read] == [data for data, _ in PACKETS]
    for (seconds, _), (_, time) in zip(read, PACKETS, strict=True):
        assert abs(float(seconds) - time / 10**9) < 1e-6


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_scapy_reads_the_pcapng_that_is_written(byteorder: str, tmp_path: Path) -> None:
    path = written_pcapng(tmp_path / "x.pcapng", byteorder=byteorder)
    with RawPcapNgReader(str(path)) as reader:
        read: list[tuple[bytes, Any]] = list(reader)
    assert len(read) == len(PACKETS)
    for number, ((data, meta), (expected, time)) in enumerate(zip(read, PACKETS, strict=True)):
        units = meta.tshigh << 32 | meta.tslow
        assert data == expected
        assert units * 10**9 == time * meta.tsresol
        assert meta.wirelen == len(data) + 7
        assert (meta.linktype, meta.ifname) == ((1, b"eth0") if number % 2 else (101, b"tun0"))
        comments = [comment.encode() for comment in COMMENTS[: number % 4]]
        assert (meta.comments or []) == comments


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_dpkt_reads_the_pcapng_that_is_written(byteorder: str, tmp_path: Path) -> None:
    path = written_pcapng(tmp_path / "x.pcapng", byteorder=byteorder)
    with path.open("rb") as stream:
        reader = dpkt.pcapng.Reader(stream)
        assert reader.datalink() == 101
        read = list(reader)
    assert [data for _, data in read] == [data for data, _ in PACKETS]
    # It knows one interface and one resolution, so every second time is its own.
    for (seconds, _), (_, time) in list(zip(read, PACKETS, strict=True))[::2]:
        assert abs(float(seconds) - time / 10**9) < 1e-5


@pytest.mark.parametrize("endianness", ["<", ">"])
@pytest.mark.parametrize("nano", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_what_scapy_writes_as_pcap_is_read(
    endianness: str, nano: bool, packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "x.pcap"
    with RawPcapWriter(
        str(path), linktype=101, nano=nano, endianness=endianness, gz=packed
    ) as writer:
        writer.write_header(None)
        for data, time in PACKETS:
            seconds, rest = divmod(time, 10**9)
            fraction = rest if nano else rest // 1000
            writer._write_packet(data, 101, sec=seconds, usec=fraction, wirelen=len(data) + 7)
    with open_capture(path) as reader:
        read = [(record.data, record.timestamp_ns, record.wire_length) for record in reader]
    assert read == [(data, time, len(data) + 7) for data, time in PACKETS]
    assert reader.interfaces[0].link_type == 101


def test_what_scapy_writes_as_pcapng_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pcapng"
    names = [b"eth0", b"eth1"]
    with RawPcapNgWriter(str(path)) as writer:
        writer.linktype = 1
        writer.write_header(None)
        for number, (data, _) in enumerate(PACKETS):
            comments = [comment.encode() for comment in COMMENTS[: number % 4]]
            writer._write_packet(
                data,
                1,
                sec=1573830016 + number,
                wirelen=len(data) + 7,
                ifname=names[number % 2],
                direction=1,
                comments=comments,
            )
    with open_capture(path) as reader:
        records = list(reader)
    assert [record.data for record in records] == [data for data, _ in PACKETS]
    for number, record in enumerate(records):
        assert record.timestamp_ns == (1573830016 + number) * 10**9
        assert record.wire_length == (len(record.data) + 7 if record.data else 7)
        assert record.comments == tuple(COMMENTS[: number % 4])
        assert reader.interfaces[record.interface].name == names[number % 2].decode()


@pytest.mark.parametrize("nano", [True, False])
def test_what_dpkt_writes_as_pcap_is_read(nano: bool, tmp_path: Path) -> None:
    stream = io.BytesIO()
    writer = dpkt.pcap.Writer(stream, linktype=113, nano=nano)
    for number, (data, _) in enumerate(PACKETS):
        writer.writepkt(data, ts=number + 0.5)
    with open_capture(io.BytesIO(stream.getvalue())) as reader:
        records = list(reader)
    assert [record.data for record in records] == [data for data, _ in PACKETS]
    times = [number * 10**9 + 500_000_000 for number in range(len(PACKETS))]
    assert [record.timestamp_ns for record in records] == times
    assert reader.interfaces[0].link_type == 113


def test_what_dpkt_writes_as_pcapng_is_read() -> None:
    stream = io.BytesIO()
    writer = dpkt.pcapng.Writer(stream, linktype=1)
    for number, (data, _) in enumerate(PACKETS):
        writer.writepkt(data, ts=number + 0.5)
    with open_capture(io.BytesIO(stream.getvalue())) as reader:
        records = list(reader)
    assert [record.data for record in records] == [data for data, _ in PACKETS]
    times = [number * 10**9 + 500_000_000 for number in range(len(PACKETS))]
    assert [record.timestamp_ns for record in records] == times


# --- captures made by others -------------------------------------------------------------------

FILES = sorted(CAPTURES.glob("*.pcap*")) if CAPTURES.is_dir() else []
needs_captures = pytest.mark.skipif(not FILES, reason=f"needs the captures in {CAPTURES}")
REFUSED = {"tcpdump-ieee802.11_exthdr.pcap": 127}


def scapy_packets(path: Path) -> list[tuple[bytes, int]]:
    """Whole packets as scapy reads them, with their length before they were cut."""
    kind = RawPcapNgReader if path.suffix == ".pcapng" else RawPcapReader
    with kind(str(path)) as reader:
        packets: list[tuple[bytes, int]] = []
        while True:
            try:
                # The default size is that of a large MTU, and would cut longer ones.
                data, meta = reader._read_packet(size=1 << 28)
            except EOFError:
                return packets
            if path.suffix == ".pcapng" or meta.caplen == len(data):
                packets.append((data, meta.wirelen))


@needs_captures
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_captures_made_by_others_are_read_as_scapy_reads_them_or_refused_by_name(
    path: Path, pack: Callable[[bytes], bytes]
) -> None:
    stream = io.BytesIO(pack(path.read_bytes()))
    stream.name = path.name
    if path.name in REFUSED:
        with pytest.raises(UnsupportedLinkTypeError, match=path.name) as caught:
            open_capture(stream)
        assert caught.value.link_type == REFUSED[path.name]
        return
    reader = open_capture(stream)
    records = list(reader)
    expected = [(data, max(len(data), wire)) for data, wire in scapy_packets(path)]
    assert [(record.data, record.wire_length) for record in records] == expected
    assert reader.interfaces


@needs_captures
def test_captures_made_by_others_hold_damaged_packets_but_no_damaged_records() -> None:
    faults = {}
    for path in FILES:
        if path.name not in REFUSED:
            with open_capture(path) as reader:
                _, error = read_until_error(reader)
            if error or reader.warnings:
                faults[path.name] = error or reader.warnings
    # Its fuzzed lengths disagree; scapy keeps them as they are.
    assert faults == {
        "tcpdump-pim_header_asan-2.pcap": [
            "record 3: original length below the captured one, which was taken"
        ]
    }
