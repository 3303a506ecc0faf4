"""What a captured packet tells of the offloads of the machine that captured it.

A capture taken at a sender shows packets before the device filled in their checksums and before
it cut them; one taken at a receiver may show packets that the device or the kernel merged. None
of this stands in the file, so it is recognised, packet by packet.
"""

from collections.abc import Callable
from enum import IntFlag
from struct import Struct

from netstack_gro.config import Link

__all__ = ["MSS_TABLE_SIZE", "MssTable", "Offload", "Recogniser", "fill_ip_checksum"]

MSS_TABLE_SIZE = 65_536
"""Directions of TCP connections whose MSS is remembered; beyond, the oldest SYN is forgotten."""

JUMBO_LIMIT = 9_216
"""IP bytes above which a packet was merged, where neither MSS nor MTU is known: the largest
frame that common devices send ("jumbo frames")."""

_MIN_MSS = 48  # TCP_MIN_SND_MSS, include/net/tcp.h: what a Linux sender takes at least

_TCP = 6  # IANA protocol numbers
_UDP = 17
_HOP_BY_HOP = 0
_ROUTING = 43
_EXTENSIONS = frozenset({_HOP_BY_HOP, _ROUTING, 60})  # and destination options, RFC 8200
_MAX_EXTENSIONS = 8
_MAX_HEADERS = 256  # of a packet whose checksum the engine can complete

_SYN = 0x02
_FRAGMENT = 0x3FFF  # MF and the offset
_MSS_OPTION = 2  # RFC 9293 section 3.2

# First byte, total length, fragment word, protocol, checksum, addresses.
_IPV4 = Struct("!BxHxxHxBHLL")
# Payload length, next header; the addresses, as words of 64 bits.
_IPV6 = Struct("!4xHBxQQQQ")
# Data offset, flags, checksum.
_TCP_HEADER = Struct("!12xBBxxH")
_UDP_CHECKSUM = Struct("!6xH")


class Offload(IntFlag):
    """What was recognised in one packet."""

    PARTIAL = 1
    """The transport checksum field holds the pseudo-header sum (folded, not inverted)."""
    IP_CHECKSUM = 2
    """The IPv4 header checksum is 0, which is not right for the header."""
    AGGREGATED = 4
    """Larger than any packet of its flow on a wire, or without an IP length: several in one."""


_PARTIAL = int(Offload.PARTIAL)
_IP_CHECKSUM = int(Offload.IP_CHECKSUM)
_AGGREGATED = int(Offload.AGGREGATED)


class MssTable:
    """The MSS that each end of a TCP connection announced, for at most ``size`` directions.

    A key names a direction; beyond ``size``, the oldest SYN is forgotten. ``smallest`` is the
    smallest MSS ever put in: no payload up to it needs a look at the table.
    """

    __slots__ = ("_values", "size", "smallest")

    def __init__(self, size: int = MSS_TABLE_SIZE) -> None:
        self._values: dict[bytes, int] = {}
        self.size: int = size
        self.smallest: int = 1 << 31

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: bytes, mss: int | None) -> None:
        """Note what a SYN announced; None: it announced nothing, and what was known is void."""
        self._values.pop(key, None)
        if mss is None:
            return
        if len(self._values) >= self.size:
            del self._values[next(iter(self._values))]
        self._values[key] = mss
        self.smallest = min(self.smallest, mss)

    def get(self, key: bytes) -> int | None:
        """What is known of a direction."""
        return self._values.get(key)


