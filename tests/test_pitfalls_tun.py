"""Faults that others had with TUN devices and virtio_net_hdr, on a real kernel.

=====================================================  =============================================
fault reported                                         test
=====================================================  =============================================
kernels that refuse valid GSO writes                   a_kernel_that_refuses_valid_super_packets_...
offload mask survives on a persistent TUN              the_offload_mask_that_a_persistent_device_...
a header or offloads that are there in part            a_kernel_with_some_of_the_offloads_only_...
no way to do without the header                        a_device_can_be_used_without_the_header
a merge routine that crashed, and could not be ended   random_batches_reach_the_wire_...
a peer that did not accept large packets gets them     who_did_not_accept_large_packets_...
checksum capability of the other direction             a_reader_that_said_csum_completes_...
NEEDS_CSUM taken for good                              a_partial_checksum_never_passes_for_...
hdr_len believed                                       a_wrong_length_of_headers_...
DATA_VALID on transmit, wrong offsets and types        what_is_written_is_described_for_...
merged datagrams lost in a tunnel                      udp_can_be_kept_from_merging_apart_...
link header cut wrongly, destination not compared      frames_of_a_tap_with_other_addresses_...
a closed descriptor that is never noticed              a_dispatcher_notices_that_its_device_...
=====================================================  =============================================
"""

import errno
import fcntl
import logging
import os
import random
import socket
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.dispatchers import tun_device
from netstack_gro.dispatchers.tun_device import TunDevice, TunOffloads
from netstack_gro.errors import DeviceGoneError
from netstack_gro.virtio import NEEDS_CSUM, GsoType, VirtioHeader
from tests import builders, lab, tuns
from tests.builders import TCP, UDP
from tests.engines import Engine
from tests.requirements import lacks_kernel, lacks_tun, require
from tests.tuns import FAR, PARTIAL, Router, Written, routed, stream, through, write, writer_to


@pytest.fixture
def net() -> Iterator[lab.Lab]:
    require(lacks_tun() or lacks_kernel(6, 2))
    with lab.Lab() as net:
        yield net


def train_of_three(namespace: lab.Namespace) -> None:
    """Datagrams of 1,000, 1,000 and 500 bytes in one call: what the kernel may leave uncut."""
    with namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        tuns.send_train(sender, FAR[4], bytes(2500), 1000)


# --- devices -------------------------------------------------------------------------------------


@pytest.mark.engineless
def test_the_offload_mask_that_a_persistent_device_keeps_is_not_inherited(net: lab.Lab) -> None:
    """Attached again without a header, aggregates came as one giant packet that nothing described.

    The first reattachment is by hand and shows the fault, or the test would show nothing.
    """
    namespace = net.namespace()
    tuns.opened(namespace, persist=True).close()
    with namespace:
        by_hand = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = tun_device.IFF_TUN | tun_device.IFF_NO_PI
        fcntl.ioctl(by_hand, tun_device.TUNSETIFF, struct.pack("16sH22x", b"tun0", flags))
        train_of_three(namespace)
        inherited = os.read(by_hand, 70000)
        os.close(by_hand)
        with TunDevice("tun0", vnet_hdr=False) as device:
            train_of_three(namespace)
            lengths = [len(frame) for frame in tuns.read_frames(device, 3)]
    assert len(inherited) == 2528
    assert lengths == [1028, 1028, 528]


@pytest.mark.engineless
def test_settings_of_one_attachment_do_not_outlive_the_next(net: lab.Lab) -> None:
    """The mask shrinks and grows again with what each reader is ready for."""
    namespace = net.namespace()
    tuns.opened(namespace, persist=True).close()
    whole, cut = [10 + 2528], [10 + 1028, 10 + 1028, 10 + 528]
    for offloads, expected in (
        (TunOffloads.none(), cut),
        (None, whole),
        (TunOffloads(uso=False), cut),
    ):
        with namespace, TunDevice("tun0", offloads=offloads) as device:
            train_of_three(namespace)
            assert [len(frame) for frame in tuns.read_frames(device, len(expected))] == expected


