"""RecvMmsgDispatcher: interfaces and message sockets, many packets in one call."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.errors import ConfigError, DeviceDownError, DeviceGoneError
from netstack_gro.virtio import NEEDS_CSUM, VirtioHeader
from tests import lab, receivers
from tests.builders import ethernet, tcp4, udp4
from tests.engines import Engine
from tests.flushes import Given
from tests.requirements import lacks_root, require

SOL_PACKET, PACKET_VNET_HDR = 263, 15  # include/uapi/linux/if_packet.h


class Hook:
    def __init__(self) -> None:
        self.given: list[Given] = []

    def __call__(self, packets: list[Any]) -> None:
        self.given += [Given.of(packet) for packet in packets]


@contextmanager
def cable() -> Iterator[tuple[lab.Namespace, lab.Namespace, socket.socket]]:
    """Two namespaces with an eth0 each, and a raw socket in the first."""
    require(lacks_root())
    with lab.Lab() as net, ExitStack() as stack:
        far, near = net.namespace(ipv6=False), net.namespace(ipv6=False)
        net.veth(far, "eth0", near, "eth0", mtu=1500)
        for namespace in (far, near):
            namespace.offloads("eth0", gro=False)
        sender = stack.enter_context(far.socket(socket.AF_PACKET, socket.SOCK_RAW))
        sender.bind(("eth0", 0))
        yield far, near, sender


def opened(engine: Engine, near: lab.Namespace, hook: Any, **options: Any) -> Any:
    packet_socket = engine.module("dispatchers.packet_socket")
    module = engine.module("dispatchers.recvmmsg")
    config = options.pop("config", GroConfig(capacity=16, udp=True))
    with near:
        source = packet_socket.open_packet_socket("eth0", **options)
        return module.RecvMmsgDispatcher(source, hook, config)


def test_the_link_layer_is_the_interface_s_whatever_the_configuration_says(
    engine: Engine,
) -> None:
    with cable() as (_far, near, sender):
        hook = Hook()
        with opened(engine, near, hook, config=GroConfig(link="ip")) as dispatcher:
            assert dispatcher.gro.config.link == "ethernet"
            sender.send(ethernet(udp4(b"x")))
            receivers.drain(dispatcher, 1)
            index = near.index("eth0")
        assert hook.given[0].said["interface"] == index
        assert dispatcher.name == "eth0"


def test_a_super_packet_of_the_kernel_comes_with_its_size(engine: Engine) -> None:
    with cable() as (_far, near, sender):
        sender.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        packet = ethernet(tcp4(b"x" * 3000, partial=True))
        header = VirtioHeader(
            NEEDS_CSUM, gso_type=1, hdr_len=54, gso_size=1000, csum_start=34, csum_offset=16
        )
        hook = Hook()
        with opened(engine, near, hook) as dispatcher:
            sender.send(header.encode() + packet)
            receivers.drain(dispatcher, 1)
        (given,) = hook.given
        assert (given.said["gso_size"], given.said["gso_segs"]) == (1000, 3)
        assert [len(segment) for segment in given.segments] == [1054] * 3


def test_without_a_header_what_is_longer_than_the_mtu_is_a_super_packet(engine: Engine) -> None:
    with cable() as (_far, near, sender):
        sender.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        header = VirtioHeader(
            NEEDS_CSUM, gso_type=1, hdr_len=54, gso_size=1000, csum_start=34, csum_offset=16
        )
        hook = Hook()
        with opened(engine, near, hook, vnet_hdr=False) as dispatcher:
            sender.send(header.encode() + ethernet(tcp4(b"x" * 3000, partial=True)))
            sender.send(bytes(10) + ethernet(tcp4(b"x" * 1460, seq=5)))
            receivers.drain(dispatcher, 2)
        verdicts = [given.said["verdict"].name for given in hook.given]
        assert verdicts[0] == "ALREADY_AGGREGATED"
        assert verdicts[1] != "ALREADY_AGGREGATED"


def test_a_vlan_tag_that_the_kernel_took_out_comes_beside_the_packet(engine: Engine) -> None:
    with cable() as (_far, near, sender):
        tagged = ethernet(tcp4(b"x" * 100), tags=[(0x8100, 0x6005)])
        hook = Hook()
        with opened(engine, near, hook) as dispatcher:
            sender.send(tagged)
            sender.send(ethernet(tcp4(b"x" * 100)))
            receivers.drain(dispatcher, 2)
        first, second = hook.given
        assert (first.said["vlan"], first.said["vlan_tpid"]) == (0x6005, 0x8100)
        assert first.data == second.data == ethernet(tcp4(b"x" * 100))
        assert second.said["vlan"] is None


def test_timestamps_are_the_kernel_s(engine: Engine) -> None:
    import time

    with cable() as (_far, near, sender):
        hook = Hook()
        with opened(engine, near, hook, timestamps=True) as dispatcher:
            before = time.time_ns()
            sender.send(ethernet(udp4(b"x")))
            receivers.drain(dispatcher, 1)
            assert before <= hook.given[0].said["timestamp_ns"] <= time.time_ns()


def test_what_the_host_sends_is_left_out(engine: Engine) -> None:
    with cable() as (_far, near, sender):
        hook = Hook()
        with opened(engine, near, hook) as dispatcher:
            with near.socket(socket.AF_PACKET, socket.SOCK_RAW) as own:
                own.bind(("eth0", 0))
                own.send(ethernet(udp4(b"own")))
            sender.send(ethernet(udp4(b"theirs")))
            receivers.drain(dispatcher, 1)
        assert [given.data for given in hook.given] == [ethernet(udp4(b"theirs"))]


def test_an_interface_that_goes_down_is_an_error_and_can_be_read_when_it_is_up_again(
    engine: Engine,
) -> None:
    with cable() as (far, near, sender):
        hook = Hook()
        with opened(engine, near, hook) as dispatcher:
            near.down("eth0")
            with pytest.raises(DeviceDownError, match="eth0: cannot be read: Network is down"):
                dispatcher.run()
            near.up("eth0")
            near.wait_for_carrier("eth0")
            far.wait_for_carrier("eth0")  # it sends nothing before it has noticed
            sender.send(ethernet(udp4(b"again")))
            receivers.drain(dispatcher, 1)
        assert hook.given[0].data == ethernet(udp4(b"again"))


def test_an_interface_that_is_deleted_during_a_read_is_an_error_that_says_so(
    engine: Engine,
) -> None:
    with cable() as (_far, near, _sender), opened(engine, near, Hook()) as dispatcher:
        run = lab.Background(dispatcher.run)
        near.delete("eth0")
        with pytest.raises(DeviceGoneError, match=r"eth0: .*deleted"):
            run.result()


def test_an_interface_that_is_deleted_while_it_is_down_is_found_out_by_the_next_call(
    engine: Engine,
) -> None:
    with cable() as (_far, near, _sender), opened(engine, near, Hook()) as dispatcher:
        near.down("eth0")
        with pytest.raises(DeviceDownError):
            dispatcher.run()
        assert dispatcher.dispatch_once(0) == 0
        near.delete("eth0")
        with pytest.raises(DeviceGoneError, match="eth0: "):
            dispatcher.dispatch_once(5)


def test_what_came_before_the_interface_went_down_is_delivered_first(engine: Engine) -> None:
    with cable() as (_far, near, sender):
        hook = Hook()
        with opened(engine, near, hook) as dispatcher:
            for number in range(3):
                sender.send(ethernet(udp4(bytes([number]))))
            near.down("eth0")
            errors = 0
            while sum(given.said["packets"] for given in hook.given) < 3:
                try:
                    dispatcher.dispatch_once(1)
                except DeviceDownError:
                    errors += 1
            assert errors <= 1


def test_what_found_the_buffer_full_is_counted(engine: Engine) -> None:
    with (
        cable() as (_far, near, sender),
        opened(engine, near, Hook(), receive_buffer=4096) as dispatcher,
    ):
        for _ in range(100):
            sender.send(ethernet(udp4(b"x" * 1000)))
        while dispatcher.dispatch_once(0):
            pass
        stats = dispatcher.stats
        assert stats.dropped > 0
        assert stats.engine.packets_in + stats.dropped == 100


def test_several_dispatchers_share_an_interface_by_flow(engine: Engine) -> None:
    packet_socket = engine.module("dispatchers.packet_socket")
    with cable() as (_far, near, sender), ExitStack() as stack:
        group = packet_socket.FanoutGroup()
        hooks = [Hook() for _ in range(3)]
        dispatchers = [
            stack.enter_context(opened(engine, near, hook, fanout=group)) for hook in hooks
        ]
        for turn in range(3):
            for flow in range(20):
                sender.send(ethernet(udp4(bytes([turn]), sport=1000 + flow)))
        count = 0
        while count < 60:
            count += sum(dispatcher.dispatch_once(0) for dispatcher in dispatchers)
        flows = [
            {segment[34:36] for given in hook.given for segment in given.segments} for hook in hooks
        ]
        assert sum(len(part) for part in flows) == 20
        assert set.union(*flows) == {struct.pack("!H", 1000 + flow) for flow in range(20)}
        assert sum(1 for part in flows if part) > 1


# --- other sockets -------------------------------------------------------------------------------


@contextmanager
def pair(engine: Engine, hook: Any, **options: Any) -> Iterator[tuple[Any, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    module = engine.module("dispatchers.recvmmsg")
    with theirs, module.RecvMmsgDispatcher(ours, hook, **options) as dispatcher:
        yield dispatcher, theirs


@pytest.mark.parametrize("trust", [False, True])
def test_a_peer_s_metadata_is_believed_only_when_told_to(engine: Engine, trust: bool) -> None:
    header = VirtioHeader(
        NEEDS_CSUM, gso_type=1, hdr_len=40, gso_size=100, csum_start=20, csum_offset=16
    )
    hook = Hook()
    with pair(engine, hook, vnet_size=10, trust=trust) as (dispatcher, peer):
        peer.send(header.encode() + tcp4(b"x" * 300, partial=True))
        peer.send(VirtioHeader(flags=2).encode() + udp4(b"x"))
        assert dispatcher.dispatch_once() == 2
    sizes = [given.said["gso_size"] for given in hook.given]
    states = [given.said["checksum"] for given in hook.given]
    assert sizes == ([100, 0] if trust else [0, 0])
    assert states[1] == (ChecksumState.VERIFIED if trust else ChecksumState.UNKNOWN)


def test_a_message_longer_than_its_place_keeps_its_true_length(engine: Engine) -> None:
    hook = Hook()
    with pair(engine, hook, frame_size=100) as (dispatcher, peer):
        peer.send(tcp4(b"x" * 400))
        assert dispatcher.dispatch_once() == 1
        assert dispatcher.stats.truncated == 1
    (given,) = hook.given
    assert given.said["wire_length"] == 440
    assert tcp4(b"x" * 400).startswith(given.data)
    assert len(given.data) >= 100


def test_an_empty_datagram_is_a_packet_and_no_end(engine: Engine) -> None:
    hook = Hook()
    with pair(engine, hook) as (dispatcher, peer):
        peer.send(b"")
        peer.send(udp4(b"x"))
        assert dispatcher.dispatch_once() == 2
        assert not dispatcher.exhausted
    assert [given.data for given in hook.given] == [b"", udp4(b"x")]


def test_a_socket_that_keeps_no_boundaries_is_refused_and_closed(engine: Engine) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        with pytest.raises(ConfigError, match="does not keep the boundaries"):
            engine.module("dispatchers.recvmmsg").RecvMmsgDispatcher(ours, lambda packets: None)
        assert ours.fileno() == -1


def test_it_owns_the_socket_also_where_it_cannot_be_made(engine: Engine) -> None:
    module = engine.module("dispatchers.recvmmsg")
    for wrong in ({"vnet_size": 11}, {"frame_size": 0}):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        number = ours.fileno()
        with theirs, pytest.raises(ConfigError, match=next(iter(wrong))):
            module.RecvMmsgDispatcher(ours, lambda packets: None, **wrong)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)


def test_an_interface_that_does_not_exist_is_named(engine: Engine) -> None:
    require(lacks_root())
    with pytest.raises(DeviceGoneError, match="nowhere7"):
        engine.module("dispatchers.recvmmsg").RecvMmsgDispatcher("nowhere7", lambda packets: None)


def test_a_packet_socket_says_itself_what_is_in_front_of_its_packets(engine: Engine) -> None:
    with cable() as (_far, near, _sender), near:
        source = engine.module("dispatchers.packet_socket").open_packet_socket("eth0")
        with pytest.raises(ConfigError, match="vnet_size"):
            engine.module("dispatchers.recvmmsg").RecvMmsgDispatcher(
                source, lambda packets: None, vnet_size=10
            )


def test_an_empty_message_of_a_connection_hides_nothing_behind_it(engine: Engine) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hook = Hook()
    module = engine.module("dispatchers.recvmmsg")
    with theirs, module.RecvMmsgDispatcher(ours, hook) as dispatcher:
        for message in (b"before", b"", b"behind"):
            theirs.send(message)
        assert dispatcher.dispatch_once() == 2
        assert not dispatcher.exhausted
    assert [given.data for given in hook.given] == [b"before", b"behind"]


def test_packets_that_were_read_when_a_signal_came_are_delivered_by_the_next_call(
    engine: Engine,
) -> None:
    """A handler that raises runs as soon as the read returns, before anything was dispatched."""
    module = engine.module("dispatchers.recvmmsg")

    class Interrupted(module.RecvMmsgDispatcher):  # type: ignore[name-defined,misc]
        __slots__ = ("interrupt",)

        def _fill(self, batch: Any) -> int:
            failure: int = super()._fill(batch)
            if self.interrupt:
                self.interrupt = False
                raise KeyboardInterrupt
            return failure

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    hook = Hook()
    with theirs, Interrupted(ours, hook) as dispatcher:
        dispatcher.interrupt = True
        theirs.send(b"read")
        with pytest.raises(KeyboardInterrupt):
            dispatcher.dispatch_once(0)
        theirs.send(b"later")
        assert dispatcher.dispatch_once(0) == 1
        assert dispatcher.dispatch_once(0) == 1
    assert [given.data for given in hook.given] == [b"read", b"later"]
