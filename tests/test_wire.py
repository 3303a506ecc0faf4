"""Loads, stores, comparisons and sums: the Python twins against plain loops, the C side against
the twins.

The C functions are inline in a header, so they are built here into a small library of their own,
once for each way in which the header can be compiled, and run on memory that ends at a page which
may not be touched.
"""

import ctypes
import mmap
import os
import random
import shlex
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import netstack_gro
from netstack_gro import wire
from tests.engines import ENGINES
from tests.requirements import require

TCP_LENGTHS = range(20, 64, 4)
U64 = (1 << 64) - 1

# --- what every function must say, in plain loops ------------------------------------------------


def plain_sum(data: bytes) -> int:
    """RFC 1071 section 4.1, with the carry folded after every word."""
    total = 0
    for (word,) in struct.iter_unpack("!H", data + bytes(len(data) % 2)):
        total += word
        total = (total & 0xFFFF) + (total >> 16)
    return total


def plain_fold(total: int) -> int:
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def plain_same(a: bytes, b: bytes | bytearray, free: dict[int, int]) -> bool:
    """Whether two runs of bytes agree but for the bits of ``free``, a mask for each offset."""
    return all(not (x ^ y) & ~free.get(at, 0) for at, (x, y) in enumerate(zip(a, b, strict=True)))


IPV4_FREE = dict.fromkeys((2, 3, 4, 5, 10, 11), 0xFF)  # total length, ID, header checksum
IPV6_FREE = dict.fromkeys((4, 5), 0xFF)  # payload length
TCP_FREE = dict.fromkeys((4, 5, 6, 7, 16, 17), 0xFF) | {13: 0x09}  # sequence, checksum, FIN, PSH


# --- the two sides under the same names ----------------------------------------------------------


class Memory:
    """Bytes for one side: ``put`` places them so that they end where reading must end."""

    def put(self, data: bytes) -> Any:
        return bytearray(data)


class Fenced(Memory):
    """Memory in front of a page that may not be touched; bytes are placed flush against it."""

    SIZE = 1 << 14

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, self.SIZE + mmap.PAGESIZE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        fence = ctypes.c_void_p(self._start + self.SIZE)
        if libc.mprotect(fence, ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data: bytes) -> int:
        self._map[self.SIZE - len(data) : self.SIZE] = data
        return self._start + self.SIZE - len(data)


class Side:
    """One side: functions by the names of `wire`, on memory of its own kind."""

    def __init__(self, functions: Any, memory: Callable[[], Memory]) -> None:
        self.functions = functions
        self.a = memory()
        self.b = memory()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.functions, name)


class Library:
    """The functions of the C header, with their types."""

    SIZE = ctypes.c_ssize_t
    BASE = ctypes.c_void_p
    WORD = ctypes.c_uint
    LONG = ctypes.c_ulonglong
    TYPES: dict[str, tuple[Any, list[Any]]] = {
        "u8": (WORD, [BASE, SIZE]),
        "u16": (WORD, [BASE, SIZE]),
        "u32": (WORD, [BASE, SIZE]),
        "u64": (LONG, [BASE, SIZE]),
        "put_u8": (None, [BASE, SIZE, WORD]),
        "put_u16": (None, [BASE, SIZE, WORD]),
        "put_u32": (None, [BASE, SIZE, WORD]),
        "copy": (None, [BASE, SIZE, BASE, SIZE, SIZE]),
        "copy_sum16": (WORD, [BASE, SIZE, BASE, SIZE, SIZE]),
        "equal": (ctypes.c_int, [BASE, SIZE, BASE, SIZE, SIZE]),
        "same_ipv4": (ctypes.c_int, [BASE, SIZE, BASE, SIZE]),
        "same_ipv6": (ctypes.c_int, [BASE, SIZE, BASE, SIZE]),
        "same_tcp": (ctypes.c_int, [BASE, SIZE, BASE, SIZE, SIZE]),
        "fold": (WORD, [LONG]),
        "fold16": (WORD, [WORD]),
        "swap16": (WORD, [WORD]),
        "sum16": (WORD, [BASE, SIZE, SIZE]),
        "sum20": (WORD, [BASE, SIZE]),
        "mix": (LONG, [LONG, LONG]),
    }

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        for name, (result, parameters) in self.TYPES.items():
            function = library[f"test_{name}"]
            function.restype, function.argtypes = result, parameters
            setattr(self, name, function)

    @classmethod
    def source(cls) -> str:
        """C that exports each inline function."""
        names = {
            cls.SIZE: "Py_ssize_t",
            cls.WORD: "unsigned int",
            cls.LONG: "unsigned long long",
            ctypes.c_int: "int",
            None: "void",
        }
        lines = ['#include "_wire.h"']
        for name, (result, parameters) in cls.TYPES.items():
            kinds = [names.get(kind, "wire_byte *") for kind in parameters]
            declared = ", ".join(f"{kind} p{at}" for at, kind in enumerate(kinds))
            passed = ", ".join(f"p{at}" for at in range(len(kinds)))
            call = f"wire_{name}({passed});"
            body = call if result is None else f"return {call}"
            lines.append(f"{names[result]} test_{name}({declared}) {{ {body} }}")
        return "\n".join(lines) + "\n"


