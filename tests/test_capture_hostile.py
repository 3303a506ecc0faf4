"""A capture is hostile input: whatever its bytes, there are records, warnings or typed errors."""

import gzip
import io
import random
import struct
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netstack_gro.capture import PcapngWriter, PcapWriter, open_capture
from netstack_gro.errors import (
    CaptureError,
    CaptureFormatError,
    CaptureTruncatedError,
    UnsupportedLinkTypeError,
)
from tests.capture_files import (
    block,
    enhanced,
    interface,
    obsolete,
    option,
    pcap_header,
    pcap_record,
    read_until_error,
    reader_of,
    section,
    simple,
)

pytestmark = pytest.mark.engineless

FRAMES = [b"", b"a", b"bcd", b"efgh" * 5, b"last one"]

# Each file as its parts, with the frame of those that are packets.
PCAPNG_PARTS: list[tuple[bytes, bytes | None]] = [
    (section(options=option(4, b"made by hand") + option(0, b"")), None),
    (interface(1, options=option(2, b"eth0") + option(9, b"\x09") + option(0, b"")), None),
    (enhanced(FRAMES[0], units=2**40), FRAMES[0]),
    (enhanced(FRAMES[1], options=option(1, b"comment") + option(0, b"")), FRAMES[1]),
    (block(5, bytes(8)), None),
    (section(">"), None),
    (interface(276, ">", snap_length=96, offset=-5, resolution=0x8A), None),
    (simple(FRAMES[2], ">"), FRAMES[2]),
    (obsolete(FRAMES[3], ">", units=2**40), FRAMES[3]),
    (enhanced(FRAMES[4], ">", original=1500), FRAMES[4]),
]


def pcap_parts(order: str) -> list[tuple[bytes, bytes | None]]:
    return [(pcap_header(order), None), *((pcap_record(frame, order), frame) for frame in FRAMES)]


PARTS: dict[str, list[tuple[bytes, bytes | None]]] = {
    "pcap": pcap_parts("<"),
    "pcap, big-endian": pcap_parts(">"),
    "pcapng": PCAPNG_PARTS,
}
FILES = {name: b"".join(part for part, _ in parts) for name, parts in PARTS.items()}


@pytest.mark.parametrize("kind", PARTS)
def test_a_file_cut_at_any_byte_gives_every_whole_record_and_says_so(kind: str) -> None:
    parts, content = PARTS[kind], FILES[kind]
    first = len(parts[0][0])
    for length in range(len(content) + 1):
        cut = content[:length]
        if length < first:
            with pytest.raises(CaptureTruncatedError):
                reader_of(cut)
            continue
        whole, at = [], 0
        for part, frame in parts:
            if at + len(part) > length:
                break
            at += len(part)
            if frame is not None:
                whole.append(frame)
        reader = reader_of(cut)
        assert [record.data for record in reader] == whole, length
        assert reader.truncated == (at < length)
        assert len(reader.warnings) == (at < length)
        if reader.truncated:
            expected = f"byte {length}: the file ends within a record"
            assert reader.warnings[0].startswith(expected)
            assert reader.warnings[0].endswith(f"after {len(whole)} packets")


def check(content: bytes) -> None:
    """Read to the end. What a reader must hold whatever it reads."""
    try:
        reader = reader_of(content)
    except (CaptureFormatError, UnsupportedLinkTypeError) as refused:
        where = refused.offset
        assert where in range(len(content) + 1)
        return
    records, error = read_until_error(reader)
    assert error is None or type(error) in {CaptureFormatError, UnsupportedLinkTypeError}
    for number, record in enumerate(records, 1):
        assert record.number == number
        assert record.data in content
        assert len(record.data) <= record.wire_length < 2**32
        assert -(2**63) <= record.timestamp_ns < 2**63
        assert 0 <= record.interface < len(reader.interfaces)
    assert not (error and reader.truncated)
    assert len(reader.warnings) <= 3
    assert list(reader) == []


INTERESTING = [0, 1, 3, 4, 7, 12, 28, 31, 32, 33, 0x7F, 0x80, 0xFF, 2**15, 2**16 - 1]
INTERESTING += [2**28, 2**28 + 4, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1]


