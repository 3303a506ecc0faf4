"""TunDispatcher: what a real kernel sends into a TUN or TAP, whole or cut."""

import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.dispatchers.tun_device import TunDevice, TunOffloads
from netstack_gro.errors import ConfigError, DeviceGoneError, EngineStateError
from netstack_gro.verdicts import Verdict
from netstack_gro.virtio import GSO_ECN, NEEDS_CSUM, GsoType, VirtioHeader
from tests import builders, lab, tuns
from tests.engines import Engine
from tests.requirements import lacks_kernel, lacks_tun, require
from tests.tuns import FAR, PARTIAL

NONE = TunOffloads.none()
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
PATIENCE_S = 10.0
IP_MTU_DISCOVER = 10  # include/uapi/linux/in.h
IP_PMTUDISC_DO = 2  # sets don't-fragment


@pytest.fixture
def namespace() -> Iterator[lab.Namespace]:
    require(lacks_tun())
    with lab.Lab() as net:
        yield net.namespace()


@pytest.fixture
def quiet() -> Iterator[lab.Namespace]:
    """A namespace without IPv6, which announces itself on every Ethernet."""
    require(lacks_tun())
    with lab.Lab() as net:
        yield net.namespace(ipv6=False)


class Keeper:
    """A hook that keeps everything."""

    def __init__(self) -> None:
        self.packets: list[Any] = []
        self.flushes: list[int] = []

    def __call__(self, packets: list[Any]) -> None:
        self.packets += [packet.detach() for packet in packets]
        self.flushes.append(len(packets))

    @property
    def data(self) -> list[bytes]:
        return [bytes(packet) for packet in self.packets]


def dispatch(dispatcher: Any, packets: int) -> None:
    """Until that many packets were read."""
    while packets > 0:
        read = dispatcher.dispatch_once(timeout=PATIENCE_S)
        assert read, f"{packets} packets never came"
        packets -= read
    assert packets == 0


def datagrams(packets: list[bytes], version: int) -> list[bytes]:
    """The UDP payloads of IP packets, whose checksums must be right."""
    for packet in packets:
        assert builders.fix_checksums(packet) == packet
    return [packet[(20 if version == 4 else 40) + 8 :] for packet in packets]


def pieces(payload: bytes, size: int) -> list[bytes]:
    return [payload[at : at + size] for at in range(0, len(payload), size)]


PAYLOAD = os.urandom(3500)


# --- what the kernel leaves undone ---------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 6])
def test_a_super_packet_of_the_kernel_arrives_as_such(
    engine: Engine, namespace: lab.Namespace, version: int
) -> None:
    require(lacks_kernel(6, 2))
    hook = Keeper()
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(device, hook) as dispatcher,
        namespace.socket(FAMILIES[version], socket.SOCK_DGRAM) as sender,
    ):
        tuns.send_train(sender, FAR[version], PAYLOAD, 1000)
        dispatch(dispatcher, 1)
    (packet,) = hook.packets
    assert (packet.gso_type, packet.gso_size, packet.gso_segs) == (GsoType.UDP_L4, 1000, 4)
    assert packet.packets == 1
    assert packet.link == "ip"
    assert bytes(packet).endswith(PAYLOAD)
    assert datagrams(list(packet.segments()), version) == pieces(PAYLOAD, 1000)


@pytest.mark.parametrize("version", [4, 6])
def test_with_split_it_arrives_as_the_kernel_would_have_cut_it(
    engine: Engine, namespace: lab.Namespace, version: int
) -> None:
    """The same train by the same socket, once into a device that has the kernel cut it."""
    require(lacks_kernel(6, 2))
    hook = Keeper()
    module = engine.module("dispatchers.tun")
    with namespace.socket(FAMILIES[version], socket.SOCK_DGRAM) as sender:
        with tuns.opened(namespace, "tun1", vnet_hdr=False) as device:
            tuns.send_train(sender, FAR[version], PAYLOAD, 1000)
            expected = tuns.read_frames(device, 4)
        with (
            tuns.opened(namespace) as device,
            module.TunDispatcher(device, hook, PARTIAL, split=True) as dispatcher,
        ):
            tuns.send_train(sender, FAR[version], PAYLOAD, 1000)
            dispatch(dispatcher, 1)
            assert dispatcher.stats.engine.packets_out == 4
    assert [packet.verdict for packet in hook.packets] == [Verdict.PROTOCOL_OFF] * 4
    assert {packet.checksum for packet in hook.packets} == {ChecksumState.VERIFIED}
    assert not any(packet.gso_size for packet in hook.packets)
    if version == 4:  # the kernel chooses the first ID, and counts up
        first = int.from_bytes(hook.data[0][4:6], "big")
        ids = [(first + number) & 0xFFFF for number in range(4)]
        assert [int.from_bytes(data[4:6], "big") for data in hook.data] == ids
        expected = [
            builders.fix_checksums(packet[:4] + number.to_bytes(2, "big") + packet[6:])
            for number, packet in zip(ids, expected, strict=True)
        ]
    assert hook.data == expected


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_a_partial_checksum_is_completed_for_small_packets_too(
    engine: Engine, namespace: lab.Namespace, count: int, *, split: bool
) -> None:
    hook = Keeper()
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(device, hook, split=split) as dispatcher,
        namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for number in range(count):
            tuns.send_train(sender, FAR[4], b"small", port=9000 + number)
        dispatch(dispatcher, count)
    assert hook.flushes == [count]
    assert datagrams(hook.data, 4) == [b"small"] * count
    assert {packet.checksum for packet in hook.packets} == {ChecksumState.VERIFIED}
    assert not any(packet.virtio_header().flags for packet in hook.packets)


