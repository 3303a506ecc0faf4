"""TunWriter and packets that a TUN does not take as they are: hostile, odd, with a link header."""

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.dispatchers.tun_device import TunDevice
from netstack_gro.errors import ConfigError
from netstack_gro.virtio import GSO_ECN, NEEDS_CSUM, GsoType, VirtioHeader
from tests import builders, lab, tuns
from tests.builders import TCP, UDP
from tests.engines import Engine
from tests.requirements import lacks_kernel, lacks_tun, require
from tests.tuns import FAR, PARTIAL, Router, Written, routed, stream, through, write, writer_to

COMPLETE = GroConfig(udp=True)
SIZES = [1000, 1000, 1000, 300]  # the last one is shorter

SOL_PACKET = 263  # include/linux/socket.h
PACKET_AUXDATA = 8  # include/uapi/linux/if_packet.h
PACKET_VNET_HDR = 15
TP_STATUS_VLAN_VALID = 1 << 4
AUXDATA = struct.Struct("=IIIHHHH")  # struct tpacket_auxdata
ETH_P_ALL = 3  # include/uapi/linux/if_ether.h


@pytest.fixture
def net() -> Iterator[lab.Lab]:
    require(lacks_tun() or lacks_kernel(6, 2))  # before, UDP super-packets are cut
    with lab.Lab() as net:
        yield net


# --- hostile or odd input ------------------------------------------------------------------------

HOSTILE = [
    VirtioHeader(NEEDS_CSUM, csum_start=65000, csum_offset=6),
    VirtioHeader(NEEDS_CSUM, csum_start=0, csum_offset=0),
    VirtioHeader(NEEDS_CSUM, csum_start=2, csum_offset=0),  # within a link header
    VirtioHeader(NEEDS_CSUM, csum_start=20, csum_offset=65535),
    VirtioHeader(0, GsoType.TCPV4, 40, 0, 20, 16),
    VirtioHeader(0, GsoType.TCPV6, 65535, 65535, 0, 0),
    VirtioHeader(NEEDS_CSUM, GsoType.UDP_L4, 1, 1, 20, 6),
    VirtioHeader(NEEDS_CSUM, GsoType.UDP_L4 | GSO_ECN, 48, 100, 40, 6),
    VirtioHeader(NEEDS_CSUM, GsoType.UFO, 28, 8, 20, 6),
    VirtioHeader(NEEDS_CSUM, GsoType.TCPV4 | GSO_ECN, 40, 100, 20, 6),
    VirtioHeader(0xFF, 0xFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF),
]


@pytest.mark.parametrize("link", ["ip", "ethernet"])
@pytest.mark.parametrize("vnet_hdr", [True, False])
def test_a_hostile_header_does_no_harm(
    engine: Engine, net: lab.Lab, link: Any, *, vnet_hdr: bool
) -> None:
    good = [stream(4, TCP, [500], first_id=1)[0], stream(6, UDP, [500])[0]]
    odd = [bytes(20), b"\x45", b"", builders.ipv4(bytes(4), protocol=132, source=FAR[4])]
    with Router(net, vnet_hdr=vnet_hdr) as router:
        writer = writer_to(engine, router.entry)
        offered = 0
        for header in HOSTILE:
            with engine.GroDispatcher(through(writer), replace(PARTIAL, link=link)) as gro:
                for packet in good + odd:
                    gro.enqueue(builders.FRAMES[link](packet), virtio=header)
                    offered += 1
        stats = writer.stats
        assert stats.packets + stats.refused == offered
        assert writer.backlog == stats.dropped == 0
        write(engine, writer, good)
        while router.read(1) != routed(good[:1]):
            pass  # what came of the others
        assert router.read(1) == routed(good[1:])


@pytest.mark.parametrize("link", ["ip", "ethernet"])
@pytest.mark.parametrize("partial", [None, VirtioHeader(NEEDS_CSUM, csum_start=20, csum_offset=0)])
def test_what_is_no_ip_is_refused_and_counted(
    engine: Engine, net: lab.Lab, link: Any, partial: VirtioHeader | None
) -> None:
    good = stream(4, TCP, [10], first_id=1)
    odd = bytes(60) if link == "ip" else builders.ethernet(bytes(60), ether_type=0x0806)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        with engine.GroDispatcher(writer, replace(PARTIAL, link=link)) as gro:
            gro.enqueue(odd, virtio=partial)
            gro.enqueue(builders.FRAMES[link](good[0]))
            gro.enqueue(odd[:-1], virtio=partial)
        assert router.read(1) == routed(good)
    assert (writer.stats.packets, writer.stats.refused) == (1, 2)


