"""The packet ring: the same packets as a plain socket has, and no block that stays away."""

import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.config import ChecksumState
from netstack_gro.dispatchers.packet_socket import FanoutGroup, open_packet_socket
from netstack_gro.errors import (
    ConfigError,
    DeviceDownError,
    DeviceError,
    DeviceGoneError,
    UnsupportedError,
)
from netstack_gro.virtio import GsoType, VirtioHeader
from tests import builders, lab
from tests.cables import SOL_PACKET, Cable
from tests.engines import Engine
from tests.requirements import lacks_root, require
from tests.rings import AT_LEISURE_MS, PATIENCE_S, Hook, Seen, drain, numbered, ring, send

SCM_TIMESTAMPNS = 35
PACKET_AUXDATA = 8


@pytest.fixture
def net() -> Iterator[lab.Lab]:
    require(lacks_root())
    with lab.Lab() as net:
        yield net


@pytest.fixture
def cable(net: lab.Lab) -> Iterator[Cable]:
    with Cable(net, mtu=9000) as made:
        yield made


# --- the same packets as by a plain socket -----------------------------------------------------


def plainly(reading: socket.socket, count: int) -> list[Seen]:
    """What a loop of recvmsg(2) makes of the next packets."""
    found = []
    while len(found) < count:
        assert select.select([reading], [], [], PATIENCE_S)[0], found
        data, messages, _flags, _address = reading.recvmsg(1 << 17, 512)
        known = {kind: content for _level, kind, content in messages}
        status, length, _snap, _mac, _net, tci, tpid = struct.unpack("=3I4H", known[PACKET_AUXDATA])
        seconds, nanoseconds = struct.unpack("=qq", known[SCM_TIMESTAMPNS])
        virtio = VirtioHeader.decode(data)
        tagged = bool(status & 0x10)  # TP_STATUS_VLAN_VALID
        state = ChecksumState.UNKNOWN
        if virtio.needs_csum:
            state = ChecksumState.PARTIAL
        elif virtio.data_valid:
            state = ChecksumState.VERIFIED
        found.append(
            Seen(
                data[10:],
                length,
                seconds * 10**9 + nanoseconds,
                tci if tagged else None,
                tpid if tagged else 0,
                state,
                virtio if virtio.gso_type else VirtioHeader(),
            )
        )
    return found


def traffic(cable: Cable) -> Iterator[tuple[bytes, VirtioHeader | None]]:
    """Frames, and how they are described where something is still to be done to them."""
    mac = cable.mac
    for packet in (
        builders.tcp4(bytes(1000)),
        builders.tcp6(b"six"),
        builders.udp4(bytes(8000)),
        builders.udp6(b""),
        b"\x45",
        bytes(100),
    ):
        yield builders.ethernet(packet, destination=mac), None
    tagged = builders.tcp4(b"tagged")
    for tags in ([(0x8100, 0x2005)], [(0x88A8, 7)], [(0x88A8, 7), (0x8100, 9)]):
        yield builders.ethernet(tagged, destination=mac, tags=tags), None
    yield builders.ethernet(bytes(28), destination=b"\xff" * 6, ether_type=0x0806), None
    partial = builders.ethernet(builders.udp4(b"to do", partial=True), destination=mac)
    yield partial, VirtioHeader(flags=1, csum_start=34, csum_offset=6)
    for gso, build, head in (
        (GsoType.TCPV4, builders.tcp4, 54),
        (GsoType.TCPV6, builders.tcp6, 74),
        (GsoType.UDP_L4, builders.udp4, 42),
    ):
        frame = builders.ethernet(build(bytes(range(250)) * 20, partial=True), destination=mac)
        start = head - (8 if gso is GsoType.UDP_L4 else 20)
        offset = 6 if gso is GsoType.UDP_L4 else 16
        yield frame, VirtioHeader(1, gso, head, 1000, start, offset)


