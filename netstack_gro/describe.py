"""The facts of a packet in flight, from its slot, its head and one look at its headers.

Another thread may let go of the packet while these make objects: they are given what they read
from, and need the packet's bytes in their first step only.
"""

from netstack_gro import codes, gso, records
from netstack_gro.batch import Batch
from netstack_gro.config import ChecksumState, IpIdMode
from netstack_gro.delivery import Delivery
from netstack_gro.facts import Facts
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import NEEDS_CSUM, GsoType, VirtioHeader

NO_HEADER = VirtioHeader()


def merged(delivery: Delivery, batch: Batch, index: int) -> Facts:
    """The facts of a super-packet that begins at a slot of the batch."""
    slot = records.slot_at(batch._slots, index)
    head = records.head_at(delivery.heads, slot.head)
    kind = GsoType(gso.kind_of(head.version, head.protocol))
    return Facts(
        length=head.header_length + head.payload,
        wire_length=head.header_length + head.payload,
        packets=head.count,
        gso_type=kind,
        gso_size=head.gso_size,
        gso_segs=head.count,
        ip_id_mode=IpIdMode(head.id_mode),
        checksum=ChecksumState.PARTIAL if delivery.partial else ChecksumState.VERIFIED,
        verdict=Verdict(slot.verdict),
        closed_by=CloseReason(delivery.reason(index)),
        timestamps=_timestamps(batch, index),
        interface=slot.interface,
        vlan=slot.vlan & 0xFFFF if slot.vlan else None,
        vlan_tpid=slot.vlan >> 16,
        link=delivery.link,
        network=head.network,
        ip_length=head.header_length - head.network + head.payload,
        header_length=head.header_length,
        virtio=virtio_of(delivery, head),
    )


def virtio_of(delivery: Delivery, head: records.Head) -> VirtioHeader:
    """The virtio_net_hdr of a super-packet."""
    return VirtioHeader(
        NEEDS_CSUM if delivery.partial else 0,
        gso.kind_of(head.version, head.protocol),
        head.header_length,
        head.gso_size,
        head.transport,
        16 if head.protocol == codes.TCP else 6,
        link=delivery.link,
    )


def lone(delivery: Delivery, batch: Batch, index: int, completed: bool) -> Facts:
    """The facts of a packet that was passed through; ``completed``: its checksum was."""
    slot = records.slot_at(batch._slots, index)
    parsed = delivery.parsed
    reason = delivery.parse(index)
    fits = gso.fits(slot, parsed, reason)
    network = parsed.network
    transport = parsed.transport
    header_length = parsed.header_length
    payload = parsed.payload
    version = parsed.version
    protocol = parsed.protocol
    ip_length = parsed.length if parsed.length else slot.length - network
    state = delivery.state(index)
    closed = delivery.reason(index)
    kind = GsoType.NONE
    segments = 1
    mode = IpIdMode.NONE
    virtio = NO_HEADER
    if slot.flags & records.AGGREGATED:
        segments = 0
        if header_length:
            kind = GsoType(gso.kind_of(version, protocol))
    elif slot.flags & records.VNET and fits:
        kind = GsoType(gso.kind_of(version, protocol))
        segments = (payload + slot.gso_size - 1) // slot.gso_size
        mode = IpIdMode.INCREMENT if version == 4 else IpIdMode.NONE
    if state == codes.PARTIAL and not completed:
        if slot.flags & records.NEEDS_CSUM:
            start = slot.csum_start if fits else 0
            offset = slot.csum_offset
        else:
            start = transport if header_length else 0
            offset = 16 if protocol == codes.TCP else 6
        if start or kind:
            virtio = VirtioHeader(
                NEEDS_CSUM if start else 0,
                slot.gso_type if kind and segments else 0,
                header_length if kind and segments else 0,
                slot.gso_size if kind and segments else 0,
                start,
                offset if start else 0,
                link=delivery.link,
            )
    elif kind and segments:
        virtio = VirtioHeader(
            0,
            slot.gso_type,
            header_length,
            slot.gso_size,
            transport,
            16 if protocol == codes.TCP else 6,
            link=delivery.link,
        )
    if completed:
        state = codes.VERIFIED
    return Facts(
        length=slot.length,
        wire_length=slot.wire_length,
        packets=1,
        gso_type=kind,
        gso_size=slot.gso_size if kind and segments else 0,
        gso_segs=segments,
        ip_id_mode=mode,
        checksum=ChecksumState(state),
        verdict=Verdict(slot.verdict),
        closed_by=CloseReason(closed),
        timestamps=_timestamps(batch, index),
        interface=slot.interface,
        vlan=slot.vlan & 0xFFFF if slot.vlan else None,
        vlan_tpid=slot.vlan >> 16,
        link=delivery.link,
        network=network,
        ip_length=ip_length,
        header_length=header_length,
        virtio=virtio,
    )


def _timestamps(batch: Batch, index: int) -> tuple[int, ...]:
    """Arrival times of a packet's inputs; a slot's follower always stands behind it."""
    times = []
    while index >= 0:
        slot = records.slot_at(batch._slots, index)
        times.append(slot.timestamp_ns)
        index = slot.following
    return tuple(times)
