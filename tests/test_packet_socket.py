"""Packet sockets: what they see from the first packet on, and how a refusal is told."""

import errno
import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.dispatchers import packet_socket
from netstack_gro.dispatchers.interfaces import Interface
from netstack_gro.dispatchers.packet_socket import FanoutGroup, PacketSocket, open_packet_socket
from netstack_gro.errors import (
    ConfigError,
    DeviceDownError,
    DeviceError,
    DeviceGoneError,
    EngineStateError,
    NotPermittedError,
    UnsupportedError,
)
from netstack_gro.virtio import VirtioHeader
from tests import builders, lab, rights, tuns
from tests.cables import Cable
from tests.requirements import lacks_kernel, lacks_root, lacks_tun, require

pytestmark = pytest.mark.engineless

ETH_P_ALL = 3
SCM_TIMESTAMPNS = 35
OTHER_STATION = b"\x02\x00\x00\x00\x00\x99"


@pytest.fixture
def net() -> Iterator[lab.Lab]:
    require(lacks_root())
    with lab.Lab() as net:
        yield net


@pytest.fixture
def cable(net: lab.Lab) -> Iterator[Cable]:
    with Cable(net) as made:
        yield made


def open_on(cable: Cable, **options: Any) -> PacketSocket:
    with cable.near:
        return open_packet_socket("eth0", **options)


@contextmanager
def looking(opened: PacketSocket) -> Iterator[socket.socket]:
    """The packet socket as a socket object."""
    with opened, socket.socket(fileno=os.dup(opened.fileno())) as reading:
        yield reading


def received(count: int, *readings: socket.socket) -> list[list[bytes]]:
    """What has arrived at each of the sockets, once there are ``count`` frames in all."""
    found: list[list[bytes]] = [[] for _ in readings]
    while True:
        for frames, reading in zip(found, readings, strict=True):
            while True:
                try:
                    frames.append(reading.recv(1 << 17))
                except BlockingIOError:
                    break
        if sum(map(len, found)) >= count:
            return found
        assert select.select(readings, [], [], 10)[0], f"{found} is all that came"


def test_it_knows_the_interface_and_what_stands_in_front_of_a_packet(cable: Cable) -> None:
    with open_on(cable) as opened:
        assert (opened.name, opened.index) == ("eth0", cable.near.index("eth0"))
        assert (opened.link, opened.hardware, opened.mtu) == ("ethernet", 1, 1500)
        assert (opened.vnet_size, opened.auxdata, opened.timestamps) == (10, True, False)
        assert not os.get_blocking(opened.fileno())
    with open_on(cable, vnet_hdr=False, auxdata=False, timestamps=True) as opened:
        assert (opened.vnet_size, opened.auxdata, opened.timestamps) == (0, False, True)


def test_an_interface_may_be_given_by_its_index(cable: Cable) -> None:
    index = cable.near.index("eth0")
    with cable.near, open_packet_socket(index) as opened:
        assert (opened.name, opened.index) == ("eth0", index)


def test_it_sees_frames_with_their_metadata(cable: Cable) -> None:
    frame = cable.frame(b"tagged")
    with looking(open_on(cable, timestamps=True)) as reading:
        cable.sender.send(frame[:12] + bytes.fromhex("88a86abc") + frame[12:])
        data, messages, _flags, _address = reading.recvmsg(65536, 256)
    assert data == VirtioHeader().encode() + frame
    found = {kind: content for _level, kind, content in messages}
    status, length, snapped, _mac, _net, tci, tpid = struct.unpack(
        "=3I4H", found[packet_socket.PACKET_AUXDATA]
    )
    assert status & 0x50 == 0x50  # TP_STATUS_VLAN_VALID, TP_STATUS_VLAN_TPID_VALID
    assert (length, snapped, tci, tpid) == (len(frame), len(frame), 0x6ABC, 0x88A8)
    assert len(found[SCM_TIMESTAMPNS]) == 16


def test_nothing_of_another_interface_slips_in_before_it_is_bound(net: lab.Lab) -> None:
    near, far = net.namespace(ipv6=False), net.namespace(ipv6=False)
    for name in ("eth0", "eth1"):
        net.veth(near, name, far, name)
    foreign, frame = (builders.ethernet(builders.udp4(text)) for text in (b"foreign", b"ours"))
    with far.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender, near:

        def send(_opened: socket.socket) -> None:
            sender.sendto(foreign, ("eth1", 0))

        with looking(open_packet_socket("eth0", prepare=send, vnet_hdr=False)) as reading:
            sender.sendto(frame, ("eth0", 0))
            assert received(1, reading) == [[frame]]