@pytest.mark.engineless
@pytest.mark.parametrize(
    ("refused", "left"),
    [(0x60, TunOffloads(uso=False)), (0x66, TunOffloads(tso=False, uso=False))],
)
def test_a_kernel_with_some_of_the_offloads_only_still_has_those(
    net: lab.Lab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refused: int,
    left: TunOffloads,
) -> None:
    """Asked for in one call, new and old were refused as a whole; what is left is said once."""

    def ioctl(descriptor: Any, request: int, argument: Any = 0) -> Any:
        if request == tun_device.TUNSETOFFLOAD and argument & refused:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return fcntl.ioctl(descriptor, request, argument)

    caplog.set_level(logging.INFO, logger="netstack_gro")
    monkeypatch.setattr(tun_device, "fcntl", SimpleNamespace(ioctl=ioctl))
    with net.namespace(), TunDevice("tun0") as device:
        assert device.offloads == left
        assert device.vnet_size == 10
    assert len(caplog.records) == 1


@pytest.mark.engineless
def test_this_kernel_has_the_rules_that_the_steps_are_made_for(net: lab.Lab) -> None:
    """TSO and USO go with CSUM only, USO4 and USO6 only together."""
    with net.namespace(), TunDevice("tun0") as device:
        for mask in (0x06, 0x60, 0x21, 0x41):
            with pytest.raises(OSError, match="Invalid argument"):
                fcntl.ioctl(device, tun_device.TUNSETOFFLOAD, mask)
        for mask in (0x67, 0x6F, 0x07, 0x01, 0):
            fcntl.ioctl(device, tun_device.TUNSETOFFLOAD, mask)


def test_a_device_can_be_used_without_the_header(engine: Engine, net: lab.Lab) -> None:
    """An appliance's kernel had it and it did not work: the user's switch, both directions."""
    packets = stream(4, UDP, [500] * 4, first_id=1)
    received: list[bytes] = []
    module = engine.module("dispatchers.tun")
    with Router(net, vnet_hdr=False, versions=[4]) as router:
        write(engine, writer_to(engine, router.entry), packets)
        with module.TunDispatcher(
            router.out, lambda packets: received.extend(map(bytes, packets)), GroConfig()
        ) as dispatcher:
            assert dispatcher.dispatch_once(tuns.PATIENCE_S) == 4
    assert received == routed(packets)


# --- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_a_reader_that_said_csum_completes_small_packets_too(
    engine: Engine, net: lab.Lab, count: int
) -> None:
    """The capability was tied to the other direction, and ten bytes went on with half a sum."""
    namespace = net.namespace()
    hook: list[Any] = []
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(
            device, lambda packets: hook.extend(packet.detach() for packet in packets)
        ) as dispatcher,
        namespace.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        tuns.send_train(sender, FAR[4], b"ten bytes.")
        (raw,) = tuns.read_frames(device, 1)
        header = VirtioHeader.decode(raw)
        assert (header.flags, header.gso_type) == (NEEDS_CSUM, 0)
        assert (header.csum_start, header.csum_offset) == (20, 6)
        assert builders.fix_checksums(raw[10:]) != raw[10:]
        for _ in range(count):
            tuns.send_train(sender, FAR[4], b"ten bytes.")
        assert dispatcher.dispatch_once(tuns.PATIENCE_S) == count
    for packet in hook:
        assert builders.fix_checksums(bytes(packet)) == bytes(packet)
        assert packet.checksum is ChecksumState.VERIFIED


def test_a_partial_checksum_never_passes_for_a_verified_one(engine: Engine, net: lab.Lab) -> None:
    namespace = net.namespace()
    states: list[ChecksumState] = []
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(
            device, lambda packets: states.extend(packet.checksum for packet in packets), PARTIAL
        ) as dispatcher,
    ):
        train_of_three(namespace)
        assert dispatcher.dispatch_once(tuns.PATIENCE_S) == 1
    assert states == [ChecksumState.PARTIAL]


