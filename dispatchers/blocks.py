"""Blocks of a TPACKET_V3 ring: which are ready, and the way from their frames to a batch.

A block is a struct tpacket_block_desc and, behind it, frames that each begin with a struct
tpacket3_hdr (include/uapi/linux/if_packet.h), in native byte order. The kernel wrote them; all
the same nothing is read or handed on that does not lie within the block.
"""

from netstack_gro import codes, records
from netstack_gro.batch import Batch
from netstack_gro.config import within
from netstack_gro.dispatchers import frames, native, ordered
from netstack_gro.errors import ConfigError

__all__ = ["BlockReader", "give_back", "is_ready"]

BLOCK_HEADER = 48  # struct tpacket_block_desc
BLOCK_STATUS = 8
NUM_PKTS = 12
OFFSET_TO_FIRST_PKT = 16
BLK_LEN = 20

FRAME_HEADER = 48  # struct tpacket3_hdr
NEXT_OFFSET = 0
SEC = 4
NSEC = 8
SNAPLEN = 12
LEN = 16
STATUS = 20
MAC = 24
NET = 26
VLAN_TCI = 32
VLAN_TPID = 36

STATUS_KERNEL = 0  # TP_STATUS_*
STATUS_USER = 1
CSUM_NOT_READY = 1 << 3
VLAN_VALID = 1 << 4
VLAN_TPID_VALID = 1 << 6
CSUM_VALID = 1 << 7
GSO_TCP = 1 << 8  # since 6.3

DOT1Q = 0x8100  # ETH_P_8021Q, include/uapi/linux/if_ether.h
SECOND_NS = 1_000_000_000
LONGEST = 1 << 30  # config.MAX_PACKET
VNET_SIZE = 10  # struct virtio_net_hdr


def is_ready(header: memoryview) -> bool:
    """Whether the kernel has handed over the block that begins with ``header``.

    Raises TypeError for what is no memoryview, ValueError for one that cannot be a header.
    """
    _check_header(header)
    base = records.view_base(header, header)
    return (ordered.load32(base, BLOCK_STATUS) & STATUS_USER) != 0


def give_back(header: memoryview) -> None:
    """Let the kernel use the block that begins with the writable ``header``.

    Raises TypeError for what is no memoryview, ValueError for one that cannot be a header.
    """
    _check_header(header)
    if header.readonly:
        raise ValueError("the header cannot be written to")
    base = records.view_base(header, header)
    ordered.store32(base, BLOCK_STATUS, STATUS_KERNEL)


def _check_header(header: memoryview) -> None:
    if type(header) is not memoryview:
        raise TypeError(f"a memoryview is required, not {type(header).__name__!r}")
    if header.nbytes < NUM_PKTS or not header.c_contiguous:
        raise ValueError("the view is no header of a block")


class BlockReader:
    """BlockReader(interface, mtu, vnet_size): takes the frames of a block, batch by batch.

    interface: the number to give every packet. mtu: what is longer is a super-packet, where no
    virtio_net_hdr says what it is. vnet_size: bytes of the virtio_net_hdr in front of each frame,
    10 or 0.
    """

    __slots__ = ("_at", "_damaged", "_end", "_interface", "_left", "_mtu", "_truncated", "_vnet")

    _at: int
    _damaged: int
    _end: int
    _interface: int
    _left: int
    _mtu: int
    _truncated: int
    _vnet: int

    def __init__(self, interface: int, mtu: int, vnet_size: int) -> None:
        self._left = 0  # nothing is open
        self._interface = within("interface", interface, 0, 0xFFFFFFFF)
        self._mtu = within("mtu", mtu, 0, 2**32 - 1)
        self._vnet = within("vnet_size", vnet_size, 0, VNET_SIZE)
        if vnet_size not in {0, VNET_SIZE}:
            raise ConfigError("vnet_size", f"{vnet_size!r} is neither 0 nor {VNET_SIZE}")
        self._at = 0
        self._damaged = 0
        self._end = 0
        self._truncated = 0

    @property
    def left(self) -> int:
        """Frames of the open block that were not taken yet."""
        return self._left

    @property
    def truncated(self) -> int:
        """Frames of which the block holds less than they had."""
        return self._truncated

    @property
    def damaged(self) -> int:
        """Frames that were given up because the block does not hold together."""
        return self._damaged

    def open(self, batch: Batch) -> bool:
        """Begin with the block that is the slab of an empty batch; whether it has any frames."""
        if type(batch) is not Batch:
            raise TypeError(f"a batch is required, not {type(batch).__name__!r}")
        if batch._size < BLOCK_HEADER:
            raise ValueError("the batch has no slab that may be a block")
        base = batch._base
        self._at = native.u32(base, OFFSET_TO_FIRST_PKT)
        self._end = min(native.u32(base, BLK_LEN), batch._size)
        self._left = native.u32(base, NUM_PKTS)
        return self._left > 0

    def fill(self, batch: Batch) -> int:
        """Put frames of the open block in the batch while both have some; how many it then has.

        Raises ValueError for a batch whose slab is smaller than that block.
        """
        if type(batch) is not Batch:
            raise TypeError(f"a batch is required, not {type(batch).__name__!r}")
        if self._left and batch._size < self._end:
            raise ValueError("the batch has another slab than the open block")
        base = batch._base
        while self._left and batch._count < batch._limit:
            at = self._at
            if at > self._end - FRAME_HEADER:
                return self._give_up(batch)
            start = at + native.u16(base, at + MAC)
            size = native.u32(base, at + SNAPLEN)
            if start < at + FRAME_HEADER + self._vnet or start + size > self._end:
                return self._give_up(batch)
            slot = batch._place(start, size)
            self._describe(slot, base, at)
            if self._vnet:
                frames.describe(slot, base, start - self._vnet)
            self._left -= 1
            self._at = at + native.u32(base, at + NEXT_OFFSET)
            if self._at < at + FRAME_HEADER and self._left:
                return self._give_up(batch)
        return batch._count

    def _describe(self, slot: records.Slot, base: native.Memory, at: int) -> int:
        """Give a slot what the tpacket3_hdr at ``at`` says of its frame."""
        status = native.u32(base, at + STATUS)
        length = native.u32(base, at + LEN)
        if length > slot.length:
            slot.wire_length = min(length, LONGEST)
            self._truncated += 1
        slot.timestamp_ns = native.u32(base, at + SEC) * SECOND_NS + native.u32(base, at + NSEC)
        slot.interface = self._interface
        if status & VLAN_VALID:
            kind = native.u16(base, at + VLAN_TPID) if status & VLAN_TPID_VALID else DOT1Q
            slot.vlan = kind << 16 | (native.u32(base, at + VLAN_TCI) & 0xFFFF)
        if status & CSUM_NOT_READY:
            slot.checksum = codes.PARTIAL
        elif status & CSUM_VALID:
            slot.checksum = codes.VERIFIED
        if not self._vnet:
            header = native.u16(base, at + NET) - native.u16(base, at + MAC)
            if length - header > self._mtu or status & GSO_TCP:
                slot.flags |= records.AGGREGATED
        return 0

    def _give_up(self, batch: Batch) -> int:
        """Leave the rest of the block, which cannot be found."""
        self._damaged += self._left
        self._left = 0
        return batch._count


records.seal(BlockReader, ("_at", "_damaged", "_end", "_left", "_truncated"), ())
