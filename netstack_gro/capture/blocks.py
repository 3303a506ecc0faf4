"""Blocks and options of pcapng as numbers and layouts (draft-ietf-opsawg-pcapng).

A block is its type, its total length, a body, and the total length again; every part is padded
to 32 bits. All integers are in the byte order of the section that the block belongs to.
"""

from struct import Struct
from typing import NamedTuple

SECTION_HEADER = 0x0A0D0D0A  # a palindrome: the same in both byte orders
INTERFACE_DESCRIPTION = 1
OBSOLETE_PACKET = 2
SIMPLE_PACKET = 3
ENHANCED_PACKET = 6

SECTION_MAGIC = SECTION_HEADER.to_bytes(4, "big")
BYTE_ORDER_MAGIC = 0x1A2B3C4D

OPTION_END = 0
OPTION_COMMENT = 1
OPTION_INTERFACE_NAME = 2
OPTION_RESOLUTION = 9
OPTION_OFFSET = 14

MAX_OPTION_LENGTH = 0xFFFF

# Total length of a block without options and data, and where its options or data begin.
BLOCK_OVERHEAD = 12
SECTION_HEADER_LENGTH, SECTION_OPTIONS = 28, 24
INTERFACE_LENGTH, INTERFACE_OPTIONS = 20, 16
SIMPLE_LENGTH, SIMPLE_DATA = 16, 12
PACKET_LENGTH, PACKET_DATA = 32, 28  # enhanced and obsolete alike


class Layout(NamedTuple):
    """Every fixed part of a block, from its type on, in one byte order.

    block: type, total length.
    section: type, total length, byte-order magic, major and minor version, section length.
    interface: type, total length, link type, reserved, snap length.
    enhanced: type, total length, interface, time (high, low), captured and original length.
    obsolete: the same with 16 bits for the interface, then 16 for a drop count.
    simple: type, total length, original length.
    option: code, length. word: a trailing total length. offset: the value of if_tsoffset.
    """

    block: Struct
    section: Struct
    interface: Struct
    enhanced: Struct
    obsolete: Struct
    simple: Struct
    option: Struct
    word: Struct
    offset: Struct


def _layout(order: str) -> Layout:
    formats = ("II", "IIIHHq", "IIHHI", "IIIIIII", "IIHHIIII", "III", "HH", "I", "q")
    return Layout(*(Struct(order + fields) for fields in formats))


LAYOUTS = {"little": _layout("<"), "big": _layout(">")}


def padding(length: int) -> int:
    """Bytes that pad ``length`` to a multiple of four."""
    return -length & 3