def test_a_wrong_length_of_headers_in_the_vnet_header_is_not_believed(
    engine: Engine, net: lab.Lab
) -> None:
    """It was seen wrong on forwarded packets: here it is, as the first of two is read by hand."""
    packets = stream(4, TCP, [1000, 1000, 300], first_id=1)
    whole = builders.tcp4(
        b"".join(packet[40:] for packet in packets),
        source=packets[0][12:16],
        destination=packets[0][16:20],
        ident=1,
        partial=True,
    )
    hook: list[bytes] = []
    lengths: list[int] = []
    module = engine.module("dispatchers.tun")

    def cut(packets: list[Any]) -> None:
        for packet in packets:
            lengths.append(packet.virtio_header().hdr_len)
            hook.extend(packet.segments())

    with Router(net, whole=True, versions=[4]) as router:
        header = struct.pack("=BBHHHH", NEEDS_CSUM, GsoType.TCPV4, 900, 1000, 20, 16)
        for _ in range(2):
            os.write(router.entry.fileno(), header + whole)
        (frame,) = router.read(1)
        assert VirtioHeader.decode(frame).hdr_len >= 900
        with module.TunDispatcher(router.out, cut, PARTIAL) as dispatcher:
            assert dispatcher.dispatch_once(tuns.PATIENCE_S) == 1
    assert hook == routed(packets)
    assert lengths == [40]


def test_a_dispatcher_notices_that_its_device_is_gone(engine: Engine, net: lab.Lab) -> None:
    """Polled together with another descriptor, the error of this one was never looked at."""
    namespace = net.namespace()
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace) as device,
        module.TunDispatcher(device, lambda packets: None) as dispatcher,
    ):
        running = lab.Background(dispatcher.run)
        namespace.delete("tun0")
        with pytest.raises(DeviceGoneError, match=r"^tun0: "):
            running.result()


# --- writing -------------------------------------------------------------------------------------


