"""What can be wrong or different around a packet's headers: link, metadata, the whole packet."""

import contextlib
import struct
from collections.abc import Callable

from netstack_gro.config import ChecksumState
from netstack_gro.virtio import DATA_VALID, GSO_ECN, NEEDS_CSUM, VirtioHeader
from tests import builders as b
from tests.builders import DOT1AD, DOT1Q, TCP
from tests.drafts import BLOB, Change, Draft, enter, fault
from tests.faults import break_checksum, checksum_field

# --- links ---------------------------------------------------------------------------------------


def _tags(draft: Draft) -> list[tuple[int, int]]:
    return list(draft.frame.get("tags", ())) or [(DOT1Q, 5)]


def _retag(tpid: int, tci: Callable[[int], int]) -> Change:
    """Another value in one tag, the inner or the outer one."""

    def change(draft: Draft, a: int) -> None:
        tags = _tags(draft)
        at = (a >> 1) % len(tags)
        tags[at] = tags[at][0] ^ tpid, tags[at][1] ^ tci(a)
        draft.reframe(a, tags=tuple(tags))

    return change


enter("vlan_id", "ethernet", _retag(0, lambda a: 1 << a % 12))
enter("vlan_priority", "ethernet", _retag(0, lambda a: 0x2000 << a % 3))
enter("vlan_dei", "ethernet", _retag(0, lambda a: 0x1000))
enter("vlan_tpid", "ethernet", _retag(DOT1Q ^ DOT1AD, lambda a: 0))


@fault("ethernet")
def vlan_add(draft: Draft, a: int) -> None:
    draft.reframe(a, tags=((DOT1AD, 7), *_tags(draft))[: 1 + a % 2])


@fault("ethernet")
def vlan_three(draft: Draft, a: int) -> None:
    draft.reframe(0, tags=((DOT1AD, 1), (DOT1Q, 2), (DOT1Q, 3), (DOT1Q, 4))[: 3 + a % 2])


def _other_mac(a: int) -> bytes:
    mac = bytearray(b.MAC_SOURCE)
    mac[a % 6] ^= 0x80
    return bytes(mac)


