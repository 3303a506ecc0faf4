"""What the engine costs a packet: merging, verifying, not merging, a batch of one.

    python benchmarks/engine.py [SECONDS]        NETSTACK_GRO_INTERPRETED=1 for the other engine

Each case dispatches the same `Batch` of a slab again and again into a hook that does nothing, so
what is measured is one engine, its `Packet` objects and the call of a Python hook; the packets
stay in the cache. Printed are CPU time per packet in nanoseconds, the median and the least of
seven runs. Times of different machines, or of different runs, say little: compare within one.
"""

import statistics
import struct
import sys
import time
from collections.abc import Callable

import netstack_gro
from netstack_gro import Batch, GroConfig, GroDispatcher, Packet

RUNS = 7
SLOT = 2048
PAYLOAD = 1448  # an Ethernet MTU of 1500 less IPv4, TCP and timestamps
TIMESTAMPS = bytes.fromhex("0101080a0000000100000002")


def ones_complement(data: bytes) -> int:
    """The RFC 1071 checksum of ``data``."""
    padded = data + bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tcp4(sequence: int, port: int, ident: int) -> bytes:
    """A full-sized TCP segment over IPv4 with timestamps and right checksums."""
    addresses = bytes((192, 0, 2, 1, 198, 51, 100, 1))
    segment = struct.pack("!HHIIBBHHH", port, 443, sequence, 1, 8 << 4, 0x10, 501, 0, 0)
    segment += TIMESTAMPS + bytes(ident % 256 for _ in range(PAYLOAD))
    check = ones_complement(addresses + struct.pack("!HH", 6, len(segment)) + segment)
    segment = segment[:16] + struct.pack("!H", check) + segment[18:]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), ident, 0x4000, 64, 6, 0)
    check = ones_complement(header + addresses)
    return header[:10] + struct.pack("!H", check) + addresses + segment


def batch_of(packets: list[bytes]) -> Batch:
    """The packets in one slab, at distances of SLOT bytes."""
    slab = bytearray(SLOT * len(packets))
    batch = Batch(slab, capacity=len(packets))
    for number, packet in enumerate(packets):
        slab[number * SLOT : number * SLOT + len(packet)] = packet
        batch.add(number * SLOT, len(packet))
    return batch


def ignore(packets: list[Packet]) -> None:
    """The hook."""


def measure(dispatch: Callable[[], object], packets: int, seconds: float) -> list[float]:
    """CPU nanoseconds per packet of each run."""
    start = time.process_time()
    dispatch()
    once = max(time.process_time() - start, 1e-7)
    repeats = max(1, int(seconds / RUNS / once))
    figures = []
    for _ in range(RUNS):
        start = time.process_time_ns()
        for _ in range(repeats):
            dispatch()
        figures.append((time.process_time_ns() - start) / repeats / packets)
    return figures


def main() -> None:
    """Measure and print every case."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    one_flow = batch_of([tcp4(1 + PAYLOAD * n, 1000, n) for n in range(64)])
    many_flows = batch_of([tcp4(1, 1000 + n, n) for n in range(64)])
    lone = batch_of([tcp4(1, 1000, 1)])
    cases: tuple[tuple[str, Batch, GroConfig], ...] = (
        ("1 flow, trusted", one_flow, GroConfig(received_checksums="trust")),
        ("1 flow, verified", one_flow, GroConfig()),
        ("64 flows, nothing merges", many_flows, GroConfig(received_checksums="trust")),
        ("batch of one", lone, GroConfig()),
    )
    engine = "compiled" if netstack_gro.__compiled__ else "interpreted"
    print(f"{engine} engine, ns per packet       median   least")
    for name, batch, config in cases:
        gro = GroDispatcher(ignore, config)
        figures = measure(lambda gro=gro, batch=batch: gro.dispatch(batch), len(batch), seconds)
        print(f"{name:<32} {statistics.median(figures):>9,.1f} {min(figures):>7,.1f}")


if __name__ == "__main__":
    main()