def send_all(cable: Cable, frames: list[tuple[bytes, VirtioHeader | None]]) -> None:
    for frame, header in frames:
        if header is None:
            cable.sender.send(frame)
        else:
            cable.send_described(frame, header)


def test_the_same_frames_give_the_same_packets_as_a_plain_socket(
    engine: Engine, cable: Cable
) -> None:
    hook = Hook()
    frames = list(traffic(cable)) * 3
    with cable.near:
        opened = open_packet_socket("eth0", timestamps=True, receive_buffer=4 << 20)
    with (
        opened,
        socket.socket(fileno=os.dup(opened.fileno())) as reading,
        ring(engine, cable, hook) as dispatcher,
    ):
        before = time.time_ns()
        send_all(cable, frames)
        expected = plainly(reading, len(frames))
        assert drain(dispatcher, len(frames)) == len(frames)
        found = [seen for flush in hook.flushes for seen in flush]
        assert [len(seen.data) for seen in found] == [len(seen.data) for seen in expected]
        for one, other in zip(found, expected, strict=True):
            same = one == other  # the differences of large frames take minutes to be explained
            assert same, (replace(one, data=b""), replace(other, data=b""))
        assert before <= expected[0].timestamp_ns <= expected[-1].timestamp_ns <= time.time_ns()
        assert {seen.vlan for seen in expected} == {None, 0x2005, 7}
        assert {seen.virtio.gso_type for seen in expected} == {0, 1, 4, 5}
        assert {seen.checksum.name for seen in expected} == {"UNKNOWN", "PARTIAL"}
        stats = dispatcher.stats
        assert (stats.dropped, stats.truncated, stats.damaged) == (0, 0, 0)
        assert stats.engine.packets_in == len(frames)


def test_without_a_vnet_header_super_packets_are_recognised_by_their_length(
    engine: Engine, cable: Cable
) -> None:
    cable.near.mtu("eth0", 1500)
    found: list[tuple[str, GsoType, ChecksumState]] = []

    def hook(packets: list[Any]) -> None:
        found.extend((packet.verdict.name, packet.gso_type, packet.checksum) for packet in packets)

    options = {"vnet_hdr": False, "timeout_ms": AT_LEISURE_MS, "merge": True}
    with ring(engine, cable, hook, **options) as dispatcher:
        send_all(cable, list(traffic(cable))[-3:])
        send(cable, [cable.frame(b"small")])
        drain(dispatcher, 4)
    assert found == [
        ("ALREADY_AGGREGATED", GsoType.TCPV4, ChecksumState.PARTIAL),
        ("ALREADY_AGGREGATED", GsoType.TCPV6, ChecksumState.PARTIAL),
        ("ALREADY_AGGREGATED", GsoType.UDP_L4, ChecksumState.PARTIAL),
        ("PROTOCOL_OFF", GsoType.NONE, ChecksumState.UNKNOWN),
    ]


def test_segments_of_a_block_are_merged(engine: Engine, cable: Cable) -> None:
    hook = Hook()
    with ring(engine, cable, hook, merge=True, timeout_ms=AT_LEISURE_MS) as dispatcher:
        for number in range(20):
            packet = builders.tcp4(bytes(1000), seq=1000 * number, ident=number)
            cable.sender.send(builders.ethernet(packet, destination=cable.mac))
        assert drain(dispatcher, 20) == 20
        assert dispatcher.stats.blocks == 1
    ((seen,),) = hook.flushes
    assert len(seen.data) == 54 + 20_000
    assert (seen.virtio.gso_type, seen.virtio.gso_size) == (GsoType.TCPV4, 1000)


def test_link_ip_gives_packets_without_their_link_header(engine: Engine, cable: Cable) -> None:
    hook = Hook()
    packets = [builders.tcp4(b"four"), builders.tcp6(b"six")]
    with ring(engine, cable, hook, link="ip", merge=True) as dispatcher:
        for packet in packets:
            cable.sender.send(builders.ethernet(packet, destination=cable.mac))
        drain(dispatcher, 2)
        assert dispatcher.gro.config.link == "ip"
    assert hook.data == packets


