"""A batch for each kind of packet that an engine delivers, and what a hook sees of it."""

from collections.abc import Callable
from typing import Any

from netstack_gro.config import GroConfig
from netstack_gro.virtio import NEEDS_CSUM, GsoType, VirtioHeader
from tests import builders as b
from tests.builders import TrafficPacket, ethernet, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import batch_of

BODY = bytes(range(256)) * 4
HBH = (b.HOP_BY_HOP, bytes((0, 0, 1, 4, 0, 0, 0, 0)))


def stream(build: Callable[..., bytes], count: int, size: int = 100, **fields: Any) -> list[bytes]:
    """Consecutive packets of one flow; the last one is 30 bytes shorter."""
    packets = []
    for place in range(count):
        own: dict[str, Any] = {"ident": place} if build in (tcp4, udp4) else {}
        if build in (tcp4, tcp6):
            own["seq"] = 1 + size * place
        length = size - 30 * (place == count - 1)
        packets.append(build(BODY[place : place + length], **own, **fields))
    return packets


SUPER = VirtioHeader(NEEDS_CSUM, GsoType.TCPV4, 40, 100, 20, 16)
# Batches of one flush, with the configuration that they need.
KINDS: dict[str, tuple[list[bytes | TrafficPacket], dict[str, Any]]] = {
    "tcp4": (list(stream(tcp4, 3)), {}),
    "tcp4 of equal IDs": ([tcp4(b"ab", ident=5), tcp4(b"cd", ident=5, seq=3)], {}),
    "tcp6": (list(stream(tcp6, 3)), {}),
    "tcp6 with extension headers": (list(stream(tcp6, 3, extensions=[HBH])), {}),
    "udp4": (list(stream(udp4, 3)), {"udp": True}),
    "udp6": (list(stream(udp6, 3)), {"udp": True}),
    "partial": (list(stream(tcp4, 3)), {"delivered_checksums": "partial"}),
    "ethernet": (
        [ethernet(packet, tags=[(b.DOT1Q, 5)]) for packet in stream(tcp4, 3)],
        {"link": "ethernet"},
    ),
    "metadata": (
        [
            TrafficPacket(packet, timestamp_ns=-5 + place, interface=9, vlan=0x2005)
            for place, packet in enumerate(stream(tcp4, 3))
        ],
        {},
    ),
    "alone": ([tcp4(BODY)], {}),
    "alone and empty": ([b""], {}),
    "lone ones": ([tcp4(b"x"), tcp6(b""), udp4(b"abc"), b"", b"\xff" * 30], {}),
    "cut short": ([TrafficPacket(tcp4(BODY)[:60], wire_length=1064), b"y"], {}),
    "vnet super-packet": ([TrafficPacket(tcp4(BODY, partial=True), virtio=SUPER), b"y"], {}),
    "vnet super-packet, partial": (
        [TrafficPacket(tcp4(BODY, partial=True), virtio=SUPER), b"y"],
        {"delivered_checksums": "partial"},
    ),
    "of unknown gso_size": ([TrafficPacket(tcp4(BODY), aggregated=True), b"y"], {}),
    "bad checksum": ([*stream(tcp4, 2), tcp4(b"x", seq=171, checksum=1)], {}),
}


def within_hook(engine: Engine, packets: Any, act: Callable[[Any], Any], **how: Any) -> list[Any]:
    """What ``act`` makes of each packet while the hook runs."""
    results: list[Any] = []
    gro = engine.GroDispatcher(
        lambda given: results.extend(act(packet) for packet in given), GroConfig(**how)
    )
    gro.dispatch(batch_of(engine, packets))
    return results