def test_a_kernel_that_refuses_valid_super_packets_loses_nothing(
    engine: Engine,
    net: lab.Lab,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A validation patch in stable kernels refused short tails: batches vanished, TCP crawled."""
    packets = stream(4, TCP, [1000, 1000, 500], first_id=1)
    writev = os.writev
    refused = []

    def refusing(descriptor: int, buffers: Any) -> int:
        data = b"".join(buffers)
        if VirtioHeader.decode(data).gso_type:
            refused.append(data)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return writev(descriptor, buffers)

    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        write(engine, writer, packets)
        assert writer.stats.super_packets == 1  # this kernel takes it
        monkeypatch.setattr(os, "writev", refusing)
        for _ in range(3):
            write(engine, writer, packets)
        assert router.read(12) == routed(packets * 4)
    assert not writer.limits.tcp
    assert len(refused) == 2  # it, and the probe that settled it
    assert len(caplog.records) == 1


def test_who_did_not_accept_large_packets_does_not_get_them(engine: Engine, net: lab.Lab) -> None:
    """The intersection counts; what arrives all the same is cut, and nothing spins on it."""
    packets = stream(6, TCP, [1400] * 7)
    with Router(net, vnet_hdr=False) as router:
        writer = writer_to(engine, router.entry)
        write(engine, writer, packets)
        write(engine, through(writer), packets)
        assert router.read(14) == routed(packets * 2)
    assert (writer.stats.packets, writer.stats.cut) == (8, 1)


@pytest.mark.parametrize("config", [PARTIAL, GroConfig(udp=True)], ids=["partial", "complete"])
@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("version", [4, 6])
def test_what_is_written_is_described_for_the_direction_it_goes(
    engine: Engine,
    net: lab.Lab,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    protocol: int,
    config: GroConfig,
) -> None:
    """Seen: DATA_VALID sent, a pseudo-header sum over the wrong bytes, TCP's type on UDP."""
    packets = stream(version, protocol, [700, 700, 1], first_id=1)
    with Router(net) as router:
        written = Written(monkeypatch)
        for given in (packets, packets[:1]):
            with engine.GroDispatcher(writer_to(engine, router.entry), config) as gro:
                for packet in given:
                    gro.enqueue(packet, checksum=ChecksumState.VERIFIED)
        assert router.read(4) == routed([*packets, packets[0]])
    merged, alone = written.frames
    header = written.headers[0]
    network = 20 if version == 4 else 40
    kinds = {(4, TCP): GsoType.TCPV4, (6, TCP): GsoType.TCPV6}
    assert header.flags == NEEDS_CSUM
    assert header.gso_type == kinds.get((version, protocol), GsoType.UDP_L4)
    assert (header.csum_start, header.csum_offset) == (network, 16 if protocol == TCP else 6)
    completed = engine.complete_checksum(merged[10:], header)
    assert builders.fix_checksums(completed) == completed
    assert alone[:10] == bytes(10)


def test_udp_can_be_kept_from_merging_apart_from_tcp(engine: Engine, net: lab.Lab) -> None:
    """Kernels before 6.8.5 lost merged datagrams that were routed into a tunnel device."""
    vxlan = stream(4, UDP, [500] * 3, first_id=1, dport=4789)
    plain = stream(4, UDP, [500] * 3, first_id=9)
    tcp = stream(4, TCP, [500] * 3, first_id=1)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        write(engine, writer, vxlan)
        assert (writer.stats.writes, router.read(3)) == (3, routed(vxlan))
        writer = writer_to(engine, router.entry, udp=False)
        write(engine, writer, plain)
        write(engine, writer, tcp)
        assert router.read(6) == routed(plain + tcp)
        assert (writer.stats.writes, writer.stats.super_packets) == (4, 1)


def test_random_batches_reach_the_wire_as_they_came_while_merging_is_toggled(
    engine: Engine, net: lab.Lab
) -> None:
    """A merge routine crashed in production, and switching one off left things behind."""
    generator = random.Random(9)
    with Router(net) as router:
        writer = writer_to(engine, router.entry)
        with engine.GroDispatcher(writer, PARTIAL) as gro:
            for _ in range(15):
                version, protocol = generator.choice((4, 6)), generator.choice((TCP, UDP))
                sizes = [generator.choice((100, 100, 100, 99, 1)) for _ in range(20)]
                packets = stream(version, protocol, sizes, first_id=generator.randrange(65536))
                for packet in packets:
                    if generator.random() < 0.1:
                        gro.enabled = not gro.enabled
                    gro.enqueue(packet)
                gro.flush()
                assert router.read(len(packets)) == routed(packets)
        assert router.idle
    assert 0 < writer.stats.super_packets < writer.stats.packets


def test_frames_of_a_tap_with_other_addresses_are_not_one_flow(
    engine: Engine, net: lab.Lab
) -> None:
    """The link header was left out of the flow; and a slice of it went missing in one reader."""
    namespace = net.namespace(ipv6=False)
    packets = stream(4, UDP, [100] * 4, first_id=1)
    elsewhere = b"\x02\0\0\0\0\x77"
    frames = [
        builders.ethernet(packet, destination=builders.MAC_DESTINATION if number % 2 else elsewhere)
        for number, packet in enumerate(packets)
    ]
    short = builders.ethernet(b"\x45\0\0\4")  # 18 bytes, of which 4 are not an IP header
    hook: list[bytes] = []
    module = engine.module("dispatchers.tun")
    with (
        tuns.opened(namespace, "tap0", kind="tap", versions=[]) as device,
        module.TunDispatcher(
            device, lambda packets: hook.extend(map(bytes, packets)), PARTIAL
        ) as dispatcher,
        namespace.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender,
    ):
        sender.bind(("tap0", 0))
        for frame in [*frames, short]:
            sender.send(frame)
        assert dispatcher.dispatch_once(tuns.PATIENCE_S) == 5
    assert hook == [*frames, short]
