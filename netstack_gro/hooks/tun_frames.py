"""Frames for a TUN: where their IP header is, what their checksum starts from, and a probe."""

from netstack_gro.config import Link
from netstack_gro.virtio import NATIVE, NEEDS_CSUM, GsoType, VirtioHeader

__all__ = ["BARE", "ip_start", "probe", "pseudo_sum"]

BARE = frozenset({"ip", "ipv4", "ipv6"})
"""Link layers without a link header."""

_FAMILIES = frozenset({"null", "loop"})
_ETHER_TYPE: dict[Link, tuple[int, int]] = {"ethernet": (12, 14), "sll": (14, 16), "sll2": (0, 20)}
"""Where a link header has its EtherType, and where it ends."""
_TAGS = frozenset({b"\x81\x00", b"\x88\xa8"})  # IEEE 802.1Q, 802.1ad
_IPV4, _IPV6 = b"\x08\x00", b"\x86\xdd"

_SIZE = 64
_PAYLOAD = bytes(2 * _SIZE + 16)
_DISCARD = (9).to_bytes(2, "big")  # a port, RFC 863


def ip_start(data: bytes | bytearray, link: Link) -> int:
    """Where the IP header of a packet starts; -1 where its link header announces another one."""
    if link in BARE:
        return 0
    if link in _FAMILIES:
        return 4
    at, end = _ETHER_TYPE[link]
    kind = bytes(data[at : at + 2])
    while kind in _TAGS:
        kind = bytes(data[end + 2 : end + 4])
        end += 4
    return end if kind in {_IPV4, _IPV6} else -1


def pseudo_sum(data: bytes | bytearray, at: int, header: VirtioHeader) -> int:
    """The pseudo-header sum (RFC 9293 section 3.1, RFC 8200 section 8.1), folded, not inverted.

    at: where the IP header of the super-packet starts that ``header`` describes.
    """
    addresses = data[at + 12 : at + 20] if data[at] >> 4 == 4 else data[at + 8 : at + 40]
    protocol = 6 if header.csum_offset == 16 else 17
    covered = int.from_bytes(addresses, "big") + protocol + len(data) - header.csum_start
    return covered % 0xFFFF or 0xFFFF


def probe(kind: GsoType, version: int, link: Link) -> tuple[bytes, bytes]:
    """A super-packet that every kernel should take and none does anything with: header and frame.

    kind: TCPV4, TCPV6 or UDP_L4. version: of IP. link: ``ip`` or ``ethernet``.

    Two segments and a shorter one, as the kernels' known fault is to refuse that. TTL and hop
    limit are 0. The source is the unspecified IPv4 address, which Linux drops as a martian without
    an answer (net/ipv4/route.c), or ::1, which may not come from outside (RFC 4291 section 2.5.3).
    In Ethernet it is addressed to a group that bridges do not forward (IEEE 802.1Q table 8-1).
    """
    udp = kind is GsoType.UDP_L4
    protocol, length, field = (17, 8, 6) if udp else (6, 20, 16)
    total = length + len(_PAYLOAD)
    if version == 4:
        addresses = bytes((0, 0, 0, 0, 192, 0, 2, 1))  # to TEST-NET-1, RFC 5737
        head = b"\x45\0" + (20 + total).to_bytes(2, "big") + bytes(5) + bytes((protocol,))
        check = 0xFFFF - int.from_bytes(head + addresses, "big") % 0xFFFF
        network = head + check.to_bytes(2, "big") + addresses
    else:
        addresses = (bytes(15) + b"\1") * 2
        network = b"\x60\0\0\0" + total.to_bytes(2, "big") + bytes((protocol, 0)) + addresses
    partial = ((int.from_bytes(addresses, "big") + protocol + total) % 0xFFFF).to_bytes(2, "big")
    if udp:
        transport = _DISCARD * 2 + total.to_bytes(2, "big") + partial
    else:  # an ACK
        transport = _DISCARD * 2 + bytes(8) + b"\x50\x10\0\0" + partial + bytes(2)
    ethernet = b""
    if link == "ethernet":
        ethernet = b"\x01\x80\xc2\0\0\x0e" + b"\x02\0\0\0\0\0" + (_IPV4 if version == 4 else _IPV6)
    start = len(ethernet) + len(network)
    described = NATIVE.pack(NEEDS_CSUM, kind, start + length, _SIZE, start, field)
    return described, ethernet + network + transport + _PAYLOAD