def test_what_the_host_sends_is_left_out(engine: Engine, cable: Cable) -> None:
    hook = Hook()
    with ring(engine, cable, hook) as dispatcher, cable.raw(cable.near) as own:
        own.send(cable.frame(b"own"))
        cable.sender.send(cable.frame(b"foreign"))
        drain(dispatcher, 1)
    assert hook.data == [cable.frame(b"foreign")]


def test_the_largest_super_packet_fits_a_block_of_the_derived_size(
    engine: Engine, cable: Cable
) -> None:
    hook = Hook()
    cable.far._set("eth0", gso_max_size=1 << 17)  # or the kernel would cut it on the way
    packet = builders.tcp6(bytes(65535 - 20), partial=True)
    frame = builders.ethernet(packet, destination=cable.mac)
    with ring(engine, cable, hook) as dispatcher:
        cable.send_described(frame, VirtioHeader(1, GsoType.TCPV6, 74, 1000, 54, 16))
        drain(dispatcher, 1)
        assert dispatcher.stats.truncated == 0
    ((seen,),) = hook.flushes
    assert len(seen.data) == len(frame) == 14 + 40 + 65535
    whole = seen.data == frame  # not to be explained byte by byte where it fails
    assert whole


def test_a_frame_that_a_block_is_too_small_for_is_cut_off_and_counted(
    engine: Engine, cable: Cable
) -> None:
    hook = Hook()
    large, small = cable.frame(bytes(8000)), cable.frame(b"small")
    with ring(engine, cable, hook, block_size=4096) as dispatcher:
        for frame in (large, small):
            cable.sender.send(frame)
        drain(dispatcher, 2)
        assert dispatcher.stats.truncated == 1
    first, second = [seen for flush in hook.flushes for seen in flush]
    assert 3000 < len(first.data) < 4096
    assert large.startswith(first.data)
    assert first.wire_length == len(large)
    assert second.data == small


# --- blocks, and the batches that they become --------------------------------------------------


def test_a_block_of_more_packets_than_the_capacity_is_several_batches(
    engine: Engine, cable: Cable
) -> None:
    hook = Hook()
    frames = numbered(cable, range(20))
    with ring(engine, cable, hook, capacity=8, timeout_ms=AT_LEISURE_MS) as dispatcher:
        send(cable, frames)
        assert [dispatcher.dispatch_once(5) for _ in range(3)] == [8, 8, 4]
        assert dispatcher.stats.blocks == 1
    assert hook.data == frames


def test_every_block_comes_round_again(engine: Engine, cable: Cable) -> None:
    hook = Hook()
    frames = numbered(cable, range(600))
    # The kernel's timer may close a block after each of ten frames, where sending takes long.
    with ring(engine, cable, hook, blocks=16, block_size=4096) as dispatcher:
        for start in range(0, 600, 10):
            send(cable, frames[start : start + 10])
            drain(dispatcher, 10)
        stats = dispatcher.stats
    assert hook.data == frames
    assert stats.dropped == 0
    assert stats.blocks >= 60


def test_drops_of_a_full_ring_are_counted_and_add_up(engine: Engine, cable: Cable) -> None:
    hook = Hook()
    frames = numbered(cable, range(200))
    with closing(witness_of(cable)) as witness:

        def send_and_wait() -> None:
            send(cable, frames)
            for _ in frames:  # each of which the ring, opened later, is given first
                assert select.select([witness], [], [], PATIENCE_S)[0]
                witness.recv(4096)

        with ring(engine, cable, hook, blocks=2, block_size=4096) as dispatcher:
            send_and_wait()
            stats = dispatcher.stats
            assert stats.dropped > 0
            assert stats.freezes > 0
            taken = drain(dispatcher, 200 - stats.dropped)
            assert taken + dispatcher.stats.dropped == 200
            send(cable, frames[:1])
            drain(dispatcher, 1)  # and it goes on
            send_and_wait()
    assert hook.data == frames[:taken] + frames[:1]
    assert dispatcher.stats.dropped > 200 - taken  # closed, and nobody had asked


