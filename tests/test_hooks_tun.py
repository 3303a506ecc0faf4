"""TunWriter: what a real kernel makes of what it writes."""

import fcntl
import os
import random
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.dispatchers.tun_device import TunDevice, TunOffloads
from netstack_gro.errors import ConfigError
from netstack_gro.virtio import NEEDS_CSUM, GsoType, VirtioHeader
from tests import builders, lab, tuns
from tests.builders import TCP, UDP
from tests.engines import Engine
from tests.requirements import lacks_kernel, lacks_tun, require
from tests.tuns import (
    BEYOND,
    FAR,
    NEAR,
    PARTIAL,
    Router,
    Written,
    routed,
    stream,
    through,
    write,
    writer_to,
)

VERSIONS_AND_PROTOCOLS = [(4, TCP), (6, TCP), (4, UDP), (6, UDP)]
COMPLETE = GroConfig(udp=True)
SIZES = [1000, 1000, 1000, 300]  # the last one is shorter

TUNSETVNETHDRSZ = 0x400454D8  # include/uapi/linux/if_tun.h


@pytest.fixture
def net() -> Iterator[lab.Lab]:
    require(lacks_tun() or lacks_kernel(6, 2))  # before, UDP super-packets are cut
    with lab.Lab() as net:
        yield net


# --- super-packets -------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [PARTIAL, COMPLETE], ids=["partial", "complete"])
@pytest.mark.parametrize(("version", "protocol"), VERSIONS_AND_PROTOCOLS)
def test_a_super_packet_is_one_write_and_leaves_as_the_wire_packets_it_was(
    engine: Engine, net: lab.Lab, version: int, protocol: int, config: GroConfig
) -> None:
    packets = stream(version, protocol, SIZES, first_id=65534)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        write(engine, writer, packets, config)
        assert router.namespace.traffic("tun0")["rx_packets"] == 1
        assert router.read(len(packets)) == routed(packets)
        assert router.idle
    stats = writer.stats
    assert (stats.packets, stats.super_packets, stats.writes, stats.cut) == (1, 1, 1, 0)
    assert stats.bytes == len(packets[0]) + 1000 + 1000 + 300


@pytest.mark.parametrize(("version", "protocol"), VERSIONS_AND_PROTOCOLS)
def test_a_super_packet_stays_one_where_the_way_out_takes_it(
    engine: Engine, net: lab.Lab, version: int, protocol: int
) -> None:
    packets = stream(version, protocol, SIZES, first_id=1)
    with Router(net, whole=True) as router:
        write(engine, writer_to(engine, router.entry), packets)
        (frame,) = router.read(1)
    header = VirtioHeader.decode(frame)
    assert (header.gso_size, header.flags) == (1000, NEEDS_CSUM)
    assert list(engine.segment(frame[10:], header, link="ip")) == routed(packets)


