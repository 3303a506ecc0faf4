"""What a hook was given, written down while it was there; and checksums as scapy computes them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet as ScapyPacket

from netstack_gro.config import GroConfig, Limits
from tests.builders import TrafficPacket, ip_offset
from tests.engines import Engine

NUMBERS = (
    "packets",
    "gso_type",
    "gso_size",
    "gso_segs",
    "ip_id_mode",
    "checksum",
    "verdict",
    "closed_by",
    "timestamp_ns",
    "interface",
    "vlan",
    "vlan_tpid",
    "link",
    "wire_length",
)
"""The properties of a packet that stay readable when it was released."""


def numbers(packet: Any) -> dict[str, Any]:
    """All that a packet says of itself without its bytes."""
    values = {name: getattr(packet, name) for name in NUMBERS}
    return values | {
        "length": len(packet),
        "timestamps": packet.timestamps(),
        "virtio": packet.virtio_header(),
        "fits": tuple(packet.fits(mtu) for mtu in (0, 100, 140, 1500, 65535)),
        "repr": repr(packet),
    }


@dataclass(frozen=True)
class Given:
    """One delivered packet: its bytes in three ways, its numbers, its segments."""

    data: bytes
    pieces: list[bytes]
    segments: list[bytes]
    said: dict[str, Any]

    @classmethod
    def of(cls, packet: Any, *, cut: bool = True) -> "Given":
        return cls(
            bytes(packet),
            [bytes(piece) for piece in packet.buffers()],
            list(packet.segments()) if cut else [],
            numbers(packet),
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return self.said[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class Recorder:
    """A hook that keeps a record of each flush; ``cut``: with the segments of each packet."""

    flushes: list[list[Given]] = field(default_factory=list)
    cut: bool = True

    def __call__(self, packets: list[Any]) -> None:
        self.flushes.append([Given.of(packet, cut=self.cut) for packet in packets])

    @property
    def given(self) -> list[Given]:
        """What all flushes delivered, in order."""
        return [packet for flush in self.flushes for packet in flush]

    @property
    def data(self) -> list[bytes]:
        return [packet.data for packet in self.given]

    @property
    def counts(self) -> list[int]:
        """The number of inputs in each delivered packet."""
        return [packet.packets for packet in self.given]

    @property
    def verdicts(self) -> list[str]:
        return [packet.verdict.name for packet in self.given]

    @property
    def reasons(self) -> list[str]:
        return [packet.closed_by.name for packet in self.given]


class RecordingSink(Recorder):
    """The same with limits that a test may replace."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits


def batch_of(engine: Engine, packets: Iterable[bytes | TrafficPacket]) -> Any:
    """A batch of bytes without metadata and of packets with theirs."""
    packets = list(packets)
    batch = engine.Batch(capacity=len(packets) + 4)
    for packet in packets:
        if isinstance(packet, TrafficPacket):
            batch.append(packet.data, **packet.keywords())
        else:
            batch.append(packet)
    return batch


def merged(
    engine: Engine,
    packets: Iterable[bytes | TrafficPacket],
    hook: Recorder | None = None,
    **how: Any,
) -> Recorder:
    """What the packets become as one batch of an engine configured by the keywords."""
    hook = Recorder() if hook is None else hook
    batch = batch_of(engine, packets)
    how.setdefault("capacity", batch.capacity)
    engine.GroDispatcher(hook, GroConfig(**how)).dispatch(batch)
    return hook


def completed_by_scapy(packet: bytes, link: str = "ip") -> bytes:
    """The packet with every length and checksum as scapy computes it."""
    at = ip_offset(packet, link)
    inner = packet[at:]
    layers: ScapyPacket = IP(inner) if inner[0] >> 4 == 4 else IPv6(inner)
    transport = layers[TCP] if TCP in layers else layers[UDP]
    for layer in (layers, transport):
        for name in ("len", "plen", "chksum"):
            layer.fields.pop(name, None)
        layer.raw_packet_cache = None
    layers.clear_cache()
    return packet[:at] + bytes(layers)


def assert_sound(packets: Sequence[bytes], link: str = "ip") -> None:
    """Every length and checksum of every packet is what scapy computes."""
    for packet in packets:
        assert completed_by_scapy(packet, link) == packet
