"""struct virtio_net_hdr: what describes a packet whose checksum or segmentation is still to do.

The layout is that of include/uapi/linux/virtio_net.h (and of the virtio specification, 5.1.6):
10 bytes, or 12 with ``num_buffers``. Legacy devices, TUN and AF_PACKET use the host's byte
order unless told otherwise (TUNSETVNETLE, TUNSETVNETBE); virtio 1.0 is little-endian.
"""

import sys
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Literal

from netstack_gro.config import Link
from netstack_gro.errors import VirtioHeaderError

__all__ = ["GSO_ECN", "GsoType", "VirtioHeader"]

NEEDS_CSUM = 1  # VIRTIO_NET_HDR_F_NEEDS_CSUM, include/uapi/linux/virtio_net.h
DATA_VALID = 2  # VIRTIO_NET_HDR_F_DATA_VALID; receive only, never produced here
GSO_ECN = 0x80  # VIRTIO_NET_HDR_GSO_ECN: a flag within gso_type, for TCP with ECN

_LAYOUT = {
    ("little", 10): Struct("<BBHHHH"),
    ("big", 10): Struct(">BBHHHH"),
    ("little", 12): Struct("<BBHHHHH"),
    ("big", 12): Struct(">BBHHHHH"),
}

NATIVE = _LAYOUT[sys.byteorder, 10]
"""The 10 bytes in native order, for those who pack many."""

ByteOrder = Literal["little", "big", "native"]


class GsoType(IntEnum):
    """``gso_type`` without the ECN flag (VIRTIO_NET_HDR_GSO_*)."""

    NONE = 0
    TCPV4 = 1
    UFO = 3
    """UDP fragmentation offload; recognised by name only, never merged and never cut."""
    TCPV6 = 4
    UDP_L4 = 5


@dataclass(frozen=True, slots=True)
class VirtioHeader:
    """One struct virtio_net_hdr. Lengths and offsets are bytes from the start of the packet.

    ``flags``: `NEEDS_CSUM` (1) says that the transport checksum field holds only the
    pseudo-header sum and that ``csum_start`` and ``csum_offset`` say what to sum and where to
    store it; `DATA_VALID` (2), on receive, that the checksum was verified.
    ``gso_type`` is a `GsoType`, perhaps with `GSO_ECN` (0x80). ``gso_size`` is the payload of
    each segment but the last. ``num_buffers`` is written in the 12-byte form only. ``link`` is no
    part of the struct: it is the link layer that the offsets count from, where that is known.
    """

    flags: int = 0
    gso_type: int = 0
    hdr_len: int = 0
    gso_size: int = 0
    csum_start: int = 0
    csum_offset: int = 0
    num_buffers: int = 0
    link: Link | None = field(default=None, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, bits in _FIELD_BITS:
            value = getattr(self, name)
            if type(value) is not int and isinstance(value, int) and not isinstance(value, bool):
                value = int.__index__(value)  # a subclass of int may compare as it likes
                object.__setattr__(self, name, value)
            if type(value) is not int or not 0 <= value < 1 << bits:
                raise VirtioHeaderError(f"{name}: {value!r} is not an unsigned {bits}-bit integer")

    @property
    def needs_csum(self) -> bool:
        """Whether the transport checksum is partial."""
        return bool(self.flags & NEEDS_CSUM)

    @property
    def data_valid(self) -> bool:
        """Whether the other side verified the transport checksum."""
        return bool(self.flags & DATA_VALID)

    def encode(self, size: int = 10, byteorder: ByteOrder = "native") -> bytes:
        """The header as ``size`` (10 or 12) bytes in ``byteorder``.

        Raises VirtioHeaderError for another size or byte order.
        """
        layout = _layout(size, byteorder)
        fields = (
            self.flags,
            self.gso_type,
            self.hdr_len,
            self.gso_size,
            self.csum_start,
            self.csum_offset,
        )
        if size == 12:
            return layout.pack(*fields, self.num_buffers)
        return layout.pack(*fields)

    @classmethod
    def decode(
        cls, data: bytes | bytearray | memoryview, size: int = 10, byteorder: ByteOrder = "native"
    ) -> "VirtioHeader":
        """The header that the first ``size`` (10 or 12) bytes of ``data`` hold.

        Raises VirtioHeaderError where ``data`` is shorter.
        """
        layout = _layout(size, byteorder)
        try:
            return cls(*layout.unpack_from(data))
        except (StructError, TypeError) as error:
            raise VirtioHeaderError(f"not a {size}-byte virtio_net_hdr: {error}") from None


_FIELD_BITS = (
    ("flags", 8),
    ("gso_type", 8),
    ("hdr_len", 16),
    ("gso_size", 16),
    ("csum_start", 16),
    ("csum_offset", 16),
    ("num_buffers", 16),
)


def _layout(size: int, byteorder: ByteOrder) -> Struct:
    order = sys.byteorder if byteorder == "native" else byteorder
    try:
        return _LAYOUT[order, size]
    except KeyError:
        raise VirtioHeaderError(
            f"size {size!r} and byte order {byteorder!r} name no virtio_net_hdr (10 or 12; "
            "'native', 'little' or 'big')"
        ) from None