@pytest.mark.parametrize("split", [False, True])
def test_a_partial_checksum_is_left_to_a_consumer_that_takes_it(
    engine: Engine, namespace: lab.Namespace, *, split: bool
) -> None:
    hook = Keeper()
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(device, hook, PARTIAL, split=split) as dispatcher,
        namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        tuns.send_train(sender, FAR[4], b"small")
        dispatch(dispatcher, 1)
    (packet,) = hook.packets
    assert packet.checksum is ChecksumState.PARTIAL
    assert packet.virtio_header().needs_csum
    completed = engine.complete_checksum(bytes(packet), packet.virtio_header())
    assert datagrams([completed], 4) == [b"small"]


def test_a_partial_checksum_of_any_protocol_is_handed_on_with_split(engine: Engine) -> None:
    packet = builders.ipv4(bytes(12), protocol=33)  # DCCP, RFC 4340
    header = VirtioHeader(NEEDS_CSUM, csum_start=20, csum_offset=6)
    hook = Keeper()
    cutter = engine.module("dispatchers.tun")._Cutter(hook, PARTIAL)
    with engine.GroDispatcher(cutter, PARTIAL) as gro:
        gro.enqueue(packet, virtio=header)
    assert [kept.virtio_header() for kept in hook.packets] == [header]


def test_a_super_packet_can_have_its_checksum_completed_as_well(
    engine: Engine, namespace: lab.Namespace
) -> None:
    require(lacks_kernel(6, 2))
    hook = Keeper()
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(device, hook) as dispatcher,
        namespace.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender,
    ):
        tuns.send_train(sender, FAR[6], PAYLOAD, 1000)
        dispatch(dispatcher, 1)
    assert hook.packets[0].checksum is ChecksumState.VERIFIED
    assert datagrams(hook.data, 6) == [PAYLOAD]


def test_without_offloads_packets_are_merged_here(engine: Engine, namespace: lab.Namespace) -> None:
    hook = Keeper()
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace, offloads=NONE) as device,
        module.TunDispatcher(device, hook, PARTIAL) as dispatcher,
        namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        tuns.send_train(sender, FAR[4], PAYLOAD, 1000)
        dispatch(dispatcher, 4)
    (packet,) = hook.packets
    assert (packet.packets, packet.gso_size, len(packet)) == (4, 1000, 28 + len(PAYLOAD))
    assert bytes(packet).endswith(PAYLOAD)


def test_a_super_packet_with_ecn_is_delivered_and_cut_with_cwr_on_the_first_segment(
    engine: Engine,
) -> None:
    require(lacks_tun())
    flags = builders.ACK | builders.CWR
    sent = tuns.stream(4, builders.TCP, [2500], first_id=1, flags=flags)[0]
    header = struct.pack("=BBHHHH", 0, GsoType.TCPV4 | GSO_ECN, 40, 1000, 0, 0)
    module = engine.module("dispatchers.tun")
    whole, cut = Keeper(), Keeper()
    with lab.Lab() as net, tuns.Router(net, whole=True, versions=[4]) as router:
        for hook, split in ((whole, False), (cut, True)):
            with module.TunDispatcher(router.out, hook, split=split) as dispatcher:
                os.write(router.entry.fileno(), header + sent)
                dispatch(dispatcher, 1)
    (packet,) = whole.packets
    assert packet.virtio_header().gso_type == GsoType.TCPV4 | GSO_ECN
    assert [data[33] & builders.CWR for data in cut.data] == [builders.CWR, 0, 0]
    assert b"".join(data[40:] for data in cut.data) == sent[40:]


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "link_header"), [("tun", 0), ("tap", 14)])
def test_the_largest_super_packets_are_never_cut_off(
    engine: Engine, quiet: lab.Namespace, kind: Any, link_header: int
) -> None:
    require(lacks_kernel(6, 2))
    hook = Keeper()
    # From 65,536 bytes on, link header included, the kernel cuts it itself (gso_max_size).
    largest = os.urandom(65535 - link_header - 28)
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(quiet, kind=kind, mtu=9000, versions=[4]) as device,
        module.TunDispatcher(device, hook, GroConfig(capacity=2)) as dispatcher,
        quiet.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        tuns.send_train(sender, FAR[4], largest, 8972)
        dispatch(dispatcher, 1)
        assert dispatcher.stats.truncated == 0
    (packet,) = hook.packets
    assert len(packet) == packet.wire_length == 65535
    assert packet.gso_segs == 8
    assert datagrams([data[link_header:] for data in packet.segments()], 4) == pieces(largest, 8972)