def witness_of(cable: Cable) -> socket.socket:
    with cable.near:
        opened = open_packet_socket("eth0", receive_buffer=4 << 20)
    return socket.socket(fileno=opened.detach())


def test_after_a_hook_s_exception_the_rest_of_the_block_is_delivered(
    engine: Engine, cable: Cable
) -> None:
    failing = [True]

    def fail(packets: list[Any]) -> None:
        if failing.pop():
            raise ZeroDivisionError

    hook = Hook(fail)
    frames = numbered(cable, range(20))
    options = {"capacity": 8, "timeout_ms": AT_LEISURE_MS, "blocks": 2}
    with ring(engine, cable, hook, **options) as dispatcher:
        send(cable, frames)
        with pytest.raises(ZeroDivisionError):
            dispatcher.dispatch_once(5)
        assert dispatcher.stats.blocks == 0
        failing += [True, False]
        assert dispatcher.dispatch_once(5) == 8
        with pytest.raises(ZeroDivisionError):
            dispatcher.dispatch_once(5)
        assert dispatcher.stats.blocks == 1  # given back all the same
        for _ in range(4):
            failing.append(False)
            send(cable, frames[:1])
            drain(dispatcher, 1)
        assert dispatcher.stats.dropped == 0
    assert hook.data == frames + frames[:1] * 4


def test_its_descriptor_is_readable_while_there_is_something_to_dispatch(
    engine: Engine, cable: Cable
) -> None:
    with ring(engine, cable, Hook(), capacity=4, timeout_ms=AT_LEISURE_MS) as dispatcher:
        assert not select.select([dispatcher], [], [], 0)[0]
        send(cable, numbered(cable, range(10)))
        assert select.select([dispatcher], [], [], PATIENCE_S)[0]
        taken = []
        while select.select([dispatcher], [], [], 0)[0]:
            taken.append(dispatcher.dispatch_once(0))
        assert taken == [4, 4, 2]


# --- the life of a ring ------------------------------------------------------------------------


def test_stop_ends_a_ring_without_traffic_within_100_ms(engine: Engine, net: lab.Lab) -> None:
    with Cable(net) as cable, ring(engine, cable, Hook()) as dispatcher:
        running = net.thread(cable.near, dispatcher.run)
        stopped = threading.Timer(0.05, dispatcher.stop)
        stopped.start()
        stopped.join()
        before = time.monotonic()
        assert running.result() == 0
        assert time.monotonic() - before < 0.1


def test_an_interface_that_goes_down_is_told_once_and_can_be_read_again(
    engine: Engine, cable: Cable
) -> None:
    hook = Hook()
    frames = numbered(cable, range(2))
    with ring(engine, cable, hook) as dispatcher:
        send(cable, frames[:1])
        drain(dispatcher, 1)
        cable.near.down("eth0")
        with pytest.raises(DeviceDownError) as caught:
            dispatcher.dispatch_once(5)
        assert (caught.value.name, caught.value.errno) == ("eth0", errno.ENETDOWN)
        assert dispatcher.dispatch_once(0.05) == 0
        cable.near.up("eth0")
        cable.near.wait_for_carrier("eth0")
        cable.far.wait_for_carrier("eth0")  # it sends nothing before it has noticed
        send(cable, frames[1:])
        drain(dispatcher, 1)
    assert hook.data == frames


