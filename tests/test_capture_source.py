"""Where a capture comes from: paths, pipes, standard input, file objects, gzip in any of them."""

import errno
import gzip
import io
import os
import random
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pytest

from netstack_gro.capture import open_capture
from netstack_gro.errors import CaptureError, CaptureFormatError, CaptureTruncatedError
from tests.capture_files import (
    enhanced,
    interface,
    pcap_header,
    pcap_record,
    read_until_error,
    reader_of,
    section,
)

pytestmark = pytest.mark.engineless

FRAMES = [random.Random(number).randbytes(number % 1400) for number in range(2000)]
PCAP = pcap_header() + b"".join(map(pcap_record, FRAMES))
PCAPNG = section() + interface() + b"".join(map(enhanced, FRAMES))

needs_fifo = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@contextmanager
def pipe(*pieces: bytes) -> Iterator[IO[bytes]]:
    """The reading end of a pipe that a thread writes to, piece by piece."""
    read_end, write_end = os.pipe()

    def feed() -> None:
        with os.fdopen(write_end, "wb", buffering=0) as stream:
            stream.writelines(pieces)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        with os.fdopen(read_end, "rb") as stream:
            yield stream
    finally:
        thread.join()


@pytest.mark.parametrize("content", [PCAP, PCAPNG], ids=["pcap", "pcapng"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_every_kind_of_source_gives_the_same_records(
    content: bytes, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    stored = pack(content)
    path = tmp_path / "no extension"
    path.write_bytes(stored)
    with open_capture(path) as by_path, open_capture(str(path)) as by_name:
        assert [record.data for record in by_path] == FRAMES
        assert [record.data for record in by_name] == FRAMES
        assert by_path.name == by_name.name == str(path)
        assert by_path.size == by_path.bytes_read == len(stored)
    with pipe(stored) as stream, open_capture(stream) as by_pipe:
        assert [record.data for record in by_pipe] == FRAMES
        assert by_pipe.size is None
    with open_capture(io.BytesIO(stored)) as by_object:
        assert [record.data for record in by_object] == FRAMES


@needs_fifo
def test_a_named_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    thread = threading.Thread(target=path.write_bytes, args=(gzip.compress(PCAPNG),))
    thread.start()
    try:
        with open_capture(path) as reader:
            assert [record.data for record in reader] == FRAMES
    finally:
        thread.join()


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_standard_input_is_a_minus_sign(pack: Callable[[bytes], bytes]) -> None:
    script = (
        "from netstack_gro.capture import open_capture\n"
        "with open_capture('-') as reader:\n"
        "    print(reader.name, sum(len(record.data) for record in reader))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=pack(PCAP), capture_output=True, check=True
    )
    assert done.stdout.decode().split() == ["standard", "input", str(sum(map(len, FRAMES)))]


def test_standard_input_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(PCAP))
    monkeypatch.setattr(sys, "stdin", stdin)
    with open_capture("-") as reader:
        assert len(list(reader)) == len(FRAMES)
    assert not stdin.closed


@pytest.mark.parametrize("stdin", [None, io.StringIO("text")])
def test_standard_input_that_has_no_bytes_is_refused(
    stdin: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with pytest.raises(CaptureError, match=r"^standard input: "):
        open_capture("-")


def test_a_live_pipe_gives_each_record_before_the_next_one_is_written() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as source, os.fdopen(write_end, "wb", buffering=0) as sink:
        sink.write(PCAP[:24])
        reader = open_capture(source)
        for number in range(1, 4):
            sink.write(pcap_record(bytes(number)))
            assert next(reader).data == bytes(number)


def test_a_pipe_that_gives_one_byte_at_a_time_is_read() -> None:
    content = section() + interface() + enhanced(b"one") + enhanced(b"two")
    for stored in (content, gzip.compress(content)):
        with pipe(*(bytes([byte]) for byte in stored)) as stream:
            assert [record.data for record in open_capture(stream)] == [b"one", b"two"]


def test_a_file_object_is_read_from_where_it_stands_and_left_open() -> None:
    stream = io.BytesIO(b"prefix" + PCAP)
    stream.seek(6)
    with open_capture(stream) as reader:
        assert reader.name == "<stream>"
        assert len(list(reader)) == len(FRAMES)
    assert not stream.closed


def test_a_file_that_was_opened_here_is_closed_by_leaving_and_by_a_failed_start(
    tmp_path: Path,
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(PCAP)
    bad.write_bytes(b"no capture")
    # An unclosed file would be a ResourceWarning, and warnings are errors.
    with open_capture(good) as reader:
        next(reader)
    with pytest.raises(CaptureFormatError):
        open_capture(bad)
    reader.close()
    with pytest.raises(ValueError, match="was closed"):
        next(reader)
    with pytest.raises(ValueError, match="was closed"):
        iter(reader)


def test_iteration_goes_on_where_it_was_left() -> None:
    reader = reader_of(PCAP)
    assert next(reader).number == 1
    for record in reader:
        assert record.number == 2
        break
    assert [record.number for record in reader] == list(range(3, len(FRAMES) + 1))
    assert list(reader) == []


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda folder: folder / "missing.pcap", errno.ENOENT),
        (lambda folder: folder, errno.EISDIR),
        (lambda folder: Path("/proc/self/mem"), errno.EIO),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the errors are those of Linux")
def test_a_path_that_cannot_be_read_is_a_capture_error_with_its_name(
    make: Callable[[Path], Path], code: int, tmp_path: Path
) -> None:
    path = make(tmp_path)
    with pytest.raises(CaptureError) as caught:
        open_capture(path)
    assert caught.value.name == str(path)
    assert str(caught.value).startswith(f"{path}: cannot be ")
    assert caught.value.errno == code


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs the permissions of Unix")
def test_a_file_without_permission_is_a_capture_error(tmp_path: Path) -> None:
    path = tmp_path / "secret.pcap"
    path.touch(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # nobody: root may read everything
    try:
        with pytest.raises(CaptureError, match="cannot be opened") as caught:
            open_capture(path)
    finally:
        os.seteuid(user)
    assert caught.value.errno == errno.EACCES


def test_a_name_with_a_nul_is_a_capture_error() -> None:
    with pytest.raises(CaptureError, match="cannot be opened"):
        open_capture("a\0b")


class Failing(io.RawIOBase):
    """Gives its content, then fails as a worn disk does."""

    def __init__(self, content: bytes, error: Exception | None) -> None:
        self._content = io.BytesIO(content)
        self._error = error

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes | None:
        content = self._content.read(size)
        if not content and self._error is not None:
            raise self._error
        return content or None


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_read_error_in_the_middle_comes_after_the_records_before_it(
    pack: Callable[[bytes], bytes],
) -> None:
    stored = pack(PCAP)
    failing = Failing(stored[: len(stored) // 2], OSError(errno.EIO, "worn out"))
    records, error = read_until_error(open_capture(cast("io.BufferedReader", failing)))
    assert len(records) > 100
    assert isinstance(error, CaptureError)
    assert error.errno == errno.EIO
    assert "worn out" in str(error)


def test_a_non_blocking_source_without_data_is_an_error_and_not_an_end() -> None:
    records, error = read_until_error(open_capture(cast("io.BufferedReader", Failing(PCAP, None))))
    assert len(records) == len(FRAMES)
    assert isinstance(error, CaptureError)
    assert "non-blocking" in str(error)


@pytest.mark.parametrize("source", [io.StringIO("text"), 17, b"bytes are no path", None])
def test_what_is_no_source_is_a_type_error(source: object) -> None:
    with pytest.raises(TypeError):
        open_capture(cast("str", source))


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "is empty"),
        (b"\n", "1 bytes"),
        (b"<html>", "neither pcap nor pcapng"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh91AY", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"snoop\0\0\0", "snoop"),
    ],
)
def test_what_is_no_capture_is_refused_with_a_reason(content: bytes, hint: str) -> None:
    for stored in (content, gzip.compress(content)):
        with pytest.raises(CaptureFormatError, match=hint):
            reader_of(stored)


# --- gzip -----------------------------------------------------------------------------------


def test_gzip_members_read_as_one_file_with_padding_behind() -> None:
    middle = len(PCAP) // 2 + 1
    stored = gzip.compress(PCAP[:middle]) + gzip.compress(b"") * 100 + gzip.compress(PCAP[middle:])
    reader = reader_of(stored + bytes(512))
    assert [record.data for record in reader] == FRAMES
    assert (reader.truncated, reader.warnings) == (False, [])


@pytest.mark.parametrize("content", [PCAP, PCAPNG], ids=["pcap", "pcapng"])
def test_a_gzip_file_cut_in_the_middle_is_truncated_with_a_warning(content: bytes) -> None:
    stored = gzip.compress(content)
    reader = reader_of(stored[: len(stored) // 2])
    records = list(reader)
    assert [record.data for record in records] == FRAMES[: len(records)]
    assert len(records) > 100
    assert reader.truncated
    assert len(reader.warnings) == 1
    assert "compressed data ends early" in reader.warnings[0]


def test_a_gzip_file_cut_at_the_end_of_a_record_or_in_its_trailer_is_truncated() -> None:
    stored = gzip.compress(pcap_header() + pcap_record(b"whole"))
    for missing in range(1, 9):
        reader = reader_of(stored[:-missing])
        assert [record.data for record in reader] == [b"whole"]
        assert reader.truncated
    squeezer = zlib.compressobj(wbits=31)
    flushed = squeezer.compress(pcap_header() + pcap_record(b"whole"))
    flushed += squeezer.flush(zlib.Z_SYNC_FLUSH)
    reader = reader_of(flushed)
    assert [record.data for record in reader] == [b"whole"]
    assert reader.truncated


def test_a_gzip_file_cut_anywhere_gives_only_typed_errors() -> None:
    stored = gzip.compress(section() + interface() + enhanced(b"a" * 99) + enhanced(b"b" * 99))
    for length in range(len(stored)):
        try:
            reader = reader_of(stored[:length])
        except CaptureTruncatedError:
            continue
        records = [record.data for record in reader]
        assert records == [b"a" * 99, b"b" * 99][: len(records)]
        assert reader.truncated


def test_damaged_compressed_data_is_a_format_error_after_the_records_before_it() -> None:
    stored = bytearray(gzip.compress(PCAP))
    checksum = bytearray(stored)
    checksum[-8] ^= 1
    records, error = read_until_error(reader_of(bytes(checksum)))
    assert [record.data for record in records] == FRAMES
    assert isinstance(error, CaptureFormatError)
    assert "damaged" in str(error)

    # The packets are random bytes, so that compressed and plain offsets are nearly the same.
    middle = len(stored) // 2
    stored[middle : middle + 4096] = b"\xff" * 4096
    records, error = read_until_error(reader_of(bytes(stored)))
    assert isinstance(error, CaptureFormatError)
    intact = sum(16 + len(record.data) for record in records)
    assert middle - 64 * 1024 < intact < len(PCAP) - 64 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured in KiB of getrusage")
def test_a_gzip_bomb_is_read_in_bounded_memory() -> None:
    # 512 MiB of packets from 2 MiB of file, measured where nothing else was allocated before.
    script = (
        "import gzip, io, resource\n"
        "from netstack_gro.capture import PcapWriter, open_capture\n"
        "stored = io.BytesIO()\n"
        "with gzip.open(stored, 'wb', 1) as stream:\n"
        "    writer = PcapWriter(stream, link_type=1, snap_length=1 << 20)\n"
        "    for second in range(512):\n"
        "        writer.write(bytes(1 << 20), second)\n"
        "stored.seek(0)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "total = sum(len(record.data) for record in open_capture(stored))\n"
        "grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(total >> 20, grown >> 10)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    total, grown = map(int, done.stdout.split())
    assert total == 512
    assert grown < 64
