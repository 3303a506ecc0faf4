"""What is known of a packet that was delivered, apart from its bytes."""

from typing import NamedTuple

from netstack_gro.config import ChecksumState, IpIdMode, Link
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import GsoType, VirtioHeader

__all__ = ["Facts"]


class Facts(NamedTuple):
    """The attributes of `Packet`, kept when the packet is released or detached.

    network and header_length are offsets from the packet's start: of its IP header (0 where
    there is none) and of its payload (0 where that is unknown). ip_length is the length of the
    IP packet, without what may follow it.
    """

    length: int
    wire_length: int
    packets: int
    gso_type: GsoType
    gso_size: int
    gso_segs: int
    ip_id_mode: IpIdMode
    checksum: ChecksumState
    verdict: Verdict
    closed_by: CloseReason
    timestamps: tuple[int, ...]
    interface: int
    vlan: int | None
    vlan_tpid: int
    link: Link
    network: int
    ip_length: int
    header_length: int
    virtio: VirtioHeader
