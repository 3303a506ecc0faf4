"""One frame taken apart: just enough to count what a capture holds.

Written apart from the engine on purpose. What replay reports is held against numbers that were
found with this module at recording time and with dpkt in the tests.
"""

import struct
from typing import NamedTuple

__all__ = ["ECN_CE", "Layers", "dissect"]

ECN_CE = 3  # RFC 3168, section 5

# https://www.tcpdump.org/linktypes.html: where the network layer begins, and its EtherType
LINKTYPE_ETHERNET = 1
LINKTYPE_RAW = 101
LINKTYPE_LINUX_SLL2 = 276
SLL2_LENGTH = 20

TAGS = (0x8100, 0x88A8)
ETHERTYPES = {0x0800: "ipv4", 0x86DD: "ipv6", 0x0806: "arp"}
PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6"}
EXTENSION_HEADERS = (0, 43, 60)  # hop-by-hop, routing, destination options
IPV6_FRAGMENT = 44
TCP_TIMESTAMPS = 8  # RFC 7323


class Layers(NamedTuple):
    tags: tuple[int, ...] = ()
    """TPIDs, the outer one first."""
    network: int = 0
    """Offset of the network header."""
    version: int = 0
    protocol: str = "other"
    """arp, icmp, icmpv6, tcp, udp, fragment or other."""
    ip_length: int = 0
    ecn: int = 0
    ip_options: bool = False
    flow: tuple[bytes, int, int] = (b"", 0, 0)
    """Addresses, source and destination port."""
    flags: int = 0
    """TCP: the twelve bits after the data offset."""
    sequence: int = 0
    payload_length: int = 0
    timestamps: bool = False
    checksum: str = "none"
    """none, complete, partial or bad."""


def dissect(link_type: int, frame: bytes) -> Layers:
    """Raises `ValueError` for a link type that the recorder does not write."""
    tags: list[int] = []
    if link_type == LINKTYPE_ETHERNET:
        network = 14
        ethertype = _u16(frame, 12)
        while ethertype in TAGS:
            tags.append(ethertype)
            ethertype = _u16(frame, network + 2)
            network += 4
        kind = ETHERTYPES.get(ethertype, "other")
    elif link_type == LINKTYPE_RAW:
        network = 0
        kind = {4: "ipv4", 6: "ipv6"}.get(frame[0] >> 4, "other")
    elif link_type == LINKTYPE_LINUX_SLL2:
        network = SLL2_LENGTH
        kind = ETHERTYPES.get(_u16(frame, 0), "other")
    else:
        raise ValueError(f"link type {link_type}")

    if kind == "ipv4":
        layers = _ipv4(frame, network)
    elif kind == "ipv6":
        layers = _ipv6(frame, network)
    else:
        layers = Layers(protocol=kind)
    return layers._replace(tags=tuple(tags), network=network)


def _ipv4(frame: bytes, at: int) -> Layers:
    header = (frame[at] & 15) * 4
    total = _u16(frame, at + 2)
    layers = Layers(version=4, ip_length=total, ecn=frame[at + 1] & 3, ip_options=header > 20)
    if _sum(frame[at : at + header]) != 0xFFFF:
        return layers._replace(checksum="bad")
    if _u16(frame, at + 6) & 0x3FFF:
        return layers._replace(protocol="fragment")
    addresses = frame[at + 12 : at + 20]
    segment = frame[at + header : at + total]
    return _transport(layers, addresses, frame[at + 9], segment)


def _ipv6(frame: bytes, at: int) -> Layers:
    length = _u16(frame, at + 4)
    layers = Layers(version=6, ip_length=40 + length, ecn=frame[at + 1] >> 4 & 3)
    addresses = frame[at + 8 : at + 40]
    protocol = frame[at + 6]
    end = at + 40 + length
    at += 40
    while protocol in EXTENSION_HEADERS:
        protocol, at = frame[at], at + 8 + 8 * frame[at + 1]
    if protocol == IPV6_FRAGMENT:
        return layers._replace(protocol="fragment")
    return _transport(layers, addresses, protocol, frame[at:end])


def _transport(layers: Layers, addresses: bytes, number: int, segment: bytes) -> Layers:
    name = PROTOCOLS.get(number, "other")
    layers = layers._replace(protocol=name)
    if name not in ("tcp", "udp"):
        return layers
    source, destination = struct.unpack_from("!HH", segment)
    layers = layers._replace(flow=(addresses, source, destination))
    pseudo = _sum(addresses + struct.pack("!II", len(segment), number))
    if name == "udp":
        return layers._replace(
            payload_length=len(segment) - 8, checksum=_checksum(pseudo, segment, 6)
        )
    offset = (segment[12] >> 4) * 4
    return layers._replace(
        flags=_u16(segment, 12) & 0xFFF,
        sequence=int.from_bytes(segment[4:8], "big"),
        payload_length=len(segment) - offset,
        timestamps=_has_timestamps(segment[20:offset]),
        checksum=_checksum(pseudo, segment, 16),
    )


def _checksum(pseudo: int, segment: bytes, field: int) -> str:
    """A checksum left to the device is the pseudo-header's sum, not complemented."""
    found = _u16(segment, field)
    if not found and field == 6:
        return "none"
    if _sum(struct.pack("!H", pseudo) + segment) == 0xFFFF:
        return "complete"
    return "partial" if found == pseudo else "bad"


def _has_timestamps(options: bytes) -> bool:
    at = 0
    while at < len(options) and options[at]:
        if options[at] == TCP_TIMESTAMPS:
            return True
        at += 1 if options[at] == 1 else max(options[at + 1], 2)
    return False


def _u16(data: bytes, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 2], "big")


def _sum(data: bytes) -> int:
    """The ones'-complement sum of RFC 1071, not complemented; 0xFFFF rather than 0."""
    if len(data) % 2:
        data += b"\0"
    return int.from_bytes(data, "big") % 0xFFFF or 0xFFFF