@pytest.mark.parametrize("known", [True, False], ids=["by-option", "by-filter"])
def test_what_the_host_itself_sends_is_left_out(
    cable: Cable, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not known:  # as before Linux 4.20
        monkeypatch.setattr(packet_socket, "PACKET_IGNORE_OUTGOING", 9999)
    ours, theirs = cable.frame(b"ours"), cable.frame(b"theirs")
    with (
        looking(open_on(cable, vnet_hdr=False)) as deaf,
        looking(open_on(cable, vnet_hdr=False, ignore_outgoing=False)) as hearing,
        looking(open_on(cable, vnet_hdr=False, fanout=5)) as member,
        cable.raw(cable.near) as own,
    ):
        own.send(ours)
        cable.sender.send(theirs)
        assert received(4, hearing, deaf, member) == [[ours, theirs], [theirs], [theirs]]


def test_what_is_addressed_to_others_can_be_left_out(cable: Cable) -> None:
    mine = cable.frame(b"mine")
    to_all = cable.frame(b"to all", destination=b"\xff" * 6)
    foreign = cable.frame(b"foreign", destination=OTHER_STATION)
    with (
        looking(open_on(cable, vnet_hdr=False)) as everything,
        looking(open_on(cable, vnet_hdr=False, ignore_others=True)) as own,
    ):
        for frame in (mine, to_all, foreign):
            cable.sender.send(frame)
        assert received(5, everything, own) == [[mine, to_all, foreign], [mine, to_all]]


def test_link_ip_gives_ip_packets_and_nothing_else(cable: Cable) -> None:
    packets = [builders.udp4(b"four"), builders.udp6(b"six")]
    with looking(open_on(cable, link="ip", ignore_others=True)) as reading:
        for packet in packets:
            cable.sender.send(builders.ethernet(packet, destination=cable.mac))
        arp = builders.ethernet(bytes(28), destination=cable.mac, ether_type=0x0806)
        cable.sender.send(arp)
        # A tag that is left in the frame is not IP either.
        tags = [(builders.DOT1AD, 5), (builders.DOT1Q, 6)]
        cable.sender.send(builders.ethernet(packets[0], destination=cable.mac, tags=tags))
        cable.sender.send(builders.ethernet(packets[0], destination=cable.mac, tags=tags[1:]))
        assert received(3, reading) == [[*packets, packets[0]]]


def test_a_tun_device_has_ip_packets_with_a_vnet_header(net: lab.Lab) -> None:
    require(lacks_tun())
    near = net.namespace(ipv6=False)
    packet = builders.udp4(b"from the tun")
    with tuns.opened(near, versions=()) as device, near, open_packet_socket("tun0") as opened:
        assert (opened.link, opened.vnet_size) == ("ip", 10)
        with looking(opened) as reading:
            vnet = bytes(device.vnet_size)
            os.write(device.fileno(), vnet + packet)
            assert received(1, reading) == [[VirtioHeader().encode() + packet]]
    with (
        tuns.opened(near, versions=()),
        near,
        pytest.raises(UnsupportedError, match="no Ethernet headers"),
    ):
        open_packet_socket("tun0", link="ethernet")


def test_the_loopback_interface_has_ethernet_headers(net: lab.Lab) -> None:
    near = net.namespace()
    with (
        near,
        looking(open_packet_socket("lo", vnet_hdr=False)) as reading,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.sendto(b"to myself", ("127.0.0.1", 9))
        ((frame, refusal),) = received(2, reading)  # each once, although sent and received
        assert frame[:14] == bytes(12) + b"\x08\x00"
        assert frame.endswith(b"to myself")
        assert refusal[23] == socket.IPPROTO_ICMP


def test_a_kind_of_device_whose_frames_nobody_knows_is_refused_by_number(
    cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_socket, "LINKS", {})
    with pytest.raises(UnsupportedError, match=r"eth0: .* type 1 .*link='ip'"):
        open_on(cable)
    with open_on(cable, link="ip") as opened:
        assert (opened.link, opened.vnet_size) == ("ip", 0)


def test_a_vnet_header_where_link_headers_are_taken_off_is_refused_with_what_to_do(
    cable: Cable,
) -> None:
    with pytest.raises(UnsupportedError, match=r"eth0: .*vnet_hdr=False"):
        open_on(cable, link="ip", vnet_hdr=True)


def test_the_kernel_refuses_that_too(cable: Cable) -> None:
    with (
        cable.near.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as cooked,
        pytest.raises(OSError) as caught,
    ):
        cooked.setsockopt(packet_socket.SOL_PACKET, packet_socket.PACKET_VNET_HDR, 1)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("interface", ["nowhere", "", "x" * 16, "a\0b", 9999, 0, -1, 2**40])
def test_an_interface_that_does_not_exist_is_named(net: lab.Lab, interface: str | int) -> None:
    with net.namespace(), pytest.raises(DeviceGoneError) as caught:
        open_packet_socket(interface)
    assert caught.value.name == str(interface)
    assert caught.value.errno == errno.ENODEV


def test_without_the_right_it_is_named(net: lab.Lab) -> None:
    with net.namespace(), pytest.raises(NotPermittedError, match="CAP_NET_RAW") as caught:
        rights.with_only((rights.CAP_NET_ADMIN,), lambda: open_packet_socket("lo"))
    assert (caught.value.right, caught.value.name) == ("CAP_NET_RAW", "lo")


def test_an_option_that_the_kernel_does_not_know_is_named(
    cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_socket, "PACKET_AUXDATA", 9999)
    with pytest.raises(UnsupportedError, match="PACKET_AUXDATA"):
        open_on(cable)


def test_the_receive_buffer_is_as_large_as_asked_for_or_says_so(cable: Cable) -> None:
    with open_on(cable) as opened:
        usual = opened.receive_buffer
    with open_on(cable, receive_buffer=32 << 20) as opened:
        assert opened.receive_buffer == 64 << 20  # the kernel doubles it, socket(7)
    with cable.near:
        opened = rights.with_only(
            (rights.CAP_NET_RAW,), lambda: open_packet_socket("lo", receive_buffer=32 << 20)
        )
    with opened:
        assert usual <= opened.receive_buffer < 64 << 20


def test_promiscuous_mode_lasts_as_long_as_the_socket(cable: Cable) -> None:
    def promiscuity() -> int:
        count: int = cable.near._link("eth0").get_attr("IFLA_PROMISCUITY")
        return count

    assert promiscuity() == 0
    with open_on(cable, promiscuous=True):
        assert promiscuity() == 1
    assert promiscuity() == 0


# --- fanout ------------------------------------------------------------------------------------


def flows(cable: Cable, count: int) -> list[bytes]:
    return [
        builders.ethernet(builders.udp4(b"flow", sport=1000 + number), destination=cable.mac)
        for number in range(count)
    ]


def test_a_fanout_group_has_each_flow_on_one_member(cable: Cable) -> None:
    group = FanoutGroup()
    assert group.number is None
    frames = flows(cable, 64)
    with (
        looking(open_on(cable, vnet_hdr=False, fanout=group)) as first,
        looking(open_on(cable, vnet_hdr=False, fanout=group)) as second,
    ):
        assert group.number is not None
        for frame in frames * 3:
            cable.sender.send(frame)
        shares = received(len(frames) * 3, first, second)
    assert sorted(shares[0] + shares[1]) == sorted(frames * 3)
    assert not set(shares[0]) & set(shares[1])
    assert all(shares)


def test_unnumbered_groups_are_groups_of_their_own(cable: Cable) -> None:
    one, other = FanoutGroup(), FanoutGroup()
    (frame,) = flows(cable, 1)
    with (
        looking(open_on(cable, vnet_hdr=False, fanout=one)) as first,
        looking(open_on(cable, vnet_hdr=False, fanout=other)) as second,
    ):
        cable.sender.send(frame)
        assert received(2, first, second) == [[frame], [frame]]
    assert one.number != other.number


def test_all_fragments_of_a_datagram_reach_one_member(cable: Cable) -> None:
    def fragments(ident: int) -> list[bytes]:
        whole = builders.udp(bytes(64), builders.V4_SOURCE, builders.V4_DESTINATION, sport=ident)
        pieces = [(whole[:32], True, 0), (whole[32:64], True, 4), (whole[64:], False, 8)]
        return [
            builders.ethernet(
                builders.ipv4(
                    piece, protocol=17, ident=ident, df=False, mf=more, fragment_offset=at
                ),
                destination=cable.mac,
            )
            for piece, more, at in pieces
        ]

    sent = [fragments(ident) for ident in range(1, 9)]
    with (
        looking(open_on(cable, vnet_hdr=False, fanout=7)) as first,
        looking(open_on(cable, vnet_hdr=False, fanout=7)) as second,
    ):
        for pieces in sent:
            for piece in pieces:
                cable.sender.send(piece)
        shares = received(3 * len(sent), first, second)
    for pieces in sent:
        assert set(pieces) <= set(shares[0]) or set(pieces) <= set(shares[1])


def test_a_group_that_defragments_gives_whole_datagrams(cable: Cable) -> None:
    datagram = builders.udp(bytes(64), builders.V4_SOURCE, builders.V4_DESTINATION)
    with looking(open_on(cable, vnet_hdr=False, fanout=FanoutGroup(defragment=True))) as reading:
        for piece, more, at in ((datagram[:40], True, 0), (datagram[40:], False, 5)):
            packet = builders.ipv4(
                piece, protocol=17, ident=3, df=False, mf=more, fragment_offset=at
            )
            cable.sender.send(builders.ethernet(packet, destination=cable.mac))
        ((frame,),) = received(1, reading)
    assert frame[34:] == datagram


def test_a_member_that_does_not_fit_the_group_is_refused(cable: Cable) -> None:
    with (
        open_on(cable, fanout=11),
        pytest.raises(DeviceError, match="cannot join <FanoutGroup 11>"),
    ):
        open_on(cable, fanout=FanoutGroup(11, defragment=True))


@pytest.mark.parametrize("number", [-1, 65536])
def test_a_group_number_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(ConfigError, match="number"):
        FanoutGroup(number)


# --- what the kernel counts, and what it says when the interface changes -----------------------


def test_drops_are_counted_and_add_up(cable: Cable) -> None:
    frame = cable.frame(bytes(1000))
    with (
        looking(open_on(cable, receive_buffer=1 << 20)) as witness,
        open_on(cable, receive_buffer=8192) as opened,
        looking(opened) as reading,
    ):
        taken = 0
        for _ in range(3):
            for _ in range(50):
                cable.sender.send(frame)
            received(50, witness)
            opened.counters.read(opened.fileno())
            taken += len(received(0, reading)[0])
        counters = opened.counters
        assert counters.dropped > 0
        assert counters.seen == 150 == taken + counters.dropped


def test_an_interface_that_is_down_can_be_opened_and_is_read_once_it_is_up(cable: Cable) -> None:
    cable.near.down("eth0")
    frame = cable.frame(b"up again")
    with looking(open_on(cable, vnet_hdr=False)) as reading:
        assert received(0, reading) == [[]]  # and no error either
        cable.near.up("eth0")
        cable.near.wait_for_carrier("eth0")
        cable.far.wait_for_carrier("eth0")  # it sends nothing before it has noticed
        cable.sender.send(frame)
        assert received(1, reading) == [[frame]]


def test_a_member_may_join_while_the_interface_is_down(cable: Cable) -> None:
    require(lacks_kernel(6, 13))
    cable.near.down("eth0")
    with open_on(cable, fanout=3) as opened:
        assert opened.index


def failure_of(reading: socket.socket, opened: PacketSocket) -> DeviceError:
    poll = select.poll()
    poll.register(reading, 0)
    assert poll.poll(5000) == [(reading.fileno(), select.POLLERR)]
    number = reading.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    assert number == errno.ENETDOWN
    return opened.failure(opened.fileno(), number)


def test_an_interface_that_goes_down_and_one_that_is_deleted_are_told_apart(
    net: lab.Lab, cable: Cable
) -> None:
    with open_on(cable) as opened, looking(opened) as reading:
        cable.near.down("eth0")
        down = failure_of(reading, opened)
        assert type(down) is DeviceDownError
        assert (down.name, down.errno) == ("eth0", errno.ENETDOWN)
        cable.near.up("eth0")
        # The kernel says that it is down in the middle of deleting it: nobody may ask too early.
        told = net.thread(cable.near, failure_of, reading, opened)
        cable.near.delete("eth0")
        gone = told.result()
        assert type(gone) is DeviceGoneError
        assert (gone.name, gone.errno) == ("eth0", errno.ENODEV)


# --- owning ------------------------------------------------------------------------------------


def test_the_descriptor_is_handed_over_by_detach(cable: Cable) -> None:
    opened = open_on(cable)
    descriptor = opened.fileno()
    assert opened.detach() == descriptor
    opened.close()
    with closing(socket.socket(fileno=descriptor)) as owned:
        assert owned.getsockname()[0] == "eth0"
    for method in (opened.fileno, opened.detach):
        with pytest.raises(EngineStateError, match="eth0"):
            method()


def test_closing_twice_does_nothing(cable: Cable) -> None:
    opened = open_on(cable)
    opened.close()
    opened.close()
    with pytest.raises(EngineStateError):
        opened.fileno()


def test_a_socket_that_cannot_be_opened_leaves_no_descriptor(cable: Cable) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with open_on(cable, fanout=11):
        for options in (
            {"fanout": FanoutGroup(11, defragment=True)},
            {"link": "ip", "vnet_hdr": 1},
        ):
            with pytest.raises(DeviceError):
                open_on(cable, **options)
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_an_interface_is_found_without_any_right(net: lab.Lab) -> None:
    near = net.namespace()
    with near:
        assert rights.with_only((), lambda: Interface.find("lo")) == Interface("lo", 1, 772, 65536)
