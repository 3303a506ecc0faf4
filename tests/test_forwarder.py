"""Real TCP between two kernels, through a forwarder in user space that runs the engine.

Each transfer is one between processes in two namespaces whose only way to each other is this
process. Its wire packets are dropped, swapped and duplicated on the way:

    packet socket   TUN -> cable, with faults -> veth -> RecvMmsgDispatcher -> engine -> TUN
    TUN             TUN -> TunDispatcher -> faults -> engine -> TUN

and back TUN -> TunDispatcher -> engine -> TUN. The receiving kernel is the witness: it counts
checksum errors, and how many wire packets the packets stand for that it was given.
"""

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests import forwarder, lab, transfer
from tests.engines import Engine
from tests.requirements import lacks_tun, require

pytestmark = pytest.mark.slow

MTUS = (1280, 1499, 1500, 9000)
NEAR = {4: "10.0.0.1/24", 6: "fd00::1/64"}
FAR = {4: "10.0.0.2/24", 6: "fd00::2/64"}
HOST_GRO_NS = 200_000  # how long the host's own GRO may hold a packet back


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the matrix."""

    version: int
    mtu: int
    offload: bool
    """Whether the kernel in front of the dispatcher merges (its GRO) or does not cut (TSO)."""

    def __str__(self) -> str:
        return f"ipv{self.version}-{self.mtu}-{'offload' if self.offload else 'wire'}"


MATRIX = [Cell(*cell) for cell in itertools.product((4, 6), MTUS, (False, True))]
IN_ALL = {"compiled": 1 << 30, "interpreted": 64 << 20}
"""Bytes over the whole matrix, both ways of the forwarder."""

CHECKSUM_ERRORS = (
    "TcpInCsumErrors",
    "UdpInCsumErrors",
    "UdpLiteInCsumErrors",
    "IcmpInCsumErrors",
    "IpExtInCsumErrors",
    "Udp6InCsumErrors",
    "UdpLite6InCsumErrors",
    "Icmp6InCsumErrors",
)
HEADER_ERRORS = ("IpInHdrErrors", "IpExtInTruncatedPkts", "Ip6InHdrErrors", "Ip6InTruncatedPkts")


def size_of(engine: Engine) -> int:
    """Bytes to transfer in one cell."""
    return -(-IN_ALL[engine.name] // (2 * len(MATRIX)))


@contextmanager
def forwarding(engine: Engine) -> Iterator[forwarder.Forwarder]:
    require(lacks_tun())
    with lab.Lab() as net, ExitStack() as stack:
        yield forwarder.Forwarder(engine, net, stack)


def carry(way: forwarder.Forwarder, cell: Cell, size: int) -> transfer.Transfer:
    """Send from the near end to the far one, and hold both kernels to no error at all."""
    address = FAR[cell.version].partition("/")[0]
    done = transfer.run(way.net, way.near, way.far, address, size, seed=cell.mtu)
    assert done.received == done.sent == size
    assert done.digest_received == done.digest_sent
    for namespace in (way.near, way.far):
        counters = namespace.counters()
        found = {name: counters[name] for name in CHECKSUM_ERRORS + HEADER_ERRORS}
        assert not any(found.values()), found
    return done


def gap(size: int, mtu: int) -> int:
    """Packets to the next fault at most: each kind strikes several times."""
    return max(4, min(400, forwarder.data_packets(size, mtu) // 15))


def hold_to_faults(counts: forwarder.Counts, done: transfer.Transfer, mtu: int) -> None:
    """That packets were dropped, swapped and duplicated, and the sender noticed."""
    assert counts.data >= forwarder.data_packets(done.sent, mtu)
    assert min(counts.dropped, counts.swapped, counts.duplicated) >= 2, counts
    assert done.retransmits >= counts.dropped


def hold_to_super_packets(far: lab.Namespace, writer: Any, mtu: int) -> None:
    """That the kernel took super-packets, by what it said to the writer and by its counters."""
    assert writer.stats.super_packets > 0
    assert writer.stats.cut == writer.stats.refused == writer.stats.dropped == writer.backlog == 0
    traffic = far.traffic("tun0")
    assert traffic["rx_bytes"] > traffic["rx_packets"] * mtu  # larger than a wire carries
    assert traffic["rx_dropped"] == traffic["rx_errors"] == 0


@pytest.mark.parametrize("cell", MATRIX, ids=str)
def test_tcp_arrives_whole_from_a_packet_socket_to_a_tun(engine: Engine, cell: Cell) -> None:
    hold_a_veth_to_the_rules(engine, cell, forwarder.Forwarder.read_interface)


@pytest.mark.parametrize("cell", [Cell(4, 1500, False), Cell(6, 1500, True)], ids=str)
def test_tcp_arrives_whole_from_a_packet_ring_to_a_tun(engine: Engine, cell: Cell) -> None:
    hold_a_veth_to_the_rules(engine, cell, forwarder.Forwarder.read_ring)


def hold_a_veth_to_the_rules(engine: Engine, cell: Cell, read: Callable[..., Any]) -> None:
    size = size_of(engine)
    with forwarding(engine) as way:
        way.net.veth(way.middle, "out", way.middle, "in", mtu=cell.mtu)
        way.middle.no_offloads("out")
        way.middle.no_offloads("in")
        if cell.offload:
            way.middle.offloads("in", gro=True)
            way.middle.sysfs("in", "gro_flush_timeout", HOST_GRO_NS)
        near = way.tun(way.near, NEAR[cell.version], cell.mtu, vnet_hdr=False)
        far = way.tun(way.far, FAR[cell.version], cell.mtu)
        writer = way.writer(far)
        reader = read(way, "in", writer)
        way.read_tun(far, way.writer(near))
        cable = forwarder.Cable(
            way.net,
            way.middle,
            near.fileno(),
            "out",
            destination=way.middle.mac("in"),
            seed=cell.mtu,
            gap=gap(size, cell.mtu),
        )
        done = carry(way, cell, size)
        hold_to_faults(cable.unplug(), done, cell.mtu)
        hold_to_super_packets(way.far, writer, cell.mtu)
        stats = reader.stats.engine
        merged_before = stats.bytes_in > stats.packets_in * (14 + cell.mtu)
        assert merged_before == cell.offload
        assert stats.super_packets > 0 or merged_before


@pytest.mark.parametrize("cell", MATRIX, ids=str)
def test_tcp_arrives_whole_from_a_tun_to_a_tun(engine: Engine, cell: Cell) -> None:
    size = size_of(engine)
    with forwarding(engine) as way:
        near = way.tun(
            way.near,
            NEAR[cell.version],
            cell.mtu,
            offloads=None if cell.offload else way.no_offloads(),
        )
        far = way.tun(way.far, FAR[cell.version], cell.mtu)
        writer = way.writer(far)
        merging = way.gro(writer)
        faults = forwarder.Faults[Any](seed=cell.mtu, gap=gap(size, cell.mtu))
        wire = forwarder.FaultyWire(faults, merging, engine.Limits(tcp=False))
        reader = way.read_tun(near, wire, split=cell.offload)
        way.read_tun(far, way.writer(near))
        done = carry(way, cell, size)
        hold_to_faults(faults.counts, done, cell.mtu)
        assert reader.stats.engine.packets_out >= forwarder.data_packets(size, cell.mtu)
        assert merging.stats.super_packets > 0
        hold_to_super_packets(way.far, writer, cell.mtu)


@pytest.mark.parametrize("version", [4, 6])
def test_super_packets_of_the_kernel_go_from_tun_to_tun_as_they_are(
    engine: Engine, version: int
) -> None:
    cell = Cell(version, 1500, offload=True)
    size = size_of(engine)
    with forwarding(engine) as way:
        near = way.tun(way.near, NEAR[version], cell.mtu)
        far = way.tun(way.far, FAR[version], cell.mtu)
        writer = way.writer(far)
        reader = way.read_tun(near, writer)
        way.read_tun(far, way.writer(near))
        carry(way, cell, size)
        assert reader.stats.engine.packets_in < forwarder.data_packets(size, cell.mtu) / 2
        hold_to_super_packets(way.far, writer, cell.mtu)


@pytest.mark.parametrize("version", [4, 6])
def test_super_packets_and_partial_checksums_of_a_veth_reach_a_tun_and_the_way_back(
    engine: Engine, version: int
) -> None:
    cell = Cell(version, 1500, offload=True)
    size = size_of(engine)
    with forwarding(engine) as way:
        way.net.veth(way.near, "eth0", way.middle, "in", mtu=cell.mtu)
        way.near.address("eth0", NEAR[version])
        way.near.neighbour("eth0", FAR[version].partition("/")[0], way.middle.mac("in"))
        far = way.tun(way.far, FAR[cell.version], cell.mtu)
        writer = way.writer(far)
        reader = way.read_interface("in", writer)
        with way.middle.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
            out.bind(("in", 0))
            back = forwarder.FrameSender(
                out, way.near.mac("eth0"), way.middle.mac("in"), writer.limits
            )
            way.read_tun(far, back)
            carry(way, cell, size)
            assert reader.stats.engine.packets_in < forwarder.data_packets(size, cell.mtu) / 2
            hold_to_super_packets(way.far, writer, cell.mtu)


def test_many_connections_arrive_whole_through_several_queues(engine: Engine) -> None:
    cell = Cell(4, 1500, offload=False)
    size = size_of(engine) // 5
    with forwarding(engine) as way:
        address, mtu = NEAR[4], cell.mtu
        near = way.tun(way.near, address, mtu, multi_queue=True, offloads=way.no_offloads())
        far = way.tun(way.far, FAR[4], mtu, multi_queue=True)
        nears = [near, *(way.queue(near, way.near) for _ in range(2))]
        fars = [far, *(way.queue(far, way.far) for _ in range(2))]
        writers = [way.writer(queue) for queue in fars]
        for queue, writer in zip(nears, writers, strict=True):
            way.read_tun(queue, writer)
        for queue, back in zip(fars, nears, strict=True):
            way.read_tun(queue, way.writer(back))
        sending = [way.net.thread(way.near, carry, way, cell, size) for _ in range(10)]
        for one in sending:
            one.result(transfer.SILENCE_S)
        # Which queue a connection takes is chance: that all ten take one, one in twenty thousand.
        merging = [writer for writer in writers if writer.stats.super_packets]
        assert len(merging) > 1  # by chance all ten take one queue in one run of 20,000
        for writer in merging:
            hold_to_super_packets(way.far, writer, mtu)
