"""ReadvDispatcher: a packet per read, of any descriptor that keeps their boundaries."""

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.errors import ConfigError, DeviceError, DeviceGoneError
from netstack_gro.virtio import NEEDS_CSUM, VirtioHeader
from tests.builders import tcp4, udp4
from tests.engines import Engine
from tests.flushes import Given


class Hook:
    def __init__(self) -> None:
        self.given: list[Given] = []

    def __call__(self, packets: list[Any]) -> None:
        self.given += [Given.of(packet) for packet in packets]


@contextmanager
def reading(engine: Engine, hook: Any, **options: Any) -> Iterator[tuple[Any, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    options.setdefault("config", GroConfig(capacity=16, udp=True))
    module = engine.module("dispatchers.readv")
    with theirs, module.ReadvDispatcher(ours, hook, **options) as dispatcher:
        yield dispatcher, theirs


def super_packet() -> tuple[bytes, bytes]:
    """A super-packet of three segments, and the virtio_net_hdr that goes with it."""
    packet = tcp4(b"x" * 300, partial=True)
    header = VirtioHeader(
        NEEDS_CSUM, gso_type=1, hdr_len=40, gso_size=100, csum_start=20, csum_offset=16
    )
    return packet, header.encode()


@pytest.mark.parametrize("vnet_size", [10, 12])
def test_a_trusted_header_makes_a_super_packet(engine: Engine, vnet_size: int) -> None:
    packet, header = super_packet()
    hook = Hook()
    with reading(engine, hook, vnet_size=vnet_size, trust=True) as (dispatcher, peer):
        peer.send(header.ljust(vnet_size, b"\0") + packet)
        peer.send(bytes(vnet_size) + udp4(b"plain"))
        assert dispatcher.dispatch_once() == 2
    first, second = hook.given
    assert (first.said["gso_size"], first.said["gso_segs"]) == (100, 3)
    assert [len(segment) for segment in first.segments] == [140, 140, 140]
    assert second.data == udp4(b"plain")
    assert second.said["gso_size"] == 0


def test_a_header_that_is_not_trusted_is_taken_off_and_not_looked_at(engine: Engine) -> None:
    packet, header = super_packet()
    hook = Hook()
    with reading(engine, hook, vnet_size=10) as (dispatcher, peer):
        peer.send(header + packet)
        peer.send(VirtioHeader(flags=2).encode() + udp4(b"x", checksum=1))
        assert dispatcher.dispatch_once() == 2
    assert [given.data for given in hook.given] == [packet, udp4(b"x", checksum=1)]
    for given in hook.given:
        assert given.said["gso_size"] == 0
        assert given.said["checksum"] == ChecksumState.UNKNOWN


def test_packet_information_in_front_of_packets_is_skipped(engine: Engine) -> None:
    hook = Hook()
    packets = [tcp4(bytes(100), seq=1 + 100 * n, ident=n) for n in range(4)]
    with reading(engine, hook, prefix=4) as (dispatcher, peer):
        for packet in packets:
            peer.send(b"\0\0\x08\0" + packet)
        peer.send(b"\0\0\x08")
        assert dispatcher.dispatch_once() == 4
        assert dispatcher.stats.runts == 1
    [given] = hook.given
    assert given.segments == packets


@pytest.mark.parametrize("frame_size", range(190, 260))
def test_packet_information_takes_no_room_from_the_largest_packet(
    engine: Engine, frame_size: int
) -> None:
    hook = Hook()
    packet = tcp4(bytes(frame_size - 40))
    with reading(engine, hook, prefix=4, frame_size=frame_size) as (dispatcher, peer):
        peer.send(b"\0\0\x08\0" + packet)
        assert dispatcher.dispatch_once() == 1
        assert dispatcher.stats.truncated == 0
    assert [given.data for given in hook.given] == [packet]


@pytest.mark.parametrize(
    "options", [{"prefix": 3}, {"prefix": 5}, {"prefix": True}, {"prefix": 4, "vnet_size": 10}]
)
def test_another_prefix_is_refused(engine: Engine, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="prefix"), reading(engine, Hook(), **options):
        pass


@pytest.mark.parametrize("trust", [False, True])
def test_any_header_whatever_is_taken(engine: Engine, trust: bool) -> None:
    """A hostile peer writes what it likes; the packets come through, and nothing raises."""
    hook = Hook()
    packets = [tcp4(bytes([n]) * 100, seq=100 * n, ident=n) for n in range(8)]
    with reading(engine, hook, vnet_size=10, trust=trust) as (dispatcher, peer):
        for seed in range(64):
            headers = [
                bytes((seed * 37 + n * 11 + k * 101) & 0xFF for k in range(10)) for n in range(8)
            ]
            for header, packet in zip(headers, packets, strict=True):
                peer.send(header + packet)
            assert dispatcher.dispatch_once() == 8
        assert dispatcher.stats.engine.packets_in == 8 * 64
    assert sum(given.said["packets"] for given in hook.given) == 8 * 64


def test_what_is_shorter_than_its_header_is_no_packet_and_is_counted(engine: Engine) -> None:
    hook = Hook()
    with reading(engine, hook, vnet_size=10, trust=True) as (dispatcher, peer):
        peer.send(b"123456789")
        peer.send(bytes(10) + udp4(b"whole"))
        assert dispatcher.dispatch_once() == 1
        assert dispatcher.stats.runts == 1
    assert [given.data for given in hook.given] == [udp4(b"whole")]


def test_a_packet_that_was_cut_off_is_delivered_unmerged_and_counted(engine: Engine) -> None:
    hook = Hook()
    packet = tcp4(b"x" * 400)
    with reading(engine, hook, frame_size=100) as (dispatcher, peer):
        peer.send(packet)
        peer.send(tcp4(b"y" * 60))  # exactly as long as the largest
        assert dispatcher.dispatch_once() == 2
        assert dispatcher.stats.truncated == 1
    cut, whole = hook.given
    assert packet.startswith(cut.data)
    assert cut.said["wire_length"] > len(cut.data)
    assert cut.said["verdict"].name == "TRUNCATED"
    assert whole.data == tcp4(b"y" * 60)


def test_views_that_pin_every_slab_are_an_error_before_anything_is_read(engine: Engine) -> None:
    kept: list[memoryview] = []

    def hook(packets: list[Any]) -> None:
        kept.extend(packets[0].buffers())

    config = GroConfig(capacity=1, max_slabs=2)
    with reading(engine, hook, config=config) as (dispatcher, peer):
        for number in range(3):
            peer.send(bytes([number]))
        assert dispatcher.dispatch_once() == 1
        assert dispatcher.dispatch_once() == 1  # into the second slab
        with pytest.raises(BufferError, match="max_slabs"):
            dispatcher.dispatch_once()
        assert [bytes(view) for view in kept] == [b"\0", b"\1"]
        assert dispatcher.stats.slabs_replaced == 1
        kept.clear()
        assert dispatcher.dispatch_once() == 1
        assert [bytes(view) for view in kept] == [b"\2"]


def test_packets_of_a_read_that_failed_later_are_delivered_first(engine: Engine) -> None:
    """The error of the third read waits until the hook has had what the first two gave."""
    hook = Hook()
    module = engine.module("dispatchers.readv")

    class Failing(module.ReadvDispatcher):  # type: ignore[name-defined,misc]
        __slots__ = ("_reads_done",)

        def _fill(self, batch: Any) -> int:
            super()._fill(batch)
            return errno.EIO

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with theirs, Failing(ours, hook, name="dev9") as dispatcher:
        theirs.send(b"one")
        theirs.send(b"two")
        assert dispatcher.dispatch_once() == 2
        with pytest.raises(DeviceError, match="dev9: cannot be read: Input/output error"):
            dispatcher.dispatch_once()
    assert [given.data for given in hook.given] == [b"one", b"two"]


def test_it_owns_the_descriptor_also_where_it_cannot_be_made(engine: Engine) -> None:
    module = engine.module("dispatchers.readv")
    for wrong in (
        {"vnet_size": 11},
        {"frame_size": 0},
        {"frame_size": True},
        {"frame_size": 2**21},
    ):
        receiving, sending = os.pipe()
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            module.ReadvDispatcher(receiving, lambda packets: None, **wrong)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(receiving)
        os.close(sending)


def test_a_descriptor_that_is_not_open_is_an_error_that_names_it(engine: Engine) -> None:
    module = engine.module("dispatchers.readv")
    receiving, sending = os.pipe()
    os.close(receiving)
    os.close(sending)
    with pytest.raises(DeviceGoneError, match=f"descriptor {receiving}: "):
        module.ReadvDispatcher(receiving, lambda packets: None)


def test_it_has_places_for_the_largest_packet_that_never_compete_for_one_cache_set(
    engine: Engine,
) -> None:
    stride_of = engine.module("dispatchers.slab").stride_of
    for vnet_size in (0, 10, 12):
        for frame_size in (None, 1, 1279, 1499, 1500, 1514, 9000, 65535, 65549, 1 << 20):
            stride = stride_of(frame_size, vnet_size)
            largest = 40 + 65535 + 14 + 8 if frame_size is None else frame_size
            assert stride > vnet_size + largest
            assert stride % 64 == 0
            assert stride // 64 % 2 == 1


def test_packets_that_were_read_wait_while_views_leave_no_space_for_headers(
    engine: Engine,
) -> None:
    kept: list[Any] = []
    given: list[bytes] = []

    def hook(packets: list[Any]) -> None:
        given.extend(segment for packet in packets for segment in packet.segments())
        kept.extend(packet.header for packet in packets)

    config = GroConfig(capacity=2, max_slabs=1)
    packets = [tcp4(b"x" * 100, seq=100 * n, ident=n) for n in range(6)]
    with reading(engine, hook, config=config) as (dispatcher, peer):
        for packet in packets:
            peer.send(packet)
        assert dispatcher.dispatch_once() == 2
        for _ in range(2):
            with pytest.raises(BufferError, match="max_slabs"):
                dispatcher.dispatch_once()
        assert given == packets[:2]
        kept.clear()
        assert dispatcher.dispatch_once() == 2
        kept.clear()
        assert dispatcher.dispatch_once() == 2
    assert given == packets