# --- link layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [PARTIAL, COMPLETE], ids=["partial", "complete"])
@pytest.mark.parametrize("tags", [(), [(0x8100, 7)], [(0x88A8, 7), (0x8100, 8)]])
def test_the_link_header_is_taken_off_for_a_tun(
    engine: Engine,
    net: lab.Lab,
    monkeypatch: pytest.MonkeyPatch,
    tags: Sequence[tuple[int, int]],
    config: GroConfig,
) -> None:
    packets = stream(4, UDP, SIZES, first_id=1) + stream(6, TCP, SIZES)
    frames = [builders.ethernet(packet, tags=tags) for packet in packets]
    arp = builders.ethernet(b"\0\1\x08\0" + bytes(24), ether_type=0x0806)
    as_if = builders.ethernet(packets[0], ether_type=0x88CC)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        written = Written(monkeypatch)
        write(engine, writer, [*frames, arp, as_if], replace(config, link="ethernet"))
        write(engine, writer, frames[:1], replace(config, link="ethernet"))
        assert router.read(9) == routed([*packets, packets[0]])
    assert (writer.stats.packets, writer.stats.super_packets) == (3, 2)
    assert writer.stats.refused == 2
    assert [(header.hdr_len, header.csum_start) for header in written.headers] == [
        (28, 20),
        (60, 40),
        (0, 0),
    ]


@pytest.mark.parametrize("link", ["ipv4", "null", "loop", "sll", "sll2"])
def test_any_other_link_header_is_taken_off_as_well(
    engine: Engine, net: lab.Lab, link: Any
) -> None:
    packets = stream(4, TCP, SIZES, first_id=1)
    frames = [builders.FRAMES[link](packet) for packet in packets]
    config = GroConfig(link=link, delivered_checksums="partial")
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        write(engine, writer, frames, config)
        assert router.read(4) == routed(packets)
        assert writer.stats.super_packets == 1
        write(engine, through(writer_to(engine, router.entry, tcp=False)), frames, config)
        assert router.read(4) == routed(packets)


def test_a_tap_gets_frames_and_the_tag_that_was_stripped(engine: Engine, net: lab.Lab) -> None:
    packets = stream(4, TCP, SIZES, first_id=1)
    frames = [builders.ethernet(packet) for packet in packets]
    config = GroConfig(link="ethernet", delivered_checksums="partial")
    namespace = net.namespace(ipv6=False)
    with (
        tuns.opened(namespace, "tap0", kind="tap", versions=[4]) as device,
        namespace.socket(socket.AF_PACKET, socket.SOCK_RAW) as seen,
    ):
        for option in (PACKET_VNET_HDR, PACKET_AUXDATA):
            seen.setsockopt(SOL_PACKET, option, 1)
        seen.bind(("tap0", ETH_P_ALL))
        seen.settimeout(tuns.PATIENCE_S)
        writer = writer_to(engine, device)
        for vlan in (None, 0x2005):
            for count in (4, 1):
                with engine.GroDispatcher(writer, config) as gro:
                    for frame in frames[:count]:
                        gro.enqueue(frame, vlan=vlan, vlan_tpid=0x88A8)
                # The kernel has taken a tag that was in the frame out of it again.
                data, control, _flags, _address = seen.recvmsg(70000, 100)
                (status, _length, _snap, _mac, _net, tci, tpid) = AUXDATA.unpack(control[0][2])
                assert bool(status & TP_STATUS_VLAN_VALID) is (vlan is not None)
                assert (tci, tpid) == ((vlan, 0x88A8) if vlan is not None else (0, 0))
                header = VirtioHeader.decode(data)
                assert header.gso_size == (1000 if count > 1 else 0)
                assert list(engine.segment(data[10:], header, link="ethernet")) == frames[:count]


def test_a_tap_cannot_do_without_an_ethernet_header(engine: Engine, net: lab.Lab) -> None:
    with net.namespace(), TunDevice(kind="tap") as device:
        writer = writer_to(engine, device)
        with pytest.raises(ConfigError, match="tap0"):
            write(engine, writer, stream(4, TCP, [10]))
