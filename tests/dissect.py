"""What a packet is, read slowly and in the order of the text: a witness for the engine's parser.

`parse` notes every `Verdict` that applies to the bytes, so that the packet's verdict is simply the
smallest; nothing is optimised, and nothing is shared with the engine but the names of verdicts.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from struct import unpack, unpack_from

from netstack_gro.verdicts import Verdict

TCP, UDP = 6, 17
FIN, SYN, RST, PSH, URG, CWR = 0x01, 0x02, 0x04, 0x08, 0x20, 0x80
VLAN_TAGS = (0x8100, 0x88A8)
BSD_FAMILIES = {2: 4, 24: 6, 28: 6, 30: 6}  # https://www.tcpdump.org/linktypes.html, LINKTYPE_NULL
HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION = 0, 43, 44, 60
# ESP, AH, mobility, HIP, shim6 and the two for experiments: IANA "IPv6 Extension Header Types"
OPAQUE_EXTENSIONS = (50, 51, 135, 139, 140, 253, 254)
MAX_EXTENSIONS = 8
MAX_HEADERS = 256


def checksum16(data: bytes) -> int:
    """The folded ones'-complement sum of `data` (RFC 1071), not inverted; 0 only for zeros."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@dataclass(slots=True)
class Parsed:
    """One packet: what is wrong with it, whose it is, and the fields that merging compares."""

    data: bytes
    problems: set[Verdict] = field(default_factory=set)
    barrier: bool = False  # it may be of any flow
    addressed: bool = False  # its ports could be read
    link_header: bytes = b""
    link_key: Hashable = None
    tags: tuple[tuple[int, int], ...] = ()
    ip_offset: int = 0
    version: int = 0
    ip_length: int = 0  # as the IP header says: total length, or 40 + payload length
    addresses: bytes = b""
    protocol: int = 0
    ports: tuple[int, int] = (0, 0)
    tos: int = 0
    ttl: int = 0
    df: bool = False
    ident: int = 0
    flow_label: int = 0
    extensions: bytes = b""
    transport_offset: int = 0
    end: int = 0  # of the IP packet, from the packet's start
    seq: int = 0
    ack: int = 0
    flags: int = 0  # twelve bits
    window: int = 0
    urgent: int = 0
    options: bytes = b""
    checksum: int = 0
    payload_offset: int = 0

    @property
    def verdict(self) -> Verdict | None:
        """Why the bytes alone do not merge, or None."""
        return min(self.problems, default=None)

    @property
    def payload(self) -> bytes:
        """The transport payload of a packet without problems."""
        return self.data[self.payload_offset : self.end]

    @property
    def checksum_offset(self) -> int:
        """Where the checksum lies within the transport header."""
        return 16 if self.protocol == TCP else 6

    def pseudo_sum(self) -> int:
        """The sum that a partial checksum field holds."""
        length = self.end - self.transport_offset
        pseudo = self.addresses + length.to_bytes(4, "big") + self.protocol.to_bytes(4, "big")
        return checksum16(pseudo)

    def canonical_checksum(self) -> int:
        """The checksum that a sender who computes it writes."""
        segment = bytearray(self.data[self.transport_offset : self.end])
        segment[self.checksum_offset : self.checksum_offset + 2] = b"\0\0"
        length, kind = len(segment).to_bytes(4, "big"), self.protocol.to_bytes(4, "big")
        value = 0xFFFF - checksum16(self.addresses + length + kind + bytes(segment))
        return 0xFFFF if value == 0 and self.protocol == UDP else value


def flow_key(packet: Parsed, interface: int = 0, vlan: int | None = None) -> Hashable:
    """What two packets of one flow have in common."""
    return (
        interface,
        packet.link_key,
        tuple((tpid, tci & 0xFFF) for tpid, tci in packet.tags),
        None if vlan is None else vlan & 0xFFF,
        packet.version,
        packet.addresses,
        packet.protocol,
        packet.ports,
    )