class Recogniser:
    """Looks at the packets of one interface, in the order of the file.

    link: the link layer. number: the interface's, which sets its flows apart in ``table``.
    mtu: bytes of the largest IP packet on the wire, where that is known.
    """

    __slots__ = ("_ethernet", "_limit", "_locate", "_mtu", "_prefix", "_table")

    def __init__(self, link: Link, number: int, table: MssTable, mtu: int | None = None) -> None:
        self._ethernet = link == "ethernet"
        self._locate = _LOCATORS[link]
        self._prefix = number.to_bytes(4, "big")
        self._table = table
        self._mtu = mtu
        self._limit = JUMBO_LIMIT if mtu is None else mtu

    def examine(self, data: bytes, wire_length: int) -> int:
        """The `Offload` bits of a packet, as a plain integer. Made for the usual packet's speed."""
        size = len(data)
        if size < 28:  # the least that any TCP or UDP packet has
            return 0
        if self._ethernet and data[12] == 8 and not data[13]:
            at, version = 14, 4
        else:
            at, version = self._locate(data)
        if version == 4:
            if size < at + 28:
                return 0
            first, total, fragment, protocol, check, source, target = _IPV4.unpack_from(data, at)
            if first == 0x45:
                transport = at + 20
            else:
                transport = at + (first & 15) * 4
                if first >> 4 != 4 or transport < at + 20 or transport > size:
                    return 0
            addresses = source + target
            found = 0
            if not check and int.from_bytes(data[at:transport], "big") % 0xFFFF:
                found = _IP_CHECKSUM
            if fragment & _FRAGMENT:
                return found
        elif version == 6:
            if size < at + 48 or data[at] >> 4 != 6:
                return 0
            total, protocol, a, b, c, d = _IPV6.unpack_from(data, at)
            if total:
                total += 40
            addresses = a + b + c + d
            transport = at + 40
            if protocol in _EXTENSIONS:
                protocol, transport = _behind_extensions(data, transport)
            found = 0
        else:
            return 0
        if protocol == _TCP:
            if size < transport + 20:
                return found
            offset, flags, field = _TCP_HEADER.unpack_from(data, transport)
            header = offset >> 4 << 2
            if header < 20:
                return found
        elif protocol == _UDP and size >= transport + 8:
            (field,) = _UDP_CHECKSUM.unpack_from(data, transport)
            header = 8
            flags = 0
        else:
            return found
        count = at + (total or size - at) - transport  # bytes that the transport checksum covers
        # 2**16 is 1 modulo 65535, so words of any size add up to the sum of their halves.
        summed = addresses + protocol + count
        if (
            not (summed - field) % 0xFFFF
            and field
            and wire_length == size
            and header <= count
            and transport + header <= _MAX_HEADERS
            and _is_partial(data, at, transport, transport + count, summed, found)
        ):
            found |= _PARTIAL
        payload = count - header
        if flags & _SYN:
            direction = self._prefix + _direction(data, at, transport)
            self._table.put(direction, _announced(data, transport))
        elif not total:
            if payload > 0:
                found |= _AGGREGATED
        elif (
            (payload > self._table.smallest or total > self._limit)
            and at + total <= wire_length  # else the length is damaged
            and self._exceeds(data, at, transport, total, payload, protocol)
        ):
            found |= _AGGREGATED
        return found

    def _exceeds(
        self, data: bytes, at: int, transport: int, total: int, payload: int, protocol: int
    ) -> bool:
        """Whether a packet is larger than its flow's MSS or the MTU allow a single one to be."""
        if self._mtu is not None and total > self._mtu:
            return True
        if protocol == _TCP:
            mss = self._table.get(self._prefix + _opposite(data, at, transport))
            if mss is None:
                mss = self._table.get(self._prefix + _direction(data, at, transport))
            if mss is not None:
                return payload > mss
        return self._mtu is None and total > JUMBO_LIMIT


def fill_ip_checksum(packet: bytearray, link: Link) -> None:
    """Write the header checksum of an IPv4 packet that `Recogniser.examine` found without."""
    at, _ = _LOCATORS[link](packet)
    end = at + (packet[at] & 15) * 4
    packet[at + 10 : at + 12] = bytes(2)
    total = int.from_bytes(packet[at:end], "big") % 0xFFFF
    packet[at + 10 : at + 12] = (0xFFFF - (total or 0xFFFF)).to_bytes(2, "big")


def _is_partial(data: bytes, at: int, transport: int, end: int, summed: int, found: int) -> bool:
    """Whether a transport checksum that is the pseudo-header sum is not the right one as well.

    A packet that is cut off, or whose IPv4 header is damaged, is left to the engine.
    """
    if end > len(data):
        return False
    if data[at] >> 4 == 4 and not found & _IP_CHECKSUM:
        # 0xFFFF adds up as 0 does, but is not what a sender would have written.
        if data[at + 10] == data[at + 11] == 0xFF:
            return False
        if int.from_bytes(data[at:transport], "big") % 0xFFFF:
            return False
    total = int.from_bytes(data[transport:end], "big")
    if (end - transport) & 1:
        total <<= 8
    return (total + summed) % 0xFFFF != 0


