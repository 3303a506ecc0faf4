"""One recording for each file: the way, the traffic, and what the file promises to hold."""

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path as File

from pcaps.recorder import facts, mixture, paths
from pcaps.recorder.cable import Faults, Marking
from pcaps.recorder.facts import Promise, at_least, at_most, exactly
from pcaps.recorder.network import Lab
from pcaps.recorder.paths import Path
from pcaps.recorder.tap import Frame
from pcaps.recorder.traffic import bulk, many_flows, requests, trains

__all__ = ["SCENARIOS", "Recording", "Scenario"]

V4, V6 = socket.AF_INET, socket.AF_INET6
KIB = 1024
SETTLE_SECONDS = 0.1

TPID_8021Q, TPID_8021AD = 0x8100, 0x88A8  # IEEE 802.1Q
PRIORITY_3 = 3 << 13

Steps = Callable[[Lab], tuple[Path, Mapping[str, int]]]


@dataclass
class Recording:
    """What the taps of one scenario saw."""

    interfaces: list[tuple[str, int]]
    """Name and link type."""
    frames: list[tuple[int, Frame]]
    """Each with its interface."""
    done: Mapping[str, int] = field(default_factory=dict)
    """What the cable did, by its own count."""

    def facts(self) -> dict[str, int]:
        return facts.count(
            (interface, self.interfaces[interface][1], frame.data)
            for interface, frame in self.frames
        )


@dataclass(frozen=True)
class Scenario:
    """A file, what it shows, how it comes about, and what must be found in it."""

    file: str
    shows: str
    steps: Steps
    promises: tuple[Promise, ...]
    mtu: int = 1500
    partial_checksums: bool = False

    def record(self) -> Recording:
        """Raises `facts.BrokenPromiseError` when the recording is not what it should be."""
        with Lab() as lab:
            path, done = self.steps(lab)
            time.sleep(SETTLE_SECONDS)  # the last acknowledgements, delayed ones too
            recording = Recording(path.interfaces(), path.frames(), done)
        partial = sum(frame.checksum_pending for _interface, frame in recording.frames)
        facts.check(
            {**recording.facts(), **done, "pending": partial},
            (
                *self.promises,
                at_most("largest_ip", self.mtu),
                exactly("checksum_bad", 0),
                # The kernel's own word for it, and what the bytes say.
                *(
                    (at_least("pending", 1), at_least("checksum_partial", 1))
                    if self.partial_checksums
                    else (exactly("pending", 0), exactly("checksum_partial", 0))
                ),
            ),
        )
        return recording

    @property
    def compressed(self) -> bool:
        return File(self.file).suffix == ".gz"

    @property
    def pcapng(self) -> bool:
        return ".pcapng" in File(self.file).suffixes


def _bulk(*families: socket.AddressFamily, size: int, mtu: int = 1500) -> Steps:
    """One connection after the other, on a plain way."""

    def steps(lab: Lab) -> tuple[Path, Mapping[str, int]]:
        path = paths.direct(lab, mtu=mtu)
        _one_after_the_other(path, families, size)
        return path, {}

    return steps


def _one_after_the_other(path: Path, families: tuple[socket.AddressFamily, ...], size: int) -> None:
    for number, family in enumerate(families):
        bulk(path.left, path.right, family, size, source=40001 + number)


