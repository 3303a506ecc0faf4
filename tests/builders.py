"""Packets built from nothing but the standard library, one keyword for each header field.

Every builder returns bytes, with lengths and checksums right unless a keyword says otherwise.
Fields are host integers, addresses are text or packed bytes. `TrafficPacket` is a packet with the
metadata that goes into `Batch.append` beside it.
"""

import functools
import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

from netstack_gro.config import ChecksumState
from netstack_gro.virtio import VirtioHeader

Address = str | bytes

TCP, UDP = 6, 17
FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))
AE = 1 << 8  # RFC 9768; the NS bit before. Bits 9 to 11 are reserved.
DOT1Q, DOT1AD = 0x8100, 0x88A8  # IEEE 802.1Q customer and service tag
HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION = 0, 43, 44, 60  # RFC 8200 section 4
EXTENSIONS = (HOP_BY_HOP, ROUTING, DESTINATION)

V4_SOURCE, V4_DESTINATION = bytes((10, 1, 0, 1)), bytes((10, 1, 0, 2))
V6_SOURCE = bytes.fromhex("fd000000000000000000000000000001")
V6_DESTINATION = bytes.fromhex("fd000000000000000000000000000002")
MAC_SOURCE, MAC_DESTINATION = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")

_IP4 = Struct("!BBHHHBBH4s4s")
_IP6 = Struct("!IHBB16s16s")
_TCP = Struct("!HHIIHHHH")
_UDP = Struct("!HHHH")
_U16 = Struct("!H")


@dataclass(slots=True)
class TrafficPacket:
    """One input packet: its bytes and what `Batch.append` takes beside them.

    `label` names the faults in it, joined by "+", and plays no part in what is expected of it.
    """

    data: bytes
    wire_length: int | None = None
    timestamp_ns: int = 0
    interface: int = 0
    checksum: ChecksumState | None = None
    vlan: int | None = None
    vlan_tpid: int = DOT1Q
    virtio: VirtioHeader | None = None
    aggregated: bool = False
    label: str = ""

    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of `Batch.append`, `Batch.add` and `GroDispatcher.enqueue`."""
        return {
            "wire_length": self.wire_length,
            "timestamp_ns": self.timestamp_ns,
            "interface": self.interface,
            "checksum": self.checksum,
            "vlan": self.vlan,
            "vlan_tpid": self.vlan_tpid,
            "virtio": self.virtio,
            "aggregated": self.aggregated,
        }


def ones_sum(data: bytes | bytearray) -> int:
    """The ones'-complement sum of big-endian 16-bit words, 0 to 0xFFFE (0xFFFF reads as 0)."""
    value = int.from_bytes(data, "big")
    return (value << 8 if len(data) & 1 else value) % 0xFFFF


@functools.cache
def packed(address: str) -> bytes:
    """A textual IP address in network order."""
    return ipaddress.ip_address(address).packed


@functools.lru_cache(4096)
def _address_sum(source: bytes, destination: bytes) -> int:
    return ones_sum(source + destination)


def pseudo_sum(source: bytes, destination: bytes, protocol: int, length: int) -> int:
    """The pseudo-header sum (RFC 9293 section 3.1, RFC 8200 section 8.1), folded, not inverted."""
    return (_address_sum(source, destination) + protocol + length) % 0xFFFF or 0xFFFF