VARIANTS = {
    "as built": [],
    "without run-time dispatch": ["-DWIRE_PLAIN"],
    "without 128-bit integers": ["-U__SIZEOF_INT128__"],
}


def compiled(folder: Path, flags: list[str]) -> Library | str:
    """The header as a library, or why it cannot be built here."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC")
    if sys.platform == "win32" or not compiler:
        return "needs a C compiler that takes the options of GCC"
    source, library = folder / "wire.c", folder / "wire.so"
    source.write_text(Library.source(), "ascii")
    command = [
        *shlex.split(compiler),
        *("-O3", "-Wall", "-Werror", "-shared", "-fPIC", *flags),
        f"-I{Path(netstack_gro.__file__).parent}",
        f"-I{sysconfig.get_path('include')}",
        *("-o", str(library), str(source)),
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"needs a C compiler: {error}"
    if run.returncode:
        return f"needs a C compiler, {shlex.join(command)} says: {run.stdout}{run.stderr}"
    return Library(library)


@pytest.fixture(scope="module", params=["python", *VARIANTS])
def side(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Side:
    """The Python twins, then the C header in each of its variants."""
    if request.param == "python":
        return Side(wire, Memory)
    built = compiled(tmp_path_factory.mktemp("wire"), VARIANTS[request.param])
    if isinstance(built, str):
        if "compiled" in ENGINES:
            require(built)
        pytest.skip(built)
    return Side(built, Fenced)


# --- both sides ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_a_load_reads_a_big_endian_word_at_any_offset(side: Side, size: int) -> None:
    data = random.Random(size).randbytes(40)
    base = side.a.put(data)
    load = getattr(side, f"u{8 * size}")
    for at in range(len(data) - size + 1):
        assert load(base, at) == int.from_bytes(data[at : at + size], "big")


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_store_changes_its_own_bytes_only(side: Side, size: int) -> None:
    random_ = random.Random(size)
    for at in range(20 - size + 1):
        data = random_.randbytes(20)
        value = random_.getrandbits(8 * size)
        base = side.a.put(data)
        getattr(side, f"put_u{8 * size}")(base, at, value)
        stored = bytes(side.u8(base, place) for place in range(20))
        assert stored == data[:at] + value.to_bytes(size, "big") + data[at + size :]


def test_a_store_keeps_the_low_bits_of_a_value_that_is_too_wide(side: Side) -> None:
    base = side.a.put(bytes(4))
    side.put_u8(base, 0, 0x1FF)
    side.put_u16(base, 2, 0x3FFFE)
    assert [side.u8(base, at) for at in range(4)] == [0xFF, 0, 0xFF, 0xFE]


def test_copy_moves_exactly_the_bytes_it_is_told(side: Side) -> None:
    random_ = random.Random(1)
    for _ in range(300):
        count = random_.randrange(0, 64)
        source = random_.randbytes(count + random_.randrange(9))
        target = random_.randbytes(count + random_.randrange(9))
        at, to_at = len(source) - count, random_.randrange(len(target) - count + 1)
        to, base = side.a.put(target), side.b.put(source)
        side.copy(to, to_at, base, at, count)
        now = bytes(side.u8(to, place) for place in range(len(target)))
        assert now == target[:to_at] + source[at:] + target[to_at + count :]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 40, 100])
def test_equal_sees_a_difference_in_any_byte_and_none_beside_them(side: Side, count: int) -> None:
    data = random.Random(count).randbytes(count)
    a = side.a.put(b"x" + data)
    assert side.equal(a, 1, side.b.put(b"yz" + data), 2, count)
    for at in range(count):
        other = bytearray(data)
        other[at] ^= 1 << at % 8
        assert not side.equal(a, 1, side.b.put(b"y" + other), 1, count)


def bits(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The data with each of its bits turned over in turn: (offset, mask, bytes)."""
    for at in range(len(data)):
        for bit in range(8):
            other = bytearray(data)
            other[at] ^= 1 << bit
            yield at, 1 << bit, bytes(other)


