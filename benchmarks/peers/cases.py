"""What is measured: on which packets, by which engines, and which figures are set in relation."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.traffic import Traffic

__all__ = ["CHECKS", "CRITERIA", "SERIES", "TRAFFIC", "Criterion", "Series"]

ONE = Traffic("1 flow, batch 64", 64, 1)
MANY = Traffic("64 flows, batch 64, nothing merges", 64, 64)

TRAFFIC = (
    ONE,
    MANY,
    Traffic("1,024 flows, batch 1,024, nothing merges", 1024, 1024),
    Traffic("64 flows, runs of 16, batch 1,024", 1024, 64),
    Traffic("1 flow, batch 64, payload 100", 64, 1, 100),
    Traffic("1 flow, batch 64, IPv6", 64, 1, version=6),
)


@dataclass(frozen=True, slots=True)
class Series:
    """An engine in one of its modes. merges: it is one, not only a part of one.

    largest: packets in a batch that it can take. versions: of IP.
    """

    engine: str
    peer: str
    mode: str
    largest: int = 65536
    versions: tuple[int, ...] = (4, 6)
    merges: bool = True

    def takes(self, traffic: Traffic) -> bool:
        """Whether it can be measured on these packets."""
        return traffic.packets <= self.largest and traffic.version in self.versions


def _dpdk(peer: str, fronts: dict[str, str], suffix: str) -> list[Series]:
    return [
        Series(
            f"DPDK {interface}, {words}{suffix}",
            peer,
            f"{interface} {front}",
            largest=128 if interface == "burst" else 4096,  # RTE_GRO_MAX_BURST_ITEM_NUM
            versions=(4,),
        )
        for front, words in fronts.items()
        for interface in ("burst", "context")
    ]


FRONTS = {"bare": "bare", "parse": "parse", "rte": "parse + rte sum", "ours": "parse + our sum"}
NATIVE = ", native"
OUR_SUM = "our sum alone, in C"

SERIES = (
    Series("netstack-gro, trusted", "ours", "trusted ip"),
    Series("netstack-gro, verified", "ours", "verified ip"),
    Series("netstack-gro, trusted, Ethernet", "ours", "trusted ethernet", versions=(4,)),
    Series("netstack-gro, verified, Ethernet", "ours", "verified ethernet", versions=(4,)),
    *_dpdk("dpdk", FRONTS, ""),
    *_dpdk("dpdk-native", {key: FRONTS[key] for key in ("parse", "rte", "ours")}, NATIVE),
    Series(OUR_SUM, "dpdk", "none ours", 4096, (4,), merges=False),
    Series("rte sum alone", "dpdk", "none rte", 4096, (4,), merges=False),
    Series(f"rte sum alone{NATIVE}", "dpdk-native", "none rte", 4096, (4,), merges=False),
    Series("gVisor, trusted, prebuilt", "gvisor", "trusted prebuilt"),
    Series("gVisor, trusted, built", "gvisor", "trusted built"),
    Series("gVisor, verified, prebuilt", "gvisor", "verified prebuilt"),
    Series("gVisor, verified, built", "gvisor", "verified built"),
    Series("wireguard-go, verified", "wireguard", "verified", largest=128),  # IdealBatchSize
    Series("dpkt, trusted", "dpkt", "trusted"),
    Series("dpkt, verified", "dpkt", "verified"),
)


@dataclass(frozen=True, slots=True)
class Criterion:
    """Our figure over that of the fastest of some others, and what it shall be at most.

    without: an engine whose figure is taken off both sides first, or None.
    """

    case: str
    traffic: Traffic
    engine: str
    against: Sequence[str]
    target: float
    without: str | None = None


def _to_dpdk(
    case: str,
    traffic: Traffic,
    checksums: str,
    front: str,
    target: float,
    without: str | None = None,
) -> list[Criterion]:
    """One for DPDK as its own flags build a program, and one for this very CPU."""
    return [
        Criterion(
            case + suffix,
            traffic,
            f"netstack-gro, {checksums}, Ethernet",
            [f"DPDK {interface}, {FRONTS[front]}{suffix}" for interface in ("burst", "context")],
            target,
            without,
        )
        for suffix in ("", NATIVE)
    ]


def _to(case: str, traffic: Traffic, checksums: str, peer: str, target: float) -> Criterion:
    return Criterion(case, traffic, f"netstack-gro, {checksums}", [peer], target)


CRITERIA = (
    *_to_dpdk("trusted, 1 flow, to DPDK with parsing", ONE, "trusted", "parse", 0.5),
    _to("trusted, 1 flow, to gVisor", ONE, "trusted", "gVisor, trusted, prebuilt", 0.1),
    *_to_dpdk("trusted, 64 flows, to DPDK with parsing", MANY, "trusted", "parse", 0.3),
    _to("trusted, 64 flows, to gVisor", MANY, "trusted", "gVisor, trusted, prebuilt", 0.2),
    *_to_dpdk("verified, 1 flow, to DPDK with rte's sum", ONE, "verified", "rte", 0.5),
    *_to_dpdk(
        "verified, 1 flow, to DPDK with our sum, less it", ONE, "verified", "ours", 0.5, OUR_SUM
    ),
    _to("verified, 1 flow, to gVisor", ONE, "verified", "gVisor, verified, prebuilt", 0.15),
    _to("verified, 1 flow, to wireguard-go", ONE, "verified", "wireguard-go, verified", 0.2),
)

CHECKS = (
    (
        "netstack-gro",
        "IPv4 header sum always; with `verified`, the TCP sum once a merge is at stake",
        "both headers but lengths, sums, sequence, FIN and PSH; IDs that a kernel can restore",
        "no payload; the headers of super-packets, with right sums",
        "the engine, its Packet objects, the call of a Python hook",
    ),
    (
        "DPDK, bare",
        "no sum",
        "MACs, addresses, ports, ack, options, DF, IDs where DF is clear; not TTL, TOS, window",
        "nothing (mbufs are chained); sums of super-packets are left wrong",
        "merging alone: packet type and lengths are set beforehand",
    ),
    ("DPDK, parse", "no sum", "as bare", "as bare", "rte_net_get_ptype before it"),
    (
        "DPDK, parse + sum",
        "IPv4 header and TCP sum of every packet, by rte_ip.h or by our loop",
        "as bare",
        "as bare",
        "parsing and the sums before it",
    ),
    (
        "gVisor",
        "with `verified`, IPv4 header and TCP sum of every packet",
        "addresses, ports, ack, options, TTL, TOS, flow label; not DF, IDs, window",
        "nothing (views are chained); sums of super-packets are left wrong",
        "Enqueue and Flush till empty; `built` also making and releasing PacketBuffers",
    ),
    (
        "wireguard-go",
        "the TCP sum once a merge is at stake; not the IPv4 header's",
        "addresses, ports, ack, options, TTL, TOS, DF; not IDs, window",
        "every payload but the first of a super-packet; IPv4 sum right, TCP sum partial",
        "handleGRO and emptying its tables, without the write",
    ),
    (
        "dpkt",
        "with `verified`, IPv4 header and TCP sum of every packet",
        "as netstack-gro",
        "every payload, twice; sums of super-packets are left wrong",
        "parsing and merging in Python",
    ),
)
"""Who, verifies, compares, copies, measured."""
