"""What comes in front of a frame: the virtio_net_hdr that a kernel or a peer put there.

The header is struct virtio_net_hdr of include/uapi/linux/virtio_net.h, of 10 or 12 bytes, in
native byte order as TUN and AF_PACKET use it. Its ``hdr_len`` is not looked at: kernels have
been known to write it wrong, and the engine finds the headers' length itself.
"""

from netstack_gro import codes, records, wire
from netstack_gro.dispatchers import native

GSO_TYPE = 0x7F  # gso_type without VIRTIO_NET_HDR_GSO_ECN
NEEDS_CSUM = 1  # VIRTIO_NET_HDR_F_NEEDS_CSUM
DATA_VALID = 2  # VIRTIO_NET_HDR_F_DATA_VALID


def describe(slot: records.Slot, base: native.Memory, at: int) -> None:
    """Give a slot what the virtio_net_hdr at ``at`` says of its packet."""
    flags = wire.u8(base, at)
    kind = wire.u8(base, at + 1)
    if kind & GSO_TYPE:
        slot.flags |= records.VNET
        slot.gso_type = kind
        slot.gso_size = native.u16(base, at + 4)
    if flags & NEEDS_CSUM:
        slot.flags |= records.NEEDS_CSUM
        slot.csum_start = native.u16(base, at + 6)
        slot.csum_offset = native.u16(base, at + 8)
        slot.checksum = codes.PARTIAL
    elif flags & DATA_VALID:
        slot.checksum = codes.VERIFIED