def mutated(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(damaged))
        match rng.randrange(6):
            case 0:
                damaged[at] = rng.randrange(256)
            case 1:
                damaged[at] ^= 1 << rng.randrange(8)
            case 2:  # a field, where fields mostly are: at a multiple of four
                at &= ~3
                word = struct.pack(rng.choice("<>") + "I", rng.choice(INTERESTING))
                damaged[at : at + 4] = word
            case 3:
                del damaged[at : at + rng.randrange(1, 40)]
            case 4:
                damaged[at:at] = rng.randbytes(rng.randrange(1, 40))
            case 5:
                source = rng.randrange(len(damaged))
                damaged[at:at] = damaged[source : source + rng.randrange(4, 80)]
        if not damaged:
            break
    return bytes(damaged)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_mutated_files_give_records_or_typed_errors(kind: str) -> None:
    rng = random.Random(f"capture {kind}")
    tracemalloc.start()
    try:
        for _ in range(5000):
            check(mutated(FILES[kind], rng))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_mutated_gzip_files_give_records_or_typed_errors() -> None:
    rng = random.Random("capture gzip")
    stored = gzip.compress(FILES["pcapng"], mtime=0)
    for _ in range(3000):
        try:
            reader = reader_of(mutated(stored, rng))
        except CaptureError:
            continue
        _, error = read_until_error(reader)
        assert error is None or isinstance(error, CaptureError)


STARTS = [b"", pcap_header(), pcap_header(">"), section() + interface(), section(">")]


@given(start=st.sampled_from(STARTS), rest=st.binary(max_size=300))
def test_random_bytes_give_records_or_typed_errors(start: bytes, rest: bytes) -> None:
    check(start + rest)


ANY_BLOCK = st.builds(
    lambda kind, body, order: block(kind, body + bytes(-len(body) % 4), order),
    st.sampled_from([0x0A0D0D0A, 1, 2, 3, 5, 6]),
    st.binary(max_size=80)
    | st.builds(
        lambda magic, rest: magic + rest,
        st.sampled_from([b"\x4d\x3c\x2b\x1a\1\0\0\0", b"\x1a\x2b\x3c\x4d\0\1\0\0", b"\1\0\0\0"]),
        st.binary(max_size=60),
    ),
    st.sampled_from("<>"),
)


@given(
    order=st.sampled_from("<>"),
    parts=st.lists(ANY_BLOCK | st.sampled_from([part for part, _ in PCAPNG_PARTS]), max_size=8),
)
@settings(max_examples=300)
def test_random_blocks_of_right_length_give_records_or_typed_errors(
    order: str, parts: list[bytes]
) -> None:
    check(section(order) + interface(1, order) + b"".join(parts))


CLAIMS = {
    "pcap record of 256 MiB": pcap_header() + pcap_record(b"x", captured=2**28),
    "pcap snap length of 4 GiB": pcap_header(snap_length=2**32 - 1) + pcap_record(b"x"),
    "pcapng block of 256 MiB": section() + interface() + block(6, bytes(20), length=2**28),
    "pcapng unknown block of 256 MiB": section() + block(99, b"", length=2**28),
    "pcapng section of 2**62 bytes": section(length=2**62) + interface() + enhanced(b"x"),
}


@pytest.mark.parametrize("content", CLAIMS.values(), ids=CLAIMS)
def test_a_length_that_the_file_does_not_back_allocates_nothing(content: bytes) -> None:
    tracemalloc.start()
    try:
        read_until_error(reader_of(content))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_memory_does_not_grow_with_the_length_of_a_file() -> None:
    stream = io.BytesIO()
    pcap, pcapng = PcapWriter(stream, link_type=1), io.BytesIO()
    writer = PcapngWriter(pcapng)
    writer.add_interface(1)
    for number in range(20_000):
        pcap.write(bytes(1000), number)
        writer.write(bytes(1000), number, comments=["a comment"])
    for content in (stream.getvalue(), pcapng.getvalue()):
        source = io.BytesIO(content)
        tracemalloc.start()
        try:
            assert sum(1 for _ in open_capture(source)) == 20_000
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 2 << 20
