"""The packets that every engine is measured on, and the file in which peers are given them.

A file holds one batch: the number of packets, then the length of each (unsigned 32 bits, little
endian), then the packets one after the other: raw IP, without a link header. All are right in
every checksum and made to merge: consecutive sequence numbers and IP IDs, equal headers, the
timestamps that Linux sends.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HEADERS", "Traffic", "ones_complement", "read", "write"]

TIMESTAMPS = bytes.fromhex("0101080a0000000100000002")  # RFC 7323, aligned as Linux does
TCP, UDP = 6, 17
ACK = 0x10
PATTERN = bytes(range(251)) * (65536 // 251 + 2)
HEADERS = {4: 20 + 20 + len(TIMESTAMPS), 6: 40 + 20 + len(TIMESTAMPS)}
ADDRESSES = {
    4: bytes((192, 0, 2, 1, 198, 51, 100, 1)),
    6: bytes.fromhex("20010db8" + "00" * 11 + "01" + "20010db8" + "00" * 11 + "02"),
}


@dataclass(frozen=True, slots=True)
class Traffic:
    """One batch: ``packets`` TCP segments in ``flows`` equal runs, one run after the other.

    payload: bytes of each segment. version: 4 or 6. udp: datagrams instead.
    """

    name: str
    packets: int
    flows: int
    payload: int = 1448  # an Ethernet MTU of 1500 less IPv4, TCP and timestamps
    version: int = 4
    udp: bool = False

    def __post_init__(self) -> None:
        if self.packets % self.flows:
            raise ValueError(f"{self.packets} packets in {self.flows} flows are no equal runs")

    @property
    def run(self) -> int:
        """Packets of each flow."""
        return self.packets // self.flows

    @property
    def payload_bytes(self) -> int:
        """TCP payload of the whole batch, which an engine has to deliver all of."""
        return self.packets * self.payload

    def build(self) -> list[bytes]:
        """The packets, in order."""
        return [self._packet(*divmod(index, self.run)) for index in range(self.packets)]

    def _packet(self, flow: int, number: int) -> bytes:
        addresses = ADDRESSES[self.version]
        start = (flow + 3 * number) % 251
        protocol, header, at = self._transport(flow, number)
        segment = header + PATTERN[start : start + self.payload]
        pseudo = addresses + struct.pack("!II", len(segment), protocol)
        check = ones_complement(pseudo + segment)
        if self.udp:
            check = check or 0xFFFF  # RFC 768: 0 says that there is none
        segment = segment[:at] + check.to_bytes(2, "big") + segment[at + 2 :]
        if self.version == 6:
            fixed = struct.pack("!IHBB", 6 << 28, len(segment), protocol, 64)
            return fixed + addresses + segment
        length = 20 + len(segment)
        fields = (0x45, 0, length, number & 0xFFFF, 0x4000, 64, protocol, 0)
        header = struct.pack("!BBHHHBBH", *fields)
        check = ones_complement(header + addresses)
        return header[:10] + check.to_bytes(2, "big") + addresses + segment

    def _transport(self, flow: int, number: int) -> tuple[int, bytes, int]:
        """Protocol, header without its checksum, and the offset of that."""
        if self.udp:
            return UDP, struct.pack("!HHHH", 1000 + flow, 443, 8 + self.payload, 0), 6
        fields = (1000 + flow, 443, 1 + number * self.payload, 1, 8 << 4, ACK, 501, 0, 0)
        return TCP, struct.pack("!HHIIBBHHH", *fields) + TIMESTAMPS, 16


def ones_complement(data: bytes) -> int:
    """The RFC 1071 checksum of ``data``."""
    value = int.from_bytes(data + bytes(len(data) % 2), "big")
    return 0xFFFF - (value % 0xFFFF or 0xFFFF) if value else 0xFFFF


def write(path: Path, packets: Sequence[bytes]) -> None:
    """Write one batch."""
    lengths = struct.pack(f"<{1 + len(packets)}I", len(packets), *map(len, packets))
    path.write_bytes(lengths + b"".join(packets))


def read(path: Path) -> list[bytes]:
    """The packets of a file; ValueError where it does not hold what its lengths say."""
    data = path.read_bytes()
    if len(data) < 4:
        raise ValueError(f"{path} is no batch: {len(data)} bytes")
    (count,) = struct.unpack_from("<I", data)
    at = 4 + 4 * count
    if len(data) < at:
        raise ValueError(f"{path} ends within its {count} lengths")
    packets = []
    for length in struct.unpack_from(f"<{count}I", data, 4):
        packets.append(data[at : at + length])
        at += length
    if at != len(data):
        raise ValueError(f"{path} holds {len(data)} bytes, and its lengths say {at}")
    return packets
