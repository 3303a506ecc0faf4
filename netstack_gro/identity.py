"""Which flow a packet belongs to, found without the engine: for checks of what it delivered.

Deliberately another and simpler way through the headers than `netstack_gro.headers` has, over
Python slices, so that a fault there is no fault here.
"""

from typing import NamedTuple

from netstack_gro.config import Link

__all__ = ["Identity", "identify"]

_ETHERTYPES = {b"\x08\x00": 4, b"\x86\xdd": 6}
_TAGS = (b"\x81\x00", b"\x88\xa8")  # IEEE 802.1Q and 802.1ad
_IPV6_FAMILIES = (24, 28, 30)  # AF_INET6 of the BSDs and Darwin
_SKIPPED = (0, 43, 60)  # hop-by-hop, routing, destination options: RFC 8200


class Identity(NamedTuple):
    """Where a packet belongs.

    hosts: the two addresses, from source to destination; empty where there is no IP header.
    flow: what sets one flow apart, ``hosts`` included; empty where the ports cannot be read,
        as in a fragment.
    network, transport: offsets of those headers; ``transport`` is 0 where ``flow`` is empty.
    """

    hosts: bytes
    flow: bytes
    network: int
    transport: int
    protocol: int


_NOWHERE = Identity(b"", b"", 0, 0, 0)


def identify(packet: bytes, link: Link) -> Identity:
    """The `Identity` of a packet that begins with the header of ``link``."""
    network, version, station = _link_header(packet, link)
    ip = packet[network:]
    if not version or not ip or ip[0] >> 4 != version:
        return _NOWHERE
    if version == 4:
        hosts = ip[12:20]
        header = (ip[0] & 15) * 4
        if len(hosts) < 8 or header < 20:
            return _NOWHERE
        protocol = ip[9]
        fragment = int.from_bytes(ip[6:8], "big") & 0x3FFF
    else:
        hosts = ip[8:40]
        if len(hosts) < 32:
            return _NOWHERE
        protocol, header, fragment = ip[6], 40, 0
        while protocol in _SKIPPED and header + 8 <= len(ip):
            protocol, header = ip[header], header + 8 * (ip[header + 1] + 1)
    ports = ip[header : header + 4]
    if fragment or protocol not in {6, 17} or len(ports) < 4:
        return Identity(hosts, b"", network, 0, protocol)
    flow = b"".join((station, bytes((version, protocol)), hosts, ports))
    return Identity(hosts, flow, network, network + header, protocol)


def _link_header(packet: bytes, link: Link) -> tuple[int, int, bytes]:
    """Offset of the IP header, IP version or 0, and what of the link header names the flow."""
    if link == "ethernet":
        at = 12
        station = packet[:12]
        while packet[at : at + 2] in _TAGS and at < 20:
            tag = int.from_bytes(packet[at + 2 : at + 4], "big") & 0x0FFF
            station += packet[at : at + 2] + tag.to_bytes(2, "big")
            at += 4
        return at + 2, _ETHERTYPES.get(packet[at : at + 2], 0), station
    if link == "sll":
        return 16, _ETHERTYPES.get(packet[14:16], 0), packet[:14]
    if link == "sll2":
        return 20, _ETHERTYPES.get(packet[:2], 0), packet[4:20]
    if link in {"null", "loop"}:
        family = int.from_bytes(packet[:4], "big")
        if family > 0xFFFF and link == "null":  # of a host of the other byte order
            family = int.from_bytes(packet[:4], "little")
        version = 4 if family == 2 else 6 if family in _IPV6_FAMILIES else 0
        return 4, version, b""
    version = packet[0] >> 4 if packet else 0
    if link == "ip":
        return 0, version if version in {4, 6} else 0, b""
    return 0, 4 if link == "ipv4" else 6, b""