enter("mac_source", "ethernet", lambda d, a: d.reframe(a, source=_other_mac(a)))
enter("mac_destination", "ethernet", lambda d, a: d.reframe(a, destination=_other_mac(a)))
enter("sll_address", "cooked", lambda d, a: d.reframe(a, address=_other_mac(a)))
enter("sll_packet_type", "cooked", lambda d, a: d.reframe(a, packet_type=1 + a % 4))
enter("sll_hardware", "cooked", lambda d, a: d.reframe(a, arphrd=(772, 65534)[a // 2 % 2]))
enter("sll_interface", "sll2", lambda d, a: d.reframe(a, ifindex=3 + a))
enter("sll_reserved", "sll2", lambda d, a: d.reframe(a, reserved=1 << a % 16))
enter("null_order", "null", lambda d, a: d.reframe(a, big=not d.frame.get("big", False)))
enter("bsd_family", "null v6", lambda d, a: d.reframe(a, family=(24, 28, 30)[a % 3]))
enter("loop_family", "loop v6", lambda d, a: d.reframe(a, family=(24, 28, 30)[a % 3]))
enter("null_unknown", "null", lambda d, a: d.reframe(0, family=(0, 7, 23, 0x01020304)[a % 4]))
enter("loop_unknown", "loop", lambda d, a: d.reframe(0, family=(7, 0x02000000)[a % 2]))
enter("arp", "typed", lambda d, a: d.reframe(0, ether_type=0x0806))
enter(
    "ether_type", "typed", lambda d, a: d.reframe(0, ether_type=(0x88CC, 0x8847, 46, 0x8864)[a % 4])
)
enter(
    "ether_type_other_ip",
    "typed",
    lambda d, a: d.reframe(0, ether_type=0x86DD if d.family == 4 else 0x0800),
)


@fault("linked")
def link_truncated(draft: Draft, a: int) -> None:
    tags = len(draft.frame.get("tags", ()))
    header = {"null": 4, "loop": 4, "sll": 16, "sll2": 20}.get(draft.link, 14 + 4 * tags)
    draft.after.append(lambda data: data[: a % header])


# --- what is beside the packet -------------------------------------------------------------------

enter("interface", "", lambda d, a: d.describe(a, interface=1 + a % 3))
enter("meta_vlan", "", lambda d, a: d.describe(a, vlan=(d.meta.get("vlan") or 0) ^ 1 << a % 12))
enter(
    "meta_vlan_priority",
    "",
    lambda d, a: d.describe(a, vlan=(d.meta.get("vlan") or 0) ^ 0x1000 << a % 4),
)
enter("meta_vlan_none", "", lambda d, a: d.describe(a, vlan=None if d.meta.get("vlan") else 0))
enter("meta_vlan_tpid", "", lambda d, a: d.describe(a, vlan=9, vlan_tpid=DOT1AD))
enter("aggregated", "", lambda d, a: d.tell(aggregated=True))


def _state(draft: Draft, a: int, state: ChecksumState | None, flags: int = 0) -> None:
    """Another checksum state, with the field that goes with it; from now on where `a` is odd."""
    draft.change("partial", state is ChecksumState.PARTIAL, a)
    draft.describe(a, checksum=state, virtio=VirtioHeader(flags=flags) if flags else None)


enter("unknown", "", lambda d, a: _state(d, a, ChecksumState.UNKNOWN))
enter("verified", "", lambda d, a: _state(d, a, ChecksumState.VERIFIED))
enter("partial", "", lambda d, a: _state(d, a, ChecksumState.PARTIAL))
enter("data_valid", "", lambda d, a: _state(d, a, None, DATA_VALID))


@fault()
def verified_bad(draft: Draft, a: int) -> None:
    draft.tell(checksum=ChecksumState.VERIFIED)
    break_checksum(draft, a)


@fault()
def partial_bad(draft: Draft, a: int) -> None:
    """A complete checksum that is said to be partial, or a pseudo-header sum that is off by one."""
    draft.describe(0, checksum=ChecksumState.PARTIAL)
    if a & 1:
        draft.fields["partial"] = True
        draft.fields["checksum"] = checksum_field(draft) ^ 1


def vnet(
    draft: Draft,
    *,
    gso: int = 0,
    size: int = 0,
    flags: int = NEEDS_CSUM,
    start: int = 0,
    offset: int = 0,
) -> None:
    """Give the packet a virtio_net_hdr; `start` and `offset` are added to the right values."""
    draft.fields["partial"] = bool(flags & NEEDS_CSUM)
    draft.tell(checksum=None)

    def describe(data: bytes) -> bytes:
        transport = len(data) - len(draft.payload) - draft.transport_header
        csum_offset = 16 if draft.protocol == TCP else 6
        header = VirtioHeader(
            flags=flags,
            gso_type=gso,
            hdr_len=(transport + draft.transport_header) & 0xFFFF,
            gso_size=size,
            csum_start=(transport + start) & 0xFFFF if flags & NEEDS_CSUM else 0,
            csum_offset=(csum_offset + offset) & 0xFFFF if flags & NEEDS_CSUM else 0,
        )
        draft.tell(virtio=header)
        return data

    draft.after.append(describe)


def gso_type(draft: Draft) -> int:
    """The GSO type that fits."""
    return (1 if draft.family == 4 else 4) if draft.protocol == TCP else 5


def _super(
    draft: Draft,
    a: int,
    gso: int,
    *,
    size: int | None = None,
    start: int = 0,
    offset: int = 0,
    flags: int = NEEDS_CSUM,
) -> None:
    each = len(draft.payload)
    draft.resize(min(each * (2 + a % 3) + a % 2, 60000))
    gso_size = each if size is None else size
    vnet(draft, gso=gso, size=gso_size, flags=flags, start=start, offset=offset)


enter("vnet_super", "", lambda d, a: _super(d, a, gso_type(d)))
enter("vnet_super_ecn", "tcp", lambda d, a: _super(d, a, gso_type(d) | GSO_ECN))
enter("vnet_super_complete", "", lambda d, a: _super(d, a, gso_type(d), flags=a % 2 * DATA_VALID))


@fault()
def vnet_wrong_type(draft: Draft, a: int) -> None:
    others = [gso for gso in (1, 2, 3, 4, 5, 6) if gso != gso_type(draft)]
    _super(draft, a, others[a % 5])


@fault()
def vnet_overridden(draft: Draft, a: int) -> None:
    """A header that says partial beside a keyword that says otherwise."""
    vnet(draft)
    draft.fields["partial"] = False
    draft.tell(checksum=(ChecksumState.UNKNOWN, ChecksumState.VERIFIED)[a % 2])


enter("vnet_ufo", "", lambda d, a: _super(d, a, 3))
enter("vnet_tunnel", "", lambda d, a: _super(d, a, gso_type(d) | (0x20, 0x40, 0x60)[a % 3]))
enter("vnet_no_size", "", lambda d, a: _super(d, a, gso_type(d), size=(0, 65535)[a // 2 % 2]))
enter("vnet_start", "", lambda d, a: _super(d, a, gso_type(d), start=(-1, 1, 40, 30000)[a % 4]))
enter("vnet_offset", "", lambda d, a: _super(d, a, gso_type(d), offset=(-2, 2, 10, 1)[a % 4]))
enter("vnet_partial", "", lambda d, a: vnet(d))
enter("vnet_partial_start", "", lambda d, a: vnet(d, start=(-1, 1, 40, 30000)[a % 4]))
enter("vnet_partial_offset", "", lambda d, a: vnet(d, offset=(-2, 2, 10, 1)[a % 4]))
enter("vnet_none", "", lambda d, a: d.tell(virtio=VirtioHeader(gso_type=a % 2 * GSO_ECN)))


# --- whole packets -------------------------------------------------------------------------------


def _bytes(change: Callable[[Draft, bytes, int], bytes]) -> Change:
    def wrapped(draft: Draft, a: int) -> None:
        draft.after.append(lambda data: change(draft, data, a))

    return wrapped


def _cut(draft: Draft, data: bytes, a: int) -> bytes:
    length = max(len(data), 1)
    return data[: a % length] if a & 1 else data[: (a >> 1) % min(length, 120)]


def _snap(draft: Draft, data: bytes, a: int) -> bytes:
    draft.tell(wire_length=len(data))
    return _cut(draft, data, a)


def _longer_wire(draft: Draft, data: bytes, a: int) -> bytes:
    draft.tell(wire_length=max(len(data) + (1 + a % 1000, -1)[a % 5 == 4], 0))
    return data


def _flip(draft: Draft, data: bytes, a: int) -> bytes:
    flipped = bytearray(data or b"\0")
    flipped[(a >> 3) % len(flipped)] ^= 1 << (a & 7)
    return bytes(flipped)


def _flip_fixed(draft: Draft, data: bytes, a: int) -> bytes:
    flipped = _flip(draft, data[:80], a) + data[80:]
    with contextlib.suppress(IndexError, struct.error):
        return b.fix_checksums(flipped, draft.link)
    return flipped


enter("padding", "", _bytes(lambda d, data, a: data + bytes((a >> 8 & 1,)) * (1 + a % 46)))
enter("fcs", "", _bytes(lambda d, data, a: data + BLOB[a & 0xFF :][:4]))
enter("truncated", "", _bytes(_cut))
enter("snapped", "", _bytes(_snap))
enter("wire_length", "", _bytes(_longer_wire))
enter("flip", "", _bytes(_flip))
enter("flip_fixed", "", _bytes(_flip_fixed))
enter("random_bytes", "", _bytes(lambda d, data, a: BLOB[a : a + (a >> 3) % 200]))
enter("random_body", "", _bytes(lambda d, data, a: data[: a % 64] + BLOB[a : a + a % 100]))
enter("empty", "", _bytes(lambda d, data, a: b""))