def ipv4(
    body: bytes,
    *,
    protocol: int,
    source: Address = V4_SOURCE,
    destination: Address = V4_DESTINATION,
    tos: int = 0,
    ttl: int = 64,
    ident: int = 0,
    df: bool = True,
    mf: bool = False,
    reserved_bit: bool = False,
    fragment_offset: int = 0,
    options: bytes = b"",
    total_length: int | None = None,
    ihl: int | None = None,
    version: int = 4,
    header_checksum: int | None = None,
) -> bytes:
    """An IPv4 packet around `body`; `options` are a multiple of four bytes, `fragment_offset`
    counts units of eight."""
    if isinstance(source, str):
        source = packed(source)
    if isinstance(destination, str):
        destination = packed(destination)
    first = version << 4 | (5 + len(options) // 4 if ihl is None else ihl)
    total = 20 + len(options) + len(body) if total_length is None else total_length
    flags = reserved_bit << 15 | df << 14 | mf << 13 | fragment_offset
    if header_checksum is None:
        addresses = _address_sum(source, destination)
        if options:
            addresses += ones_sum(options)
        word = ttl << 8 | protocol
        total_sum = (first << 8 | tos) + total + ident + flags + word + addresses
        header_checksum = 0xFFFF - (total_sum % 0xFFFF or 0xFFFF)
    header = _IP4.pack(
        first, tos, total, ident, flags, ttl, protocol, header_checksum, source, destination
    )
    return header + options + body


def ipv6(
    body: bytes,
    *,
    protocol: int,
    source: Address = V6_SOURCE,
    destination: Address = V6_DESTINATION,
    tos: int = 0,
    ttl: int = 64,
    flow_label: int = 0,
    extensions: Sequence[tuple[int, bytes]] = (),
    payload_length: int | None = None,
    version: int = 6,
) -> bytes:
    """An IPv6 packet around `body`.

    `extensions` are (header number, the whole header) in order; the first byte of each is replaced
    by the number of what follows. `tos` is the traffic class, `ttl` the hop limit.
    """
    if isinstance(source, str):
        source = packed(source)
    if isinstance(destination, str):
        destination = packed(destination)
    first = protocol
    for number, header in reversed(extensions):
        body = bytes((first,)) + header[1:] + body
        first = number
    length = len(body) if payload_length is None else payload_length
    word = version << 28 | tos << 20 | flow_label
    return _IP6.pack(word, length, first, ttl, source, destination) + body


def tcp(
    payload: bytes,
    source: bytes,
    destination: bytes,
    *,
    sport: int = 40000,
    dport: int = 80,
    seq: int = 1,
    ack: int = 1,
    flags: int = ACK,
    window: int = 512,
    urgent: int = 0,
    tcp_options: bytes = b"",
    data_offset: int | None = None,
    checksum: int | None = None,
    partial: bool = False,
) -> bytes:
    """A TCP segment between packed addresses; `flags` are twelve bits, `tcp_options` a multiple
    of four bytes. `partial` leaves the pseudo-header sum in the checksum field."""
    offset = 5 + len(tcp_options) // 4
    word = (offset if data_offset is None else data_offset) << 12 | flags
    length = 20 + len(tcp_options) + len(payload)
    if checksum is None:
        checksum = pseudo_sum(source, destination, TCP, length)
        if not partial:
            checksum += sport + dport + (seq >> 16) + (seq & 0xFFFF) + (ack >> 16) + (ack & 0xFFFF)
            checksum += word + window + urgent + ones_sum(payload)
            if tcp_options:
                checksum += ones_sum(tcp_options)
            checksum = 0xFFFF - (checksum % 0xFFFF or 0xFFFF)
    return _TCP.pack(sport, dport, seq, ack, word, window, checksum, urgent) + tcp_options + payload


def udp(
    payload: bytes,
    source: bytes,
    destination: bytes,
    *,
    sport: int = 40000,
    dport: int = 9000,
    udp_length: int | None = None,
    checksum: int | None = None,
    partial: bool = False,
) -> bytes:
    """A UDP datagram between packed addresses; a computed checksum of 0 is written as 0xFFFF."""
    length = 8 + len(payload)
    field = length if udp_length is None else udp_length
    if checksum is None:
        checksum = pseudo_sum(source, destination, UDP, length)
        if not partial:
            checksum = 0xFFFF - (checksum + sport + dport + field + ones_sum(payload)) % 0xFFFF
    return _UDP.pack(sport, dport, field, checksum) + payload


_UDP_FIELDS = frozenset(("sport", "dport", "udp_length", "checksum", "partial"))
_TCP_FIELDS = frozenset(
    ("sport", "dport", "seq", "ack", "flags", "window", "urgent", "tcp_options", "data_offset")
) | {"checksum", "partial"}


def _transport(
    build: Callable[..., bytes],
    wrap: Callable[..., bytes],
    names: frozenset[str],
    protocol: int,
    ends: tuple[bytes, bytes],
) -> Callable[..., bytes]:
    def builder(payload: bytes = b"", **fields: Any) -> bytes:
        source = fields.setdefault("source", ends[0])
        destination = fields.setdefault("destination", ends[1])
        if isinstance(source, str):
            source = fields["source"] = packed(source)
        if isinstance(destination, str):
            destination = fields["destination"] = packed(destination)
        fields.setdefault("protocol", protocol)
        inner = {name: fields.pop(name) for name in names & fields.keys()}
        return wrap(build(payload, source, destination, **inner), **fields)

    return builder


_V4_ENDS, _V6_ENDS = (V4_SOURCE, V4_DESTINATION), (V6_SOURCE, V6_DESTINATION)
tcp4 = _transport(tcp, ipv4, _TCP_FIELDS, TCP, _V4_ENDS)
"""A TCP segment in IPv4: ``tcp4(payload, **fields of tcp and ipv4)``."""
tcp6 = _transport(tcp, ipv6, _TCP_FIELDS, TCP, _V6_ENDS)
udp4 = _transport(udp, ipv4, _UDP_FIELDS, UDP, _V4_ENDS)
udp6 = _transport(udp, ipv6, _UDP_FIELDS, UDP, _V6_ENDS)

BUILDERS: dict[tuple[int, int], Callable[..., bytes]] = {
    (4, TCP): tcp4,
    (6, TCP): tcp6,
    (4, UDP): udp4,
    (6, UDP): udp6,
}


def _ether_type(packet: bytes) -> int:
    return 0x86DD if packet[:1] and packet[0] >> 4 == 6 else 0x0800


def ethernet(
    packet: bytes,
    *,
    destination: bytes = MAC_DESTINATION,
    source: bytes = MAC_SOURCE,
    tags: Sequence[tuple[int, int]] = (),
    ether_type: int | None = None,
) -> bytes:
    """An Ethernet frame without FCS; `tags` are (TPID, TCI), the outer one first."""
    middle = b"".join(_U16.pack(tpid) + _U16.pack(tci) for tpid, tci in tags)
    kind = _ether_type(packet) if ether_type is None else ether_type
    return destination + source + middle + _U16.pack(kind) + packet


def sll(
    packet: bytes,
    *,
    packet_type: int = 0,
    arphrd: int = 1,
    address: bytes = MAC_SOURCE,
    ether_type: int | None = None,
) -> bytes:
    """Linux cooked capture, version 1 (LINKTYPE_LINUX_SLL, 16 bytes)."""
    kind = _ether_type(packet) if ether_type is None else ether_type
    start = _U16.pack(packet_type) + _U16.pack(arphrd) + _U16.pack(len(address))
    return start + address.ljust(8, b"\0") + _U16.pack(kind) + packet


def sll2(
    packet: bytes,
    *,
    ifindex: int = 2,
    packet_type: int = 0,
    arphrd: int = 1,
    address: bytes = MAC_SOURCE,
    reserved: int = 0,
    ether_type: int | None = None,
) -> bytes:
    """Linux cooked capture, version 2 (LINKTYPE_LINUX_SLL2, 20 bytes)."""
    kind = _ether_type(packet) if ether_type is None else ether_type
    start = _U16.pack(kind) + _U16.pack(reserved) + ifindex.to_bytes(4, "big")
    end = _U16.pack(arphrd) + bytes((packet_type, len(address))) + address.ljust(8, b"\0")
    return start + end + packet


def null(packet: bytes, *, family: int | None = None, big: bool = False) -> bytes:
    """BSD loopback (LINKTYPE_NULL): the address family in either byte order."""
    if family is None:
        family = 30 if _ether_type(packet) == 0x86DD else 2
    return family.to_bytes(4, "big" if big else "little") + packet


def loop(packet: bytes, *, family: int | None = None) -> bytes:
    """OpenBSD loopback (LINKTYPE_LOOP): the address family in network order."""
    return null(packet, family=24 if family is None and packet[0] >> 4 == 6 else family, big=True)


def bare(packet: bytes) -> bytes:
    """No link header (LINKTYPE_RAW, LINKTYPE_IPV4, LINKTYPE_IPV6)."""
    return packet


FRAMES: dict[str, Callable[..., bytes]] = {
    "ip": bare,
    "ipv4": bare,
    "ipv6": bare,
    "ethernet": ethernet,
    "null": null,
    "loop": loop,
    "sll": sll,
    "sll2": sll2,
}
LINKS = tuple(FRAMES)


def ip_offset(packet: bytes, link: str) -> int:
    """Where the IP header of a well-formed packet starts."""
    if link != "ethernet":
        return {"null": 4, "loop": 4, "sll": 16, "sll2": 20}.get(link, 0)
    offset = 12
    while _U16.unpack_from(packet, offset)[0] in (DOT1Q, DOT1AD):
        offset += 4
    return offset + 2


def fix_checksums(packet: bytes, link: str = "ip") -> bytes:
    """`packet` with its IPv4 header and TCP or UDP checksum computed anew from its other bytes.

    Lengths are taken from the headers; what is not within the packet is left as it is.
    """
    data = bytearray(packet)
    start = ip_offset(packet, link)
    if data[start] >> 4 == 4:
        transport = start + (data[start] & 15) * 4
        end = start + int.from_bytes(data[start + 2 : start + 4], "big")
        data[start + 10 : start + 12] = b"\0\0"
        header = ones_sum(data[start:transport]) or 0xFFFF
        _U16.pack_into(data, start + 10, 0xFFFF - header)
        protocol, addresses = data[start + 9], bytes(data[start + 12 : start + 20])
    else:
        transport, protocol = start + 40, data[start + 6]
        end = transport + int.from_bytes(data[start + 4 : start + 6], "big")
        addresses = bytes(data[start + 8 : start + 40])
        while protocol in EXTENSIONS and transport + 8 <= len(data):
            protocol, transport = data[transport], transport + 8 * (data[transport + 1] + 1)
    field = transport + {TCP: 16, UDP: 6}.get(protocol, 0)
    if field == transport or field + 2 > min(end, len(data)):
        return bytes(data)
    data[field : field + 2] = b"\0\0"
    pseudo = ones_sum(addresses) + protocol + (end - transport)
    value = 0xFFFF - ((pseudo + ones_sum(data[transport:end])) % 0xFFFF or 0xFFFF)
    _U16.pack_into(data, field, value or (0xFFFF if protocol == UDP else 0))
    return bytes(data)