def _direction(data: bytes, at: int, transport: int) -> bytes:
    """Addresses and ports, from source to destination."""
    if data[at] >> 4 == 4:
        return data[at + 12 : at + 20] + data[transport : transport + 4]
    return data[at + 8 : at + 40] + data[transport : transport + 4]


def _opposite(data: bytes, at: int, transport: int) -> bytes:
    """`_direction` of the answer to a packet."""
    ports = data[transport + 2 : transport + 4] + data[transport : transport + 2]
    if data[at] >> 4 == 4:
        return data[at + 16 : at + 20] + data[at + 12 : at + 16] + ports
    return data[at + 24 : at + 40] + data[at + 8 : at + 24] + ports


def _announced(data: bytes, transport: int) -> int | None:
    """The MSS option of a SYN, or None. What a sender may do with a tiny one is raised to 48."""
    end = min(transport + (data[transport + 12] >> 4) * 4, len(data))
    at = transport + 20
    while at + 4 <= end and data[at]:
        if data[at] == 1:  # no operation
            at += 1
            continue
        if data[at] == _MSS_OPTION and data[at + 1] == 4:
            return max(data[at + 2] << 8 | data[at + 3], _MIN_MSS)
        at += max(data[at + 1], 2)
    return None


def _behind_extensions(data: bytes, at: int) -> tuple[int, int]:
    """The protocol behind the IPv6 extension headers, and where it starts; 255 where unclear."""
    first = at
    following = data[first - 34]
    for count in range(_MAX_EXTENSIONS + 1):
        if following not in _EXTENSIONS:
            return following, at
        if count == _MAX_EXTENSIONS or at + 8 > len(data):
            break
        if (following == _HOP_BY_HOP and count) or (following == _ROUTING and data[at + 3]):
            break
        following = data[at]
        at += (data[at + 1] + 1) * 8
    return 255, first


# Where the IP header stands, and which version the link header announces; 0: neither.


def _raw(data: bytes | bytearray) -> tuple[int, int]:
    return 0, data[0] >> 4


def _raw4(_data: bytes | bytearray) -> tuple[int, int]:
    return 0, 4


def _raw6(_data: bytes | bytearray) -> tuple[int, int]:
    return 0, 6


_VERSIONS = {0x0800: 4, 0x86DD: 6}  # EtherTypes


def _ethernet(data: bytes | bytearray) -> tuple[int, int]:
    at = 12
    for _ in range(3):  # at most two VLAN tags
        kind = data[at] << 8 | data[at + 1]
        if kind != 0x8100 and kind != 0x88A8:
            return at + 2, _VERSIONS.get(kind, 0)
        at += 4
    return 0, 0


def _sll(data: bytes | bytearray) -> tuple[int, int]:
    return 16, _VERSIONS.get(data[14] << 8 | data[15], 0)


def _sll2(data: bytes | bytearray) -> tuple[int, int]:
    return 20, _VERSIONS.get(data[0] << 8 | data[1], 0)


# AF_INET; AF_INET6 of NetBSD and OpenBSD, FreeBSD, Darwin.
_FAMILIES = {2: 4, 24: 6, 28: 6, 30: 6}


def _loop(data: bytes | bytearray) -> tuple[int, int]:
    return 4, _FAMILIES.get(int.from_bytes(data[:4], "big"), 0)


def _null(data: bytes | bytearray) -> tuple[int, int]:
    version = _FAMILIES.get(int.from_bytes(data[:4], "little"), 0)
    return (4, version) if version else _loop(data)


_LOCATORS: dict[Link, Callable[[bytes | bytearray], tuple[int, int]]] = {
    "ip": _raw,
    "ipv4": _raw4,
    "ipv6": _raw6,
    "ethernet": _ethernet,
    "null": _null,
    "loop": _loop,
    "sll": _sll,
    "sll2": _sll2,
}