@pytest.mark.parametrize("version", [4, 6])
def test_a_socket_of_the_kernel_gets_what_was_merged(
    engine: Engine, net: lab.Lab, version: int
) -> None:
    namespace = net.namespace()
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    sizes = [700] * 5 + [1]
    ends = {"source": FAR[version], "destination": NEAR[version]}
    packets = [
        builders.BUILDERS[version, UDP](bytes((size % 251,)) * size, **ends) for size in sizes
    ]
    with (
        tuns.opened(namespace) as device,
        namespace.socket(family, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind((NEAR[version], 9000))
        receiver.settimeout(tuns.PATIENCE_S)
        write(engine, writer_to(engine, device), packets)
        received = [receiver.recv(2000) for _ in sizes]
    assert received == [bytes((size % 251,)) * size for size in sizes]
    counters = namespace.counters()
    assert counters["UdpInCsumErrors"] == counters["Udp6InCsumErrors"] == 0


def test_more_segments_than_a_writev_takes_buffers_are_one_write(
    engine: Engine, net: lab.Lab
) -> None:
    packets = stream(6, TCP, [20] * 2000)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        write(engine, writer, packets, GroConfig(capacity=4096, delivered_checksums="partial"))
        assert writer.stats.writes == writer.stats.super_packets == 1
        # More than its queue holds (txqueuelen 500) comes out of no TUN, so look at the counter.
        assert router.namespace.traffic("tun0")["rx_bytes"] == len(packets[0]) + 1999 * 20
        assert router.read(400) == routed(packets[:400])


def test_what_merges_stays_whole_on_a_device_with_a_link_header(
    engine: Engine, net: lab.Lab
) -> None:
    """gso_max_size counts the link header: one byte more and the kernel would cut."""
    packets = stream(4, TCP, [1110] * 60, first_id=1)
    hook: list[int] = []

    class Noting:
        def __init__(self, sink: Any) -> None:
            self.limits = sink.limits

        def __call__(self, packets: list[Any]) -> None:
            hook.extend(len(packet) for packet in packets)

    with tuns.opened(net.namespace()) as device:
        write(engine, Noting(writer_to(engine, device)), packets)
    assert hook == [40 + 1110 * 58, 40 + 1110 * 2]
    assert 40 + 1110 * 59 <= 65535 < 40 + 1110 * 59 + 14


def test_lone_packets_are_written_as_they_are(engine: Engine, net: lab.Lab) -> None:
    packets = [
        *stream(4, TCP, [100], first_id=1),
        *stream(6, UDP, [100], sport=1),
        builders.ipv4(bytes(30), protocol=99, source=FAR[4], destination=BEYOND[4]),
        *stream(6, TCP, [0], sport=2),
    ]
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        write(engine, writer, packets)
        write(engine, writer, packets[:1])
        assert router.read(5) == routed([*packets, packets[0]])
    assert (writer.stats.packets, writer.stats.super_packets) == (5, 0)


@pytest.mark.parametrize("config", [PARTIAL, COMPLETE], ids=["partial", "complete"])
def test_any_mix_of_flows_arrives_as_it_was(
    engine: Engine, net: lab.Lab, config: GroConfig
) -> None:
    generator = random.Random(4)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        for _batch in range(20):
            flows = []
            for port in range(generator.randint(1, 5)):
                version, protocol = generator.choice(VERSIONS_AND_PROTOCOLS)
                size = generator.randint(1, 1400)
                sizes = [size] * generator.randint(1, 12)
                sizes[-1] = generator.randint(1, size)
                first_id = generator.randrange(65536)
                flows.append(
                    stream(version, protocol, sizes, sport=port, first_id=first_id, fill=port)
                )
            order = [number for number, flow in enumerate(flows) for _packet in flow]
            generator.shuffle(order)
            left = [iter(flow) for flow in flows]
            write(engine, writer, [next(left[number]) for number in order], config)
            out = router.read(sum(map(len, flows)))
            # Each flow in order; flows may change places, as a super-packet comes out in one go.
            for flow in flows:
                mine = routed(flow)
                assert [packet for packet in out if packet in mine] == mine
        assert router.idle
    assert writer.stats.super_packets > 20
    assert writer.stats.cut == writer.stats.refused == 0


# --- equal IPv4 IDs ------------------------------------------------------------------------------


def test_equal_ids_are_merged_where_they_mean_nothing_and_come_out_counted_up(
    engine: Engine, net: lab.Lab
) -> None:
    equal = stream(4, TCP, SIZES)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        assert writer.limits.fixed_ip_ids == "df"
        write(engine, writer, equal)
        out = router.read(len(equal))
        assert out == routed(stream(4, TCP, SIZES, first_id=7))
        assert writer.stats.super_packets == 1
        write(engine, writer, stream(4, TCP, SIZES, df=False))
        assert router.read(len(equal)) == routed(stream(4, TCP, SIZES, df=False))
        assert writer.stats.super_packets == 1


def test_a_consumer_that_minds_the_ids_refuses_to_have_equal_ones_merged(
    engine: Engine, net: lab.Lab
) -> None:
    equal = stream(4, TCP, SIZES)
    with Router(net) as router:
        writer = writer_to(engine, router.entry, fixed_ip_ids="refuse")
        write(engine, writer, equal)
        assert router.read(len(equal)) == routed(equal)
        assert writer.stats.super_packets == 0


# --- what the device takes -----------------------------------------------------------------------


def test_the_limits_are_those_of_the_device(engine: Engine, net: lab.Lab) -> None:
    with net.namespace(), TunDevice("tun0") as full, TunDevice("tun1", vnet_hdr=False) as bare:
        limits = writer_to(engine, full).limits
        assert (limits.tcp, limits.udp, limits.delivered_checksums) == (True, True, "partial")
        limits = writer_to(engine, bare).limits
        assert (limits.tcp, limits.udp, limits.delivered_checksums) == (False, False, "complete")
        limits = writer_to(engine, full, udp=False).limits
        assert (limits.tcp, limits.udp) == (True, False)
        limits = writer_to(engine, full, tcp=False).limits
        assert (limits.tcp, limits.udp) == (False, True)


def test_what_the_reader_is_ready_for_does_not_matter(engine: Engine, net: lab.Lab) -> None:
    packets = stream(4, UDP, SIZES, first_id=1)
    with Router(net, offloads=TunOffloads.none()) as router:
        writer = writer_to(engine, router.entry)
        write(engine, writer, packets)
        assert writer.stats.super_packets == 1
        assert router.read(4) == routed(packets)


@pytest.mark.parametrize(("version", "protocol"), VERSIONS_AND_PROTOCOLS)
@pytest.mark.parametrize("without", ["header", "option", "uso"])
def test_a_super_packet_that_the_device_does_not_take_is_cut(
    engine: Engine,
    net: lab.Lab,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    protocol: int,
    without: str,
) -> None:
    packets = stream(version, protocol, SIZES, first_id=9)
    with Router(net, vnet_hdr=without != "header") as router:
        if without == "uso":  # as a kernel before 6.2
            monkeypatch.setattr(router.entry, "_accepts", TunOffloads(uso=False))
        options = {"tcp": False, "udp": False} if without == "option" else {}
        writer = writer_to(engine, router.entry, **options)
        write(engine, through(writer), packets)
        assert router.read(len(packets)) == routed(packets)
        taken = without == "uso" and protocol == TCP
        assert (writer.stats.cut, writer.stats.super_packets) == ((0, 1) if taken else (1, 0))
        assert writer.stats.packets == 1


def test_a_partial_checksum_is_completed_by_whoever_can(engine: Engine, net: lab.Lab) -> None:
    partial = [stream(4, UDP, [9], sport=number, partial=True)[0] for number in range(3)]
    complete = [stream(4, UDP, [9], sport=number)[0] for number in range(3)]
    header = VirtioHeader(NEEDS_CSUM, csum_start=20, csum_offset=6)
    for vnet_hdr in (True, False):
        with Router(net, vnet_hdr=vnet_hdr) as router:
            writer = writer_to(engine, router.entry)
            for count in (1, 3):
                with engine.GroDispatcher(through(writer), PARTIAL) as gro:
                    for packet in partial[:count]:
                        gro.enqueue(packet, virtio=header)
                assert router.read(count) == routed(complete[:count])


def test_a_header_of_twelve_bytes_is_written_in_full(engine: Engine, net: lab.Lab) -> None:
    packets = stream(4, TCP, SIZES, first_id=1)
    with Router(net) as router:
        fcntl.ioctl(router.entry, TUNSETVNETHDRSZ, struct.pack("=i", 12))
        with TunDevice.from_fd(os.dup(router.entry.fileno())) as device:
            assert device.vnet_size == 12
            writer = writer_to(engine, device)
            write(engine, writer, packets)
            write(engine, writer, packets[:1])
            assert router.read(5) == routed([*packets, packets[0]])
            assert writer.stats.bytes == len(packets[0]) * 2 + 2300


# --- checksums of super-packets that came as such ------------------------------------------------


def whole(version: int, protocol: int, sizes: Sequence[int], **fields: Any) -> bytes:
    """What a kernel hands over in place of `stream` of the same sizes."""
    start = (20 if version == 4 else 40) + (20 if protocol == TCP else 8)
    payload = b"".join(packet[start:] for packet in stream(version, protocol, sizes))
    given = {"source": FAR[version], "destination": BEYOND[version], **fields}
    return builders.BUILDERS[version, protocol](payload, **given)


@pytest.mark.parametrize("config", [PARTIAL, COMPLETE], ids=["partial", "complete"])
@pytest.mark.parametrize(("version", "protocol"), VERSIONS_AND_PROTOCOLS)
def test_a_super_packet_of_a_kernel_goes_on_whole(
    engine: Engine,
    net: lab.Lab,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    protocol: int,
    config: GroConfig,
) -> None:
    kind = GsoType.UDP_L4 if protocol == UDP else GsoType.TCPV4 if version == 4 else GsoType.TCPV6
    start = 20 if version == 4 else 40
    header = VirtioHeader(NEEDS_CSUM, kind, 0, 1000, start, 6 if protocol == UDP else 16)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        written = Written(monkeypatch)
        with engine.GroDispatcher(writer, config) as gro:
            gro.enqueue(whole(version, protocol, SIZES, partial=True), virtio=header)
        assert router.read(4) == routed(
            stream(version, protocol, SIZES, **({"first_id": 0} if version == 4 else {}))
        )
    assert [header.flags for header in written.headers] == [NEEDS_CSUM]


def test_a_checksum_that_nobody_verified_is_not_vouched_for(
    engine: Engine, net: lab.Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel that gets it has to look for itself."""
    header = VirtioHeader(0, GsoType.TCPV4, 40, 1000, 0, 0)
    with tuns.opened(net.namespace()) as device:
        written = Written(monkeypatch)
        for state, flags in (
            (None, 0),
            (ChecksumState.UNKNOWN, 0),
            (ChecksumState.VERIFIED, NEEDS_CSUM),
        ):
            written.headers.clear()
            with engine.GroDispatcher(writer_to(engine, device), COMPLETE) as gro:
                gro.enqueue(whole(4, TCP, SIZES, checksum=1), virtio=header, checksum=state)
            assert [(header.gso_size, header.flags) for header in written.headers] == [
                (1000, flags)
            ]


def test_datagrams_without_a_checksum_do_not_get_one(engine: Engine, net: lab.Lab) -> None:
    """UDP super-packets go with a partial checksum only, so these are cut."""
    header = VirtioHeader(0, GsoType.UDP_L4, 28, 1000, 0, 0)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        with engine.GroDispatcher(writer, COMPLETE) as gro:
            gro.enqueue(whole(4, UDP, SIZES, checksum=0), virtio=header)
        assert router.read(4) == routed(stream(4, UDP, SIZES, first_id=0, checksum=0))
        assert writer.stats.cut == 1


@pytest.mark.parametrize("options", [{"timeout": -1.0}, {"timeout": float("nan")}, {"backlog": -1}])
def test_what_cannot_be_is_a_configuration_error(
    engine: Engine, net: lab.Lab, options: dict[str, Any]
) -> None:
    with net.namespace(), TunDevice() as device:
        (name,) = options
        with pytest.raises(ConfigError, match=f"^{name}: "):
            writer_to(engine, device, **options)