def test_a_packet_that_is_cut_off_is_noticed(engine: Engine, namespace: lab.Namespace) -> None:
    hook = Keeper()
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace, offloads=NONE) as device,
        module.TunDispatcher(device, hook, PARTIAL, frame_size=500) as dispatcher,
        namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        for _ in range(2):
            tuns.send_train(sender, FAR[4], bytes(1000))
        dispatch(dispatcher, 2)
        assert dispatcher.stats.truncated == 2
    assert [packet.verdict for packet in hook.packets] == [Verdict.TRUNCATED] * 2
    assert all(len(packet) < packet.wire_length for packet in hook.packets)


# --- TAP and queues ------------------------------------------------------------------------------


def test_a_tap_delivers_frames_and_merges_them(engine: Engine, quiet: lab.Namespace) -> None:
    hook = Keeper()
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(quiet, "tap0", kind="tap", offloads=NONE, versions=[4]) as device,
        module.TunDispatcher(device, hook, PARTIAL) as dispatcher,
        quiet.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        tuns.send_train(sender, FAR[4], PAYLOAD, 1000)
        dispatch(dispatcher, 4)
        assert dispatcher.gro.config.link == "ethernet"
        mac = quiet.mac("tap0")
    (packet,) = hook.packets
    assert packet.link == "ethernet"
    assert packet.packets == 4
    assert bytes(packet)[:14] == builders.MAC_DESTINATION + mac + b"\x08\x00"


def test_several_queues_have_a_dispatcher_and_whole_flows_each(
    engine: Engine, namespace: lab.Namespace
) -> None:
    hooks = [Keeper() for _ in range(3)]
    module = engine.module("dispatchers.tun")
    with namespace:
        dispatchers = module.TunDispatcher.open_queues("tun0", hooks, PARTIAL, offloads=NONE)
    tuns.set_up(namespace, dispatchers[0].device, versions=[4])
    flows, each = 48, 3
    with namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        for _ in range(each):
            for flow in range(flows):
                tuns.send_train(sender, FAR[4], b"x" * 100, port=9000 + flow)
    total = 0
    for dispatcher in dispatchers:
        while read := dispatcher.dispatch_once(timeout=0):
            total += read
        assert dispatcher.name == "tun0"
        dispatcher.close()
    assert total == flows * each
    ports = [{data[22:24] for data in hook.data} for hook in hooks]
    assert sum(map(len, ports)) == len(set().union(*ports)) == flows
    assert all(ports)
    assert namespace.interfaces() == ["lo"]


def test_queues_that_cannot_all_be_opened_leave_none(
    engine: Engine, namespace: lab.Namespace
) -> None:
    module = engine.module("dispatchers.tun")
    with namespace, pytest.raises(TypeError, match="hook"):
        module.TunDispatcher.open_queues("tun0", [Keeper(), None])
    assert namespace.interfaces() == ["lo"]


# --- life ----------------------------------------------------------------------------------------


def test_a_device_of_the_callers_outlives_the_dispatcher(
    engine: Engine, namespace: lab.Namespace
) -> None:
    module = engine.module("dispatchers.tun")
    with tuns.opened(namespace) as device:
        for _ in range(2):
            hook = Keeper()
            with (
                module.TunDispatcher(device, hook) as dispatcher,
                namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
            ):
                assert dispatcher.device is device
                assert dispatcher.fileno() != device.fileno()
                tuns.send_train(sender, FAR[4], b"x")
                dispatch(dispatcher, 1)
            assert datagrams(hook.data, 4) == [b"x"]
        assert device.fileno() >= 0