@pytest.mark.parametrize(
    ("name", "length", "free"),
    [("same_ipv4", 20, IPV4_FREE), ("same_ipv6", 40, IPV6_FREE)],
)
def test_ip_headers_are_compared_bit_by_bit(
    side: Side, name: str, length: int, free: dict[int, int]
) -> None:
    same = getattr(side, name)
    for lead in range(9):
        data = random.Random(lead).randbytes(length)
        a = side.a.put(bytes(lead) + data)
        assert same(a, lead, side.b.put(data), 0)
        for at, mask, other in bits(data):
            expected = not mask & ~free.get(at, 0)
            assert bool(same(a, lead, side.b.put(other), 0)) is expected, (at, mask)


@pytest.mark.parametrize("length", TCP_LENGTHS)
def test_tcp_headers_are_compared_bit_by_bit(side: Side, length: int) -> None:
    data = random.Random(length).randbytes(length)
    a = side.a.put(b"?" + data)
    assert side.same_tcp(a, 1, side.b.put(data), 0, length)
    for at, mask, other in bits(data):
        expected = not mask & ~TCP_FREE.get(at, 0)
        assert bool(side.same_tcp(a, 1, side.b.put(other), 0, length)) is expected, (at, mask)


@pytest.mark.parametrize(
    ("name", "lengths", "free"),
    [
        ("same_ipv4", [20], IPV4_FREE),
        ("same_ipv6", [40], IPV6_FREE),
        ("same_tcp", TCP_LENGTHS, TCP_FREE),
    ],
)
def test_headers_with_several_differences_are_compared_as_plain_loops_do(
    side: Side, name: str, lengths: list[int], free: dict[int, int]
) -> None:
    random_ = random.Random(3)
    for _ in range(600):
        length = random_.choice(lengths)
        data = random_.randbytes(length)
        other = bytearray(data)
        for at in random_.sample(range(length), random_.randrange(5)):
            other[at] ^= free.get(at, random_.choice((0, 0, 0x80)))
        arguments = [side.a.put(data), 0, side.b.put(bytes(other)), 0]
        if name == "same_tcp":
            arguments.append(length)
        assert bool(getattr(side, name)(*arguments)) is plain_same(data, other, free)


def test_fold_ends_the_carry_around_and_is_zero_for_zero_only(side: Side) -> None:
    random_ = random.Random(4)
    values = [0, 1, 0xFFFE, 0xFFFF, 0x10000, 0x1FFFF, 0xFFFF0000, 0xFFFFFFFF, 1 << 32, U64, U64 - 1]
    values += [random_.getrandbits(random_.randrange(1, 65)) for _ in range(2000)]
    values += [0xFFFF * random_.getrandbits(48) for _ in range(200)]
    for value in values:
        assert side.fold(value) == plain_fold(value), hex(value)
        assert (side.fold(value) == 0) is (value == 0)


def test_the_short_fold_is_the_long_one_for_sums_below_2_to_the_24th(side: Side) -> None:
    random_ = random.Random(6)
    values = [0, 1, 0xFFFE, 0xFFFF, 0x10000, 0x1FFFE, 0x1FFFF, 0x20000, (1 << 24) - 1]
    for value in values + [random_.getrandbits(24) for _ in range(2000)]:
        assert side.fold16(value) == plain_fold(value), hex(value)


def test_swap16_exchanges_the_two_bytes(side: Side) -> None:
    for value in range(0, 65536, 7):
        assert side.swap16(value) == struct.unpack("<H", struct.pack(">H", value))[0]


@pytest.mark.parametrize("lead", range(16))
def test_the_sum_is_that_of_a_plain_loop_at_every_length_and_alignment(
    side: Side, lead: int
) -> None:
    random_ = random.Random(lead)
    # Ending flush, a run starts at every alignment as its length changes.
    step = 1 if lead == 0 else 61
    for count in range(lead, 2101, step):
        data = random_.randbytes(count)
        assert side.sum16(side.a.put(bytes(lead) + data), lead, count) == plain_sum(data), count


@pytest.mark.parametrize("lead", range(8))
def test_a_copy_with_its_sum_is_both_at_every_length_and_alignment(side: Side, lead: int) -> None:
    random_ = random.Random(lead)
    for count in [*range(300), *range(301, 2000, 37)]:
        source, target = random_.randbytes(lead + count), random_.randbytes(count + 8)
        to, base = side.a.put(target), side.b.put(source)
        assert side.copy_sum16(to, lead, base, lead, count) == plain_sum(source[lead:])
        now = bytes(side.u8(to, place) for place in range(len(target)))
        assert now == target[:lead] + source[lead:] + target[lead + count :]


@pytest.mark.parametrize("lead", range(9))
def test_the_sum_of_bytes_in_the_middle_leaves_out_those_around(side: Side, lead: int) -> None:
    data = random.Random(lead).randbytes(80)
    base = side.a.put(data)
    for count in range(80 - lead + 1):
        assert side.sum16(base, lead, count) == plain_sum(data[lead : lead + count])