def parse(data: bytes, link: str = "ip") -> Parsed:
    """Read one packet as far as it can be read."""
    packet = Parsed(data)
    announced = _link_header(packet, link)
    if announced is None:
        return packet
    packet.link_header = data[: packet.ip_offset]
    ip = data[packet.ip_offset :]
    if not ip:
        _barrier(packet, Verdict.IP_TRUNCATED)
        return packet
    packet.version = ip[0] >> 4
    if packet.version not in announced:
        _barrier(packet, Verdict.IP_VERSION)
    elif packet.version == 4:
        _ipv4(packet, ip)
    else:
        _ipv6(packet, ip)
    return packet


def _barrier(packet: Parsed, problem: Verdict) -> None:
    packet.problems.add(problem)
    packet.barrier = True


def _link_header(packet: Parsed, link: str) -> tuple[int, ...] | None:
    """The IP versions that the link header allows, or None where that is the end of it."""
    data = packet.data
    if link in ("ip", "ipv4", "ipv6"):
        return {"ip": (4, 6), "ipv4": (4,), "ipv6": (6,)}[link]
    packet.ip_offset = {"ethernet": 14, "null": 4, "loop": 4, "sll": 16, "sll2": 20}[link]
    if len(data) < packet.ip_offset:
        _barrier(packet, Verdict.LINK_TRUNCATED)
        return None
    if link in ("null", "loop"):
        families = {int.from_bytes(data[:4], "big")}
        if link == "null":
            families.add(int.from_bytes(data[:4], "little"))
        versions = tuple(BSD_FAMILIES[family] for family in families if family in BSD_FAMILIES)
        if not versions:
            packet.problems.add(Verdict.NOT_IP)
        return versions or None
    if link == "sll":
        packet.link_key, kind = data[:14], unpack_from("!H", data, 14)[0]
    elif link == "sll2":
        packet.link_key, kind = data[4:20], unpack_from("!H", data, 0)[0]
    else:
        packet.link_key, kind = data[:12], unpack_from("!H", data, 12)[0]
        while kind in VLAN_TAGS:
            if len(packet.tags) == 2:
                _barrier(packet, Verdict.VLAN_DEPTH)
                return None
            if len(data) < packet.ip_offset + 4:
                _barrier(packet, Verdict.LINK_TRUNCATED)
                return None
            tci, inner = unpack_from("!HH", data, packet.ip_offset)
            packet.tags += ((kind, tci),)
            packet.ip_offset += 4
            kind = inner
    if kind not in (0x0800, 0x86DD):
        packet.problems.add(Verdict.NOT_IP)
        return None
    return (4,) if kind == 0x0800 else (6,)


def _lengths(packet: Parsed, ip: bytes, announced: int | None) -> int:
    """Compare the announced length (None for 0) with what is there; the end of the IP packet."""
    if announced is None:
        packet.problems.add(Verdict.IP_LENGTH_ZERO)
        return len(ip)
    packet.ip_length = announced
    if announced > len(ip):
        packet.problems.add(Verdict.TRUNCATED)
    elif announced < len(ip):
        packet.problems.add(Verdict.TRAILING_BYTES)
    return min(announced, len(ip))


def _ipv4(packet: Parsed, ip: bytes) -> None:
    if len(ip) < 20:
        _barrier(packet, Verdict.IP_TRUNCATED)
        return
    first, packet.tos, total, packet.ident, fragment, packet.ttl, protocol, checksum = unpack_from(
        "!BBHHHBBH", ip
    )
    header = (first & 15) * 4
    if header < 20 or 0 < total < header:
        _barrier(packet, Verdict.IP_HEADER_LENGTH)
    if len(ip) < header:
        _barrier(packet, Verdict.IP_TRUNCATED)
    if packet.problems:
        return
    end = _lengths(packet, ip, total or None)
    if header > 20:
        packet.problems.add(Verdict.IP_OPTIONS)
    if fragment & 0x3FFF:  # MF and the offset
        _barrier(packet, Verdict.FRAGMENT)
    if fragment & 0x8000:
        packet.problems.add(Verdict.IP_RESERVED_BIT)
    packet.df = bool(fragment & 0x4000)
    if checksum != 0xFFFF - checksum16(ip[:10] + b"\0\0" + ip[12:header]):
        _barrier(packet, Verdict.IP_CHECKSUM)
    packet.addresses = ip[12:20]
    _transport(packet, ip, protocol, header, end)


