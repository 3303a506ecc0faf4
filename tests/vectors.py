"""The table of kernel vectors: small sequences, and the payload sizes that must be delivered.

`tests/test_kernel_vectors.py` holds the running kernel to it. All packets of a vector belong to
one flow unless its name says otherwise.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from tests.builders import (
    ACK,
    CWR,
    DESTINATION,
    EXTENSIONS,
    FRAGMENT,
    PSH,
    RST,
    SYN,
    TCP,
    UDP,
    URG,
    ipv6,
    tcp4,
    tcp6,
    udp4,
    udp6,
)

__all__ = ["VECTORS", "Vector", "payload_size"]

Build = Callable[..., bytes]
UDP_PORT = 5201
PADDED_DESTINATION = bytes((0, 0, 1, 4, 0, 0, 0, 0))  # RFC 8200 section 4.6: one PadN option
OTHER_DESTINATION = bytes((0, 0, 1, 4, 1, 1, 1, 1))


@dataclass(frozen=True, slots=True)
class Vector:
    """Packets of one batch, and the payload sizes of what must be delivered, in order.

    ``expect`` is ours. ``kernel`` is the kernel's answer in its own order of delivery;
    ``intended_difference`` says why the two differ, and is None where they are the same.
    """

    name: str
    packets: list[bytes]
    expect: list[int]
    udp: bool = False
    link: str = "ip"
    intended_difference: str | None = None
    kernel: list[int] | None = None

    @property
    def expected_of_kernel(self) -> list[int]:
        return self.expect if self.kernel is None else self.kernel


def payload_size(packet: bytes) -> int:
    """Bytes behind the TCP or UDP header, or behind the IP headers of anything else."""
    if packet[0] >> 4 == 4:
        protocol, offset = packet[9], (packet[0] & 15) * 4
        end = int.from_bytes(packet[2:4], "big")
        if int.from_bytes(packet[6:8], "big") & 0x1FFF:
            protocol = FRAGMENT
    else:
        protocol, offset = packet[6], 40
        end = offset + int.from_bytes(packet[4:6], "big")
        while protocol in EXTENSIONS:
            protocol, offset = packet[offset], offset + 8 * (packet[offset + 1] + 1)
    if protocol == TCP:
        offset += packet[offset + 12] >> 4 << 2
    elif protocol == UDP:
        offset += 8
    elif protocol == FRAGMENT and packet[0] >> 4 == 6:
        offset += 8
    return end - offset


def _stream(
    build: Build, *sizes: int, changes: dict[int, dict[str, object]] | None = None
) -> list[bytes]:
    """Consecutive segments of those sizes; ``changes`` has fields for some, by position."""
    starts = [0, *accumulate(sizes)]
    packets = []
    for number, (start, size) in enumerate(zip(starts, sizes, strict=False)):
        fields: dict[str, object] = {"seq": start}
        if build is tcp4:
            fields["ident"] = number
        packets.append(build(bytes(size), **fields | (changes or {}).get(number, {})))
    return packets


def _tcp_vectors(build: Build, family: str) -> Iterator[Vector]:
    def vector(name: str, packets: list[bytes], expect: list[int]) -> Vector:
        return Vector(f"{family} {name}", packets, expect)

    def five(flags: int, *places: int, size: int = 100) -> list[bytes]:
        """Five segments, some with flags; those have ``size`` bytes and are not counted."""
        sizes = [size if place in places else 100 for place in range(5)]
        return _stream(build, *sizes, changes={place: {"flags": flags} for place in places})

    def stamped(*options: str) -> list[bytes]:
        changes: dict[int, dict[str, object]] = {
            place: {"tcp_options": bytes.fromhex(text)} for place, text in enumerate(options)
        }
        return _stream(build, *[100] * len(options), changes=changes)

    yield vector("equal", _stream(build, 100, 100), [200])
    yield vector("large, small", _stream(build, 100, 50), [150])
    yield vector("small, large", _stream(build, 50, 100), [50, 100])
    yield vector("pure ACKs", _stream(build, 0, 0, 0), [0, 0, 0])
    yield vector("data, pure ACK, data", _stream(build, 100, 0, 100), [100, 0, 100])
    yield vector("PSH in the third of five", five(PSH | ACK, 2), [300, 200])
    yield vector(
        "PSH first, then two",
        _stream(build, 100, 100, 100, changes={0: {"flags": PSH | ACK}}),
        [100, 200],
    )
    for flag, name in ((SYN, "SYN"), (RST, "RST"), (URG, "URG")):
        yield vector(
            f"{name} without payload as the third of five",
            five(flag | ACK, 2, size=0),
            [200, 0, 200],
        )
    yield vector("CWR on the second and third of five", five(CWR | ACK, 1, 2), [100, 100, 100, 200])
    yield vector(
        "bad checksum on the second of two",
        _stream(build, 100, 100, changes={1: {"checksum": 0x1234}}),
        [100, 100],
    )
    yield vector("sequence gap", _stream(build, 100, 100, changes={1: {"seq": 101}}), [100, 100])
    yield vector(
        "timestamps: twice 0, then 100, then other layouts twice",
        stamped(
            "0101080a0000000000000000",
            "0101080a0000000000000000",
            "0101080a0000006400000000",
            "080a00000064000000000101",
            "01080a000000640000000001",
        ),
        [200, 100, 100, 100],
    )
    for name, fields in (("ECN bit", {"tos": 3}), ("TOS", {"tos": 16}), ("TTL", {"ttl": 63})):
        yield vector(
            f"{name} on the second", _stream(build, 100, 100, changes={1: dict(fields)}), [100, 100]
        )
    yield vector(
        "sequence wrap",
        _stream(build, 100, 100, changes={0: {"seq": (1 << 32) - 50}, 1: {"seq": 50}}),
        [200],
    )
    # The table says "then 599, then 599" and the like for IPv4; IPv6 has 20 bytes less.
    largest = 65535 - 16 * 4056 - (40 if build is tcp4 else 60)
    for name, last, expect in (
        ("largest", largest, [16 * 4056 + largest, largest]),
        ("largest + 1", largest + 1, [16 * 4056, largest + 1, largest + 1]),
    ):
        changes: dict[int, dict[str, object]] = {17: {"seq": 17 * 4056}}
        yield vector(name, _stream(build, *[4056] * 16, last, last, changes=changes), expect)
    yield vector("300 one-byte segments", _stream(build, *[1] * 300), [300])


def _ipv4_vectors() -> Iterator[Vector]:
    for name, fields in (("IP options", {"options": b"\1\1\1\0"}), ("MF", {"mf": True})):
        packets = _stream(tcp4, 100, 100, changes={1: dict(fields)})
        yield Vector(f"tcp4 {name} on the second", packets, [100, 100])
    for df in (True, False):
        for idents, expect in (
            ((8, 9), [200]),
            ((8, 8), [200]),
            ((65535, 0), [200]),
            ((8, 9, 9), [200, 100]),
            ((8, 8, 9), [200, 100]),
        ):
            packets = [
                tcp4(bytes(100), seq=100 * place, ident=ident, df=df)
                for place, ident in enumerate(idents)
            ]
            name = ",".join(map(str, idents)) + (" DF" if df else "")
            yield Vector(f"tcp4 IDs {name}", packets, expect)


def _ipv6_vectors() -> Iterator[Vector]:
    whole = bytes(8)
    yield Vector(
        "tcp6 fragment header between",
        [
            tcp6(bytes(100), seq=0),
            ipv6(bytes(100), protocol=TCP, extensions=[(FRAGMENT, whole)]),
            tcp6(bytes(100), seq=100),
        ],
        [100, 100, 100],
        intended_difference="bypassed packets overtake held ones, which merge across them",
        kernel=[100, 200],
    )
    for name, second, expect in (
        ("equal", PADDED_DESTINATION, [200]),
        ("different", OTHER_DESTINATION, [100, 100]),
    ):
        packets = [
            tcp6(bytes(100), seq=100 * place, extensions=[(DESTINATION, header)])
            for place, header in enumerate((PADDED_DESTINATION, second))
        ]
        yield Vector(f"tcp6 destination options {name}", packets, expect)


def _udp_vectors(build: Build, family: str) -> Iterator[Vector]:
    for name, sizes, expect in (
        ("70 x 100", [100] * 70, [6400, 600]),
        ("60 x 1400", [1400] * 60, [46 * 1400, 14 * 1400]),
        ("100, 200", [100, 200], [100, 200]),
        ("100, 100, 50, 100", [100, 100, 50, 100], [250, 100]),
    ):
        packets = []
        for number, size in enumerate(sizes):
            fields: dict[str, object] = {"ident": number} if build is udp4 else {}
            packets.append(build(bytes(size), dport=UDP_PORT, **fields))
        yield Vector(f"{family} {name}", packets, expect, udp=True)


VECTORS: list[Vector] = [
    *_tcp_vectors(tcp4, "tcp4"),
    *_tcp_vectors(tcp6, "tcp6"),
    *_ipv4_vectors(),
    *_ipv6_vectors(),
    *_udp_vectors(udp4, "udp4"),
    *_udp_vectors(udp6, "udp6"),
]