def test_the_sum_tells_zero_from_all_ones(side: Side) -> None:
    for count in range(200):
        assert side.sum16(side.a.put(bytes(count)), 0, count) == 0
        ones = b"\xff" * count
        assert side.sum16(side.a.put(ones), 0, count) == plain_sum(ones)
    assert side.sum16(side.a.put(b"\x12\x34\xed\xcb"), 0, 4) == 0xFFFF


def test_the_sum_of_a_jumbo_frame_of_ones_does_not_overflow(side: Side) -> None:
    for count in (8999, 9000, Fenced.SIZE):
        assert side.sum16(side.a.put(b"\xff" * count), 0, count) == plain_sum(b"\xff" * count)


@pytest.mark.parametrize("lead", range(9))
def test_the_sum_of_an_ipv4_header_is_that_of_any_20_bytes(side: Side, lead: int) -> None:
    random_ = random.Random(lead)
    headers = [bytes(20), b"\xff" * 20, bytes(18) + b"\xff\xff", b"\x12\x34\xed\xcb" + bytes(16)]
    for header in headers + [random_.randbytes(20) for _ in range(500)]:
        assert side.sum20(side.a.put(bytes(lead) + header), lead) == plain_sum(header)


def test_mix_combines_the_halves_of_the_product(side: Side) -> None:
    random_ = random.Random(5)
    pairs = [(random_.getrandbits(64), random_.getrandbits(64)) for _ in range(2000)]
    pairs += [(a, b) for a in (0, 1, U64, 1 << 63, 0xFFFFFFFF) for b in (0, 1, U64, 1 << 32)]
    for a, b in pairs:
        assert side.mix(a, b) == (a * b & U64) ^ (a * b >> 64)


def test_every_function_of_the_twins_is_tested_on_both_sides() -> None:
    functions = {name for name in wire.__all__ if name != "MASK32"}
    assert functions == set(Library.TYPES)
    assert wire.MASK32 == 2**32 - 1


# --- the twins alone: what compiled code leaves unchecked ----------------------------------------


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize(("name", "size"), [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8)])
def test_a_load_outside_its_base_raises(kind: Callable[[bytes], Any], name: str, size: int) -> None:
    load = getattr(wire, name)
    load(kind(bytes(size)), 0)
    for base, at in ((bytes(size), 1), (bytes(size - 1), 0), (bytes(8), -1), (bytes(8), 8)):
        with pytest.raises(IndexError, match=f"of {len(base)}"):
            load(kind(base), at)


@pytest.mark.parametrize(("name", "size"), [("put_u8", 1), ("put_u16", 2), ("put_u32", 4)])
def test_a_store_outside_its_base_raises(name: str, size: int) -> None:
    for length, at in ((size, 1), (size - 1, 0), (8, -1), (8, 8)):
        base = bytearray(length)
        with pytest.raises(IndexError):
            getattr(wire, name)(base, at, 0)
        assert len(base) == length


@pytest.mark.parametrize(
    ("to", "to_at", "source", "source_at", "count"),
    [
        (4, 0, 4, 0, 5),
        (4, 1, 8, 0, 4),
        (8, 0, 4, 1, 4),
        (8, -1, 8, 0, 2),
        (8, 0, 8, -1, 2),
        (8, 4, 8, 4, -1),
    ],
)
def test_a_copy_outside_either_base_raises_and_changes_nothing(
    to: int, to_at: int, source: int, source_at: int, count: int
) -> None:
    target = bytearray(to)
    with pytest.raises(IndexError):
        wire.copy(target, to_at, b"\1" * source, source_at, count)
    assert target == bytes(to)


@pytest.mark.parametrize(
    ("compare", "count"),
    [
        (lambda a, a_at, b, b_at: wire.equal(a, a_at, b, b_at, 20), 20),
        (wire.same_ipv4, 20),
        (wire.same_ipv6, 40),
        (lambda a, a_at, b, b_at: wire.same_tcp(a, a_at, b, b_at, 32), 32),
    ],
)
def test_a_comparison_outside_either_base_raises(
    compare: Callable[[bytes, int, bytes, int], bool], count: int
) -> None:
    whole = bytes(count)
    assert compare(whole, 0, whole, 0)
    for a, a_at, b, b_at in (
        (whole[1:], 0, whole, 0),
        (whole, 0, whole[1:], 0),
        (whole, 1, whole, 0),
        (whole, 0, whole, 1),
        (whole, -1, whole, 0),
        (whole, 0, whole, -1),
    ):
        with pytest.raises(IndexError):
            compare(a, a_at, b, b_at)


def test_a_sum_outside_its_base_raises() -> None:
    for at, count in ((0, 9), (1, 8), (-1, 2), (0, -1), (9, 0)):
        with pytest.raises(IndexError):
            wire.sum16(bytes(8), at, count)