def _ipv6(packet: Parsed, ip: bytes) -> None:
    if len(ip) < 40:
        _barrier(packet, Verdict.IP_TRUNCATED)
        return
    word, payload_length, following, packet.ttl = unpack_from("!IHBB", ip)
    packet.tos, packet.flow_label = word >> 20 & 0xFF, word & 0xFFFFF
    packet.addresses = ip[8:40]
    end = _lengths(packet, ip, 40 + payload_length if payload_length else None)
    offset = 40
    for count in range(MAX_EXTENSIONS + 1):
        if following == FRAGMENT:
            _barrier(packet, Verdict.FRAGMENT if end - offset >= 8 else Verdict.IP_TRUNCATED)
            return
        if following in OPAQUE_EXTENSIONS:
            _barrier(packet, Verdict.EXTENSION_HEADER)
            return
        if following not in (HOP_BY_HOP, ROUTING, DESTINATION):
            break
        if count == MAX_EXTENSIONS:
            _barrier(packet, Verdict.EXTENSION_HEADER)
            return
        if end - offset < 8 or end - offset < 8 * (ip[offset + 1] + 1):
            _barrier(packet, Verdict.IP_TRUNCATED)
            return
        if (following == HOP_BY_HOP and count > 0) or (following == ROUTING and ip[offset + 3]):
            packet.problems.add(Verdict.EXTENSION_HEADER)
        following, offset = ip[offset], offset + 8 * (ip[offset + 1] + 1)
    packet.extensions = ip[6:7] + ip[40:offset]
    _transport(packet, ip, following, offset, end)


def _transport(packet: Parsed, ip: bytes, protocol: int, offset: int, end: int) -> None:
    packet.protocol = protocol
    if protocol not in (TCP, UDP):
        packet.problems.add(Verdict.OTHER_PROTOCOL)
        return
    packet.transport_offset, packet.end = packet.ip_offset + offset, packet.ip_offset + end
    segment = ip[offset:end]
    if len(segment) < 4:
        _barrier(packet, Verdict.TRANSPORT_TRUNCATED)
        return
    packet.ports = unpack_from("!HH", segment)
    packet.addressed = True
    header = 20 if protocol == TCP else 8
    if len(segment) < header:
        packet.problems.add(Verdict.TRANSPORT_TRUNCATED)
        return
    if protocol == TCP:
        header = _tcp(packet, segment)
    else:
        _udp(packet, segment)
    packet.payload_offset = packet.transport_offset + header
    if packet.payload_offset > MAX_HEADERS:
        packet.problems.add(Verdict.HEADERS_TOO_LONG)


def _tcp(packet: Parsed, segment: bytes) -> int:
    packet.seq, packet.ack, word = unpack_from("!IIH", segment, 4)
    packet.window, packet.checksum, packet.urgent = unpack_from("!HHH", segment, 14)
    packet.flags = word & 0xFFF
    header: int = (word >> 12) * 4
    if header < 20 or header > len(segment):
        packet.problems.add(Verdict.TCP_DATA_OFFSET)
    packet.options = segment[20:header]
    for bit, verdict in (
        (SYN, Verdict.TCP_SYN),
        (RST, Verdict.TCP_RST),
        (URG, Verdict.TCP_URG),
        (CWR, Verdict.TCP_CWR),
    ):
        if packet.flags & bit:
            packet.problems.add(verdict)
    if header >= len(segment):
        packet.problems.add(Verdict.TCP_NO_PAYLOAD)
    return max(header, 20)


def _udp(packet: Parsed, segment: bytes) -> None:
    length, packet.checksum = unpack_from("!HH", segment, 4)
    if length != len(segment):
        packet.problems.add(Verdict.UDP_LENGTH)
    if len(segment) == 8:
        packet.problems.add(Verdict.UDP_EMPTY)
    if packet.checksum == 0:
        packet.problems.add(Verdict.UDP_NO_CHECKSUM)