def _without_timestamps(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    path = paths.direct(lab)
    path.sysctl("ipv4/tcp_timestamps", "0")
    bulk(path.left, path.right, V4, 192 * KIB)
    return path, {}


def _many_flows(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    path = paths.direct(lab)
    # Three full segments with timestamps at a time.
    many_flows(path.left, path.right, V4, flows=32, write=3 * 1448, rounds=3)
    return path, {}


def _requests(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    path = paths.direct(lab)
    requests(path.left, path.right, V4, 80)
    requests(path.left, path.right, V6, 40)
    return path, {}


def _faults(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    faults = Faults(3, drop=0.025, swap=0.04, duplicate=0.02)
    path = paths.cabled(lab, faults)
    _one_after_the_other(path, (V4, V6), 192 * KIB)
    return path, faults.counts()


def _ecn(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    marking = Marking(5, mark=0.05)
    path = paths.cabled(lab, marking)
    path.sysctl("ipv4/tcp_ecn", "1")
    _one_after_the_other(path, (V4, V6), 128 * KIB)
    return path, {"marked": marking.marked}


def _tagged(*tags: tuple[int, int]) -> Steps:
    def steps(lab: Lab) -> tuple[Path, Mapping[str, int]]:
        path = paths.tagged(lab, *tags)
        _one_after_the_other(path, (V4, V6), 64 * KIB)
        return path, {}

    return steps


def _trains(family: socket.AddressFamily) -> Steps:
    """Equal datagrams, a shorter last one, the most that one call takes, small ones."""
    largest = 1500 - (20 if family == V4 else 40) - 8
    shapes = (
        (8 * 1200, 1200),
        (10 * 1200 + 300, 1200),
        (16 * largest, largest),
        (44 * largest + 1, largest),
        (64 * 100, 100),
        (128 * 64, 64),
        (2 * 700, 700),
    )

    def steps(lab: Lab) -> tuple[Path, Mapping[str, int]]:
        path = paths.direct(lab)
        trains(path.left, path.right, family, shapes)
        trains(path.left, path.right, family, shapes[:2], source=43002, connected=False)
        return path, {}

    return steps


def _sender_checksums(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    path = paths.direct(lab, taps=("left",), transmit_checksum=True)
    _one_after_the_other(path, (V4, V6), 64 * KIB)
    trains(path.left, path.right, V4, ((10 * 1200 + 300, 1200),))
    trains(path.left, path.right, V6, ((10 * 1200 + 300, 1200),))
    return path, {}


def _both_ends(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    path = paths.direct(lab, taps=("left", "right"))
    _one_after_the_other(path, (V4, V6), 48 * KIB)
    return path, {}


def _tunnel(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    path = paths.tunnel(lab)
    _one_after_the_other(path, (V4, V6), 64 * KIB)
    trains(path.left, path.right, V4, ((10 * 1200 + 300, 1200),))
    return path, {}


def _cooked(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    path = paths.twofold(lab)
    _one_after_the_other(path, (V4, V6), 32 * KIB)
    assert path.second is not None
    for number, family in enumerate((V4, V6)):
        bulk(*path.second, family, 32 * KIB, source=40011 + number)
    return path, {}


def _demo(lab: Lab) -> tuple[Path, Mapping[str, int]]:
    faults = Faults(2, drop=0.015, swap=0.03, duplicate=0.015)
    path = paths.cabled(lab, faults)
    mixture.run(path.left, path.right)
    return path, faults.counts()


CONNECTIONS_OF_TWO_FAMILIES = (
    exactly("syn", 4),
    at_least("fin", 4),
    at_least("pure_ack", 4),
    at_least("ipv4", 20),
    at_least("ipv6", 20),
    at_least("longest_run", 4),
)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "demo.pcapng",
        "A bit of everything, at once and on a line with faults: bulk and conversation over TCP, "
        "trains over UDP, both over IPv4 and IPv6; and one or a few of what is never merged: "
        "urgent data, a reset, IP options, fragments, empty datagrams and such without a "
        "checksum, VXLAN's port, ICMP, ARP.",
        _demo,
        (
            at_least("longest_run", 20),
            at_least("pure_ack", 20),
            at_least("syn", 8),
            at_least("fin", 6),
            at_least("rst", 1),
            at_least("urg", 1),
            at_least("udp", 80),
            at_least("udp_empty", 1),
            at_least("udp_without_checksum", 1),
            at_least("fragment", 3),
            at_least("ip_options", 1),
            at_least("icmp", 1),
            at_least("arp", 2),
            at_least("dropped", 1),
            at_least("late", 3),
            at_least("repeated", 1),
            at_most("bytes", 480_000),
        ),
    ),
    Scenario(
        "tcp-bulk-ipv4.pcap",
        "One connection carries 256 KiB over IPv4, with timestamps: runs of equal segments.",
        _bulk(V4, size=256 * KIB),
        (
            exactly("syn", 2),
            at_least("fin", 2),
            at_least("data", 180),
            at_least("tcp_timestamps", 180),
            at_least("longest_run", 20),
        ),
    ),
    Scenario(
        "tcp-bulk-ipv6.pcap",
        "The same over IPv6.",
        _bulk(V6, size=256 * KIB),
        (
            exactly("syn", 2),
            at_least("fin", 2),
            at_least("data", 180),
            at_least("tcp_timestamps", 180),
            at_least("longest_run", 20),
        ),
    ),
    Scenario(
        "tcp-no-timestamps.pcap",
        "192 KiB over IPv4 with net.ipv4.tcp_timestamps=0: 20-byte TCP headers.",
        _without_timestamps,
        (exactly("tcp_timestamps", 0), at_least("data", 130), at_least("longest_run", 20)),
    ),
    Scenario(
        "tcp-32-flows.pcap.gz",
        "32 connections, all open at once, write three segments each in turn. Compressed.",
        _many_flows,
        (exactly("syn", 64), exactly("streams", 64), at_least("data", 32 * 9)),
    ),
    Scenario(
        "tcp-request-response.pcap",
        "Two conversations of short requests and short responses, one at a time: PSH on each "
        "segment, nothing to merge.",
        _requests,
        (exactly("syn", 4), at_least("psh", 240), at_most("longest_run", 1)),
    ),
    Scenario(
        "tcp-loss-reordering.pcap",
        "Two connections of 192 KiB through a forwarder that drops, swaps and duplicates: gaps, "
        "late segments, retransmissions, selective acknowledgements.",
        _faults,
        (
            exactly("syn", 4),
            at_least("dropped", 3),
            at_least("swapped", 5),
            at_least("duplicated", 3),
            at_least("late", 8),
            at_least("repeated", 3),
            at_least("longest_run", 6),
        ),
    ),
    Scenario(
        "tcp-ecn.pcap",
        "Two connections with ECN (RFC 3168) through a forwarder that marks some segments: ECT, "
        "CE, then ECE and CWR.",
        _ecn,
        (
            *CONNECTIONS_OF_TWO_FAMILIES,
            at_least("ect", 100),
            at_least("ce", 4),
            at_least("ece", 4),
            at_least("cwr", 2),
        ),
    ),
    *(
        Scenario(
            f"tcp-mtu-{mtu}.pcap",
            f"Bulk over IPv4, then IPv6, on a link with an MTU of {mtu:,} bytes.",
            _bulk(V4, V6, size=size * KIB, mtu=mtu),
            (*CONNECTIONS_OF_TWO_FAMILIES, exactly("largest_ip", mtu)),
            mtu=mtu,
        )
        for mtu, size in ((1280, 80), (1499, 80), (1500, 80), (9000, 192))
    ),
    Scenario(
        "tcp-vlan.pcap",
        "Bulk over IPv4 and IPv6 with an 802.1Q tag: VLAN 5, priority 3.",
        _tagged((TPID_8021Q, PRIORITY_3 | 5)),
        (*CONNECTIONS_OF_TWO_FAMILIES, at_least("tagged", 80), exactly("double_tagged", 0)),
    ),
    Scenario(
        "tcp-qinq.pcap",
        "Bulk over IPv4 and IPv6 with two tags: 802.1ad VLAN 100 around 802.1Q VLAN 5.",
        _tagged((TPID_8021AD, 100), (TPID_8021Q, 5)),
        (*CONNECTIONS_OF_TWO_FAMILIES, at_least("double_tagged", 80), exactly("tagged", 0)),
    ),
    Scenario(
        "udp-trains-ipv4.pcap",
        "Trains sent with UDP_SEGMENT over IPv4, one call each: 2 to 128 datagrams, all equal or "
        "with a shorter last one; from a connected socket and from another. IDs count up within "
        "a train.",
        _trains(V4),
        (exactly("udp", 293), at_least("longest_run", 45)),
    ),
    Scenario(
        "udp-trains-ipv6.pcap",
        "The same over IPv6.",
        _trains(V6),
        (exactly("udp", 293), at_least("longest_run", 45)),
    ),
    Scenario(
        "sender-checksum-offload.pcap",
        "Captured at the sender, before its device fills in the checksums: what it sent holds "
        "the pseudo-header sum, what it received is complete.",
        _sender_checksums,
        (*CONNECTIONS_OF_TWO_FAMILIES, at_least("udp", 22), at_least("checksum_complete", 8)),
        partial_checksums=True,
    ),
    Scenario(
        "both-ends.pcapng",
        "One file with two interfaces, the two ends of a link: each packet twice, sent and "
        "received.",
        _both_ends,
        (exactly("syn", 8), at_least("fin", 8), at_least("longest_run", 4)),
    ),
    Scenario(
        "tun-raw-ip.pcap",
        "TCP and a UDP train between two TUN devices: IP without a link header (link type 101).",
        _tunnel,
        (*CONNECTIONS_OF_TWO_FAMILIES, at_least("udp", 11)),
    ),
    Scenario(
        "any-cooked.pcap",
        "Every device of a host with two links (Linux cooked v2, link type 276).",
        _cooked,
        (exactly("syn", 8), at_least("fin", 8), at_least("longest_run", 4)),
    ),
)