def test_an_interface_that_is_deleted_during_a_read_is_told_as_gone(
    engine: Engine, net: lab.Lab
) -> None:
    with Cable(net) as cable, ring(engine, cable, Hook()) as dispatcher:
        running = net.thread(cable.near, dispatcher.run)
        cable.near.delete("eth0")
        with pytest.raises(DeviceGoneError) as caught:
            running.result()
    assert (caught.value.name, caught.value.errno) == ("eth0", errno.ENODEV)


def test_what_was_received_before_the_interface_went_down_is_delivered(
    engine: Engine, cable: Cable
) -> None:
    hook = Hook()
    frames = numbered(cable, range(3))
    with ring(engine, cable, hook, timeout_ms=AT_LEISURE_MS) as dispatcher:
        send(cable, frames)
        cable.near.down("eth0")
        count = 0
        told = 0
        while count < 3:
            try:
                count += dispatcher.dispatch_once(5)
            except DeviceDownError:
                told += 1
    assert hook.data == frames
    assert told <= 1


def test_two_rings_of_a_fanout_group_share_the_flows(engine: Engine, cable: Cable) -> None:
    group = FanoutGroup()
    hooks = Hook(), Hook()
    frames = [
        builders.ethernet(builders.udp4(b"flow", sport=1000 + number), destination=cable.mac)
        for number in range(64)
    ] * 2
    with (
        ring(engine, cable, hooks[0], fanout=group) as first,
        ring(engine, cable, hooks[1], fanout=group) as second,
    ):
        send(cable, frames)
        count = 0
        until = time.monotonic() + PATIENCE_S
        while count < len(frames):
            assert time.monotonic() < until
            count += first.dispatch_once(0.01) + second.dispatch_once(0.01)
    assert sorted(hooks[0].data + hooks[1].data) == sorted(frames)
    assert not set(hooks[0].data) & set(hooks[1].data)


@contextmanager
def nothing_left_open() -> Iterator[None]:
    before = sorted(Path("/proc/self/fd").iterdir())
    yield
    assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"block_size": 4095}, "block_size"),
        ({"block_size": 4097}, "block_size"),
        ({"block_size": 1 << 31}, "block_size"),
        ({"blocks": 1}, "blocks"),
        ({"blocks": 1 << 20}, "blocks"),
        ({"blocks": 2.0}, "blocks"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": True}, "timeout_ms"),
    ],
)
def test_a_setting_out_of_range_is_named(
    engine: Engine, cable: Cable, options: dict[str, Any], field: str
) -> None:
    with nothing_left_open(), pytest.raises(ConfigError) as caught:
        ring(engine, cable, Hook(), **options)
    assert caught.value.field == field


def test_a_ring_that_the_kernel_refuses_is_an_error_that_says_how_large_it_was(
    engine: Engine, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.module("dispatchers.ring"), "TPACKET_V3", 9)
    with nothing_left_open(), pytest.raises(DeviceError, match=r"eth0: .* 4 blocks of 131072"):
        ring(engine, cable, Hook())


def test_a_hook_that_is_none_leaves_nothing_open(engine: Engine, cable: Cable) -> None:
    with nothing_left_open(), pytest.raises(TypeError, match="callable"):
        ring(engine, cable, None)


def test_an_interpreter_that_counts_no_references_is_refused(
    engine: Engine, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("sys.getrefcount")
    with nothing_left_open(), pytest.raises(UnsupportedError, match="counts references"):
        ring(engine, cable, Hook())


def test_the_ring_s_vnet_header_is_the_kernel_s_own(engine: Engine, cable: Cable) -> None:
    with ring(engine, cable, Hook()) as dispatcher:
        borrowed = socket.socket(fileno=os.dup(dispatcher.fileno()))
        with borrowed:
            assert borrowed.getsockopt(SOL_PACKET, 15) == 1  # PACKET_VNET_HDR
            assert borrowed.getsockopt(SOL_PACKET, 10) == 2  # PACKET_VERSION: TPACKET_V3