def test_a_device_opened_by_name_goes_with_the_dispatcher(
    engine: Engine, namespace: lab.Namespace
) -> None:
    module = engine.module("dispatchers.tun")
    with namespace:
        dispatcher = module.TunDispatcher("vpn%d", Keeper())
        assert dispatcher.name == dispatcher.device.name == "vpn0"
        dispatcher.close()
        dispatcher.close()
        assert namespace.interfaces() == ["lo"]
        with pytest.raises(EngineStateError):
            dispatcher.fileno()
        with pytest.raises(DeviceGoneError):
            dispatcher.device.fileno()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"config": object()}, TypeError),
        ({"frame_size": 0}, ConfigError),
        ({"hook": None}, TypeError),
    ],
)
def test_a_dispatcher_that_cannot_be_made_leaves_nothing(
    engine: Engine, namespace: lab.Namespace, options: dict[str, Any], error: type[Exception]
) -> None:
    module = engine.module("dispatchers.tun")
    for split in (False, True):
        with namespace, pytest.raises(error):
            module.TunDispatcher("tun0", **{"hook": Keeper(), "split": split, **options})
        assert namespace.interfaces() == ["lo"]


def test_while_the_interface_is_down_there_is_nothing(
    engine: Engine, namespace: lab.Namespace
) -> None:
    hook = Keeper()
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(device, hook) as dispatcher,
        namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        namespace.down(device.name)
        assert dispatcher.dispatch_once(timeout=0) == 0
        assert dispatcher.dispatch_once(timeout=0.01) == 0
        namespace.up(device.name)
        tuns.send_train(sender, FAR[4], b"x")
        dispatch(dispatcher, 1)
    assert datagrams(hook.data, 4) == [b"x"]


class Started:
    """A dispatcher that runs in a thread, and has delivered a packet already."""

    def __init__(self, namespace: lab.Namespace, module: Any, device: TunDevice) -> None:
        delivered = threading.Event()
        self.dispatcher = module.TunDispatcher(device, lambda packets: delivered.set())
        with namespace:
            self.running = lab.Background(self.dispatcher.run)
        with namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            tuns.send_train(sender, FAR[4], b"x")
        assert delivered.wait(PATIENCE_S)


def test_deleting_the_interface_during_a_read_is_told_by_name(
    engine: Engine, namespace: lab.Namespace
) -> None:
    with tuns.opened(namespace) as device:
        started = Started(namespace, engine.module("dispatchers.tun"), device)
        with started.dispatcher:
            namespace.delete(device.name)
            with pytest.raises(DeviceGoneError, match=r"^tun0: ") as caught:
                started.running.result()
            assert (caught.value.name, caught.value.errno) == ("tun0", errno.EBADFD)


@pytest.mark.parametrize("how", ["stop", "close"])
def test_another_thread_ends_it_at_any_time(
    engine: Engine, namespace: lab.Namespace, how: str
) -> None:
    with tuns.opened(namespace) as device:
        started = Started(namespace, engine.module("dispatchers.tun"), device)
        with started.dispatcher:
            getattr(started.dispatcher, how)()
            assert started.running.result() == 1


def test_what_was_read_before_the_end_is_delivered_first(
    engine: Engine, namespace: lab.Namespace
) -> None:
    hook = Keeper()
    module = engine.module("dispatchers.tun")

    def delete(packets: list[Any]) -> None:
        hook(packets)
        namespace.delete("tun0")

    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(device, delete) as dispatcher,
        namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        tuns.send_train(sender, FAR[4], b"first")
        assert dispatcher.dispatch_once(timeout=0) == 1
        with pytest.raises(DeviceGoneError):
            dispatcher.dispatch_once()
    assert datagrams(hook.data, 4) == [b"first"]


@pytest.mark.parametrize("split", [False, True])
def test_what_a_hook_raises_propagates_and_the_next_batch_is_whole(
    engine: Engine, namespace: lab.Namespace, *, split: bool
) -> None:
    hook = Keeper()
    failures = [RuntimeError("a hook's own")]

    def failing(packets: list[Any]) -> None:
        if failures:
            raise failures.pop()
        hook(packets)

    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(device, failing, split=split) as dispatcher,
        namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        tuns.send_train(sender, FAR[4], PAYLOAD, 1000)
        with pytest.raises(RuntimeError, match="a hook's own"):
            dispatcher.dispatch_once(timeout=PATIENCE_S)
        tuns.send_train(sender, FAR[4], b"next")
        dispatch(dispatcher, 1)
    assert datagrams(hook.data, 4) == [b"next"]
