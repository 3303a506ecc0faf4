"""Loads, stores, comparisons and the RFC 1071 sum over packet bytes.

These are the twins that the interpreted engine runs; the compiled one calls the functions of
the same names in ``_wire.h``, to which tests hold these equal. A base is a bytes-like object of
bytes, offsets and counts are in bytes, multi-byte values are in network byte order. Reads and
writes outside the base raise IndexError, as slices would not: an interpreted run on exact
buffers finds every read that compiled code would do outside a packet.
"""

from typing import TypeAlias

__all__ = [
    "MASK32",
    "copy",
    "copy_sum16",
    "equal",
    "fold",
    "fold16",
    "mix",
    "put_u8",
    "put_u16",
    "put_u32",
    "same_ipv4",
    "same_ipv6",
    "same_tcp",
    "sum16",
    "sum20",
    "swap16",
    "u8",
    "u16",
    "u32",
    "u64",
]

Base: TypeAlias = bytes | bytearray | memoryview
WritableBase: TypeAlias = bytearray | memoryview

MASK32 = 0xFFFFFFFF
_MASK64 = (1 << 64) - 1

# Which bits count, most significant first, when a packet is compared with its flow's head.
_IPV4_KEPT = int.from_bytes(
    b"\xff\xff\0\0\0\0\xff\xff" + b"\xff\xff\0\0\xff\xff\xff\xff" + b"\xff\xff\xff\xff", "big"
)
_IPV6_KEPT = int.from_bytes(b"\xff\xff\xff\xff\0\0\xff\xff" + b"\xff" * 32, "big")
_TCP_KEPT = {
    count: int.from_bytes(
        b"\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff\xff\xf6\xff\xff\0\0\xff\xff"
        + b"\xff" * (count - 20),
        "big",
    )
    for count in range(20, 64, 4)
}


def _outside(base: Base, at: int, count: int) -> IndexError:
    return IndexError(f"bytes {at} to {at + count} of {len(base)}")


def u8(base: Base, at: int) -> int:
    """The byte at ``at``."""
    if at < 0 or at >= len(base):
        raise _outside(base, at, 1)
    return base[at]


def u16(base: Base, at: int) -> int:
    """The 16-bit word at ``at``."""
    if at < 0 or at + 2 > len(base):
        raise _outside(base, at, 2)
    return base[at] << 8 | base[at + 1]


def u32(base: Base, at: int) -> int:
    """The 32-bit word at ``at``."""
    if at < 0 or at + 4 > len(base):
        raise _outside(base, at, 4)
    return int.from_bytes(base[at : at + 4], "big")


def u64(base: Base, at: int) -> int:
    """The 64-bit word at ``at``."""
    if at < 0 or at + 8 > len(base):
        raise _outside(base, at, 8)
    return int.from_bytes(base[at : at + 8], "big")


def put_u8(base: WritableBase, at: int, value: int) -> None:
    """Store the low 8 bits of ``value``."""
    if at < 0 or at >= len(base):
        raise _outside(base, at, 1)
    base[at] = value & 0xFF


def put_u16(base: WritableBase, at: int, value: int) -> None:
    """Store the low 16 bits of ``value``."""
    if at < 0 or at + 2 > len(base):
        raise _outside(base, at, 2)
    base[at] = value >> 8 & 0xFF
    base[at + 1] = value & 0xFF


def put_u32(base: WritableBase, at: int, value: int) -> None:
    """Store the low 32 bits of ``value``."""
    put_u16(base, at, value >> 16)
    put_u16(base, at + 2, value)


def copy(to: WritableBase, to_at: int, source: Base, source_at: int, count: int) -> None:
    """Copy ``count`` bytes between bases that do not overlap."""
    if to_at < 0 or count < 0 or to_at + count > len(to):
        raise _outside(to, to_at, count)
    if source_at < 0 or source_at + count > len(source):
        raise _outside(source, source_at, count)
    to[to_at : to_at + count] = source[source_at : source_at + count]


def equal(a: Base, a_at: int, b: Base, b_at: int, count: int) -> bool:
    """Whether ``count`` bytes are the same."""
    if a_at < 0 or count < 0 or a_at + count > len(a):
        raise _outside(a, a_at, count)
    if b_at < 0 or b_at + count > len(b):
        raise _outside(b, b_at, count)
    return a[a_at : a_at + count] == b[b_at : b_at + count]


def _same(a: Base, a_at: int, b: Base, b_at: int, count: int, kept: int) -> bool:
    if a_at < 0 or a_at + count > len(a):
        raise _outside(a, a_at, count)
    if b_at < 0 or b_at + count > len(b):
        raise _outside(b, b_at, count)
    difference = int.from_bytes(a[a_at : a_at + count], "big") ^ int.from_bytes(
        b[b_at : b_at + count], "big"
    )
    return not difference & kept


def same_ipv4(a: Base, a_at: int, b: Base, b_at: int) -> bool:
    """Whether two 20-byte IPv4 headers agree in all but total length, ID and checksum."""
    return _same(a, a_at, b, b_at, 20, _IPV4_KEPT)


def same_ipv6(a: Base, a_at: int, b: Base, b_at: int) -> bool:
    """Whether two IPv6 headers agree in all but the payload length."""
    return _same(a, a_at, b, b_at, 40, _IPV6_KEPT)


def same_tcp(a: Base, a_at: int, b: Base, b_at: int, count: int) -> bool:
    """Whether two TCP headers of ``count`` bytes agree in all but sequence, FIN, PSH, checksum.

    ``count`` is a multiple of 4 from 20 to 60.
    """
    return _same(a, a_at, b, b_at, count, _TCP_KEPT[count])


def fold(total: int) -> int:
    """``total`` (unsigned, 64 bits) folded to 16 bits with end-around carry; 0 only for 0."""
    return (total - 1) % 0xFFFF + 1 if total else 0


def fold16(total: int) -> int:
    """`fold` for a ``total`` below 2**24."""
    total = (total & 0xFFFF) + (total >> 16)
    return (total & 0xFFFF) + (total >> 16)


def swap16(value: int) -> int:
    """The two bytes of a 16-bit value exchanged: what a sum becomes at an odd offset."""
    return (value & 0xFF) << 8 | value >> 8


def sum16(base: Base, at: int, count: int) -> int:
    """Ones'-complement sum of ``count`` bytes as 16-bit words (RFC 1071), folded.

    A last odd byte counts as if a zero byte followed. 0 only when every byte is 0.
    """
    if at < 0 or count < 0 or at + count > len(base):
        raise _outside(base, at, count)
    # 2**16 is 1 modulo 65535, so the whole run read as one number is the sum of its words.
    total = int.from_bytes(base[at : at + count], "big")
    return fold(total << 8 if count & 1 else total)


def copy_sum16(to: WritableBase, to_at: int, source: Base, source_at: int, count: int) -> int:
    """`copy`, and the `sum16` of what was copied."""
    copy(to, to_at, source, source_at, count)
    return sum16(source, source_at, count)


def sum20(base: Base, at: int) -> int:
    """`sum16` of 20 bytes: an IPv4 header without options."""
    return sum16(base, at, 20)


def mix(a: int, b: int) -> int:
    """The two 64-bit halves of the product of two 64-bit values, combined by exclusive or."""
    product = a * b
    return product & _MASK64 ^ product >> 64
