"""Inside pmd-pytcp: what a connection gets, and how long its acknowledgements take."""

import asyncio
import errno
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from netstack_gro import Batch, GroConfig, GroDispatcher
from netstack_gro.adapters.pytcp import MessageSink, ReceiveRing, Sessions, StackHook, attach
from netstack_gro.dispatchers import ReadvDispatcher, RecvMmsgDispatcher
from netstack_gro.errors import ConfigError, DeviceDownError, DeviceError, DeviceGoneError
from tests import lab
from tests.builders import tcp4
from tests.pytcp_peer import PAYLOAD, Peer, Stack
from tests.requirements import lacks_root, lacks_tun, require

DATA = bytes(range(256)) * 1024  # four windows


def stream(count: int) -> list[bytes]:
    return [tcp4(bytes(100), seq=1 + 100 * n, ident=n) for n in range(count)]


# --- the stack's default window and delayed acknowledgement --------------------------------------


def transfer(make: Callable[[Stack], Any], *, at_once: int) -> Peer:
    """Send DATA to a connection through the hook that ``make`` returns; None: packet by packet."""

    async def run() -> Peer:
        async with Stack() as stack:
            peer = await stack.connect()
            hook = make(stack)
            gro = GroDispatcher(hook or (lambda packets: None), GroConfig(capacity=64))
            gro.enabled = hook is not None
            plain = StackHook(stack.receive, packet_information=True)
            one_by_one = GroDispatcher(plain)
            one_by_one.enabled = False
            await peer.send(DATA, (gro if hook else one_by_one).dispatch, at_once=at_once)
            peer.connection.close()
            return peer

    return asyncio.run(run())


def told(stack: Stack) -> StackHook:
    return StackHook(stack.receive, tell=Sessions(stack.sockets).tell, packet_information=True)


def in_pieces(stack: Stack) -> StackHook:
    return StackHook(stack.receive, packet_information=True)


def plainly(stack: Stack) -> StackHook:
    return StackHook(stack.receive, pieces=False, packet_information=True)


@pytest.mark.parametrize(
    "make", [told, in_pieces, lambda stack: None], ids=["told", "pieces", "off"]
)
@pytest.mark.parametrize("at_once", [2, 8, 32])
def test_no_window_waits_for_a_delayed_acknowledgement(make: Any, at_once: int) -> None:
    peer = transfer(make, at_once=at_once)
    assert peer.digest.digest() == hashlib.sha256(DATA).digest()
    assert peer.waits <= 1  # the last segment may be by itself


def test_merged_plainly_every_window_waits_which_the_others_would_show() -> None:
    peer = transfer(plainly, at_once=32)
    assert peer.digest.digest() == hashlib.sha256(DATA).digest()
    assert peer.waits >= len(DATA) // 65535 - 1  # the last window ends with a lone segment


def test_a_connection_that_ended_is_not_told_and_the_next_one_is() -> None:
    async def run() -> None:
        async with Stack() as stack:
            sessions = Sessions(stack.sockets)
            answers: list[bool] = []

            def tell(packet: Any, data: bytes) -> bool:
                answers.append(sessions.tell(packet, data))
                return answers[-1]

            hook = StackHook(stack.receive, tell=tell, packet_information=True)
            gro = GroDispatcher(hook)
            for _ in range(2):
                peer = await stack.connect()
                await peer.send(DATA[: 8 * PAYLOAD], gro.dispatch, at_once=8)
                peer.connection.abort()
            gro.dispatch(stream(2))  # of no connection
            assert answers == [True, True, False]

    asyncio.run(run())


# --- the hook ------------------------------------------------------------------------------------


def test_packets_come_in_order_with_packet_information_where_it_is_asked_for() -> None:
    got: list[bytes] = []
    sent = [*stream(3), tcp4(b"", flags=0x10, sport=9)]
    GroDispatcher(StackHook(got.append, packet_information=True)).dispatch(sent)
    assert [piece[:4] for piece in got] == [b"\0\0\x08\0"] * 3
    assert got[0][4:] == sent[0]
    assert got[2][4:] == sent[3]
    got.clear()
    GroDispatcher(StackHook(got.append, pieces=False, max_size=240)).dispatch(stream(4))
    assert [len(piece) for piece in got] == [240, 240]


def test_a_hook_takes_something_to_call() -> None:
    wrong: Any = None
    with pytest.raises(TypeError, match="receive"):
        StackHook(wrong)


def test_attach_refuses_what_has_no_ring() -> None:
    with pytest.raises(TypeError, match="packet handler"):
        attach(object(), lambda hook: pytest.fail("not to be opened"))


class Failing:
    """A source that raises what it is told to, at each turn."""

    name = "eth0"

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.ours, self.theirs = socket.socketpair()
        self.closed = False

    @contextmanager
    def watched(self) -> Iterator[tuple[int]]:
        yield (self.ours.fileno(),)

    def turn(self, _batches: int) -> tuple[int, bool]:
        raise self.errors.pop(0)

    def close(self) -> None:
        self.closed = True
        self.ours.close()
        self.theirs.close()


def test_an_interface_that_is_down_is_read_again_and_one_that_is_gone_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[OSError] = []

    class Former:
        dropped = 5

        def _handle_frame(self, frame: bytes) -> None: ...

        def _count_os_error(self, error: OSError) -> None:
            counted.append(error)

    async def run() -> None:
        down = DeviceDownError("eth0", errno.ENETDOWN, "down")
        source = Failing([down, down, DeviceGoneError("eth0", errno.ENODEV, "gone")])
        opened: Any = source
        former: Any = Former()
        ring = ReceiveRing(former, lambda _hook: opened)
        assert ring.dropped == 5  # whatever is asked of the former ring
        ring.start()
        source.theirs.send(b"x")  # readable from now on
        async with asyncio.timeout(10):
            while source.errors:
                await asyncio.sleep(0)
        await asyncio.sleep(0.01)  # it would raise IndexError if it were read again
        ring.stop()
        assert source.closed

    with caplog.at_level("ERROR", "netstack_gro"):
        asyncio.run(run())
    assert [error.errno for error in counted] == [errno.ENETDOWN, errno.ENETDOWN, errno.ENODEV]
    assert "eth0: not read any more" in caplog.text


# --- in front of a socket pair -------------------------------------------------------------------


def test_packets_are_merged_in_front_of_a_socket_whose_queue_is_short() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sent = stream(60)
    with ours, theirs:
        sink = MessageSink(ours, pieces=False)
        gro = GroDispatcher(sink, GroConfig(capacity=64))
        for packet in sent:
            gro.enqueue(packet)
        gro.flush()
        assert (sink.sent, sink.waiting, sink.dropped) == (1, 0, 0)
        assert len(theirs.recv(1 << 16)) == 40 + 60 * 100


def test_what_finds_no_room_waits_in_order_up_to_the_backlog() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sent = [tcp4(b"x", sport=n) for n in range(100)]
    with ours, theirs:
        theirs.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least that there is
        sink = MessageSink(ours, timeout=0, backlog=50 * 41)
        batch = Batch(capacity=100)
        for packet in sent:
            batch.append(packet)
        GroDispatcher(sink).dispatch(batch)
        went = sink.sent
        assert 0 < went < 50
        assert (sink.waiting, sink.dropped) == (50, 50 - went)
        got = []
        while sink.waiting or len(got) < sink.sent:
            got.append(theirs.recv(100))
            sink.flush()
        assert got == sent[: went + 50]


def test_a_packet_that_no_message_holds_is_dropped_and_the_others_go() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        theirs.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        sink = MessageSink(ours, timeout=0)
        sent = [tcp4(b"a", sport=1), tcp4(bytes(60000), sport=2), tcp4(b"b", sport=3)]
        GroDispatcher(sink).dispatch(sent)
        assert (sink.sent, sink.dropped, sink.waiting) == (2, 1, 0)
        assert [theirs.recv(100) for _ in range(2)] == [sent[0], sent[2]]


@pytest.mark.parametrize("wrong", [{"timeout": -1}, {"timeout": "1"}, {"backlog": -1}])
def test_parameters_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs, pytest.raises(ConfigError, match=next(iter(wrong))):
        MessageSink(ours, **wrong)


def test_a_socket_that_is_gone_is_an_error_and_what_was_not_sent_waits() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours:
        theirs.close()
        sink = MessageSink(ours)
        with pytest.raises(DeviceError, match="cannot be sent to"):
            GroDispatcher(sink).dispatch(stream(2))
        assert sink.waiting == 2


# --- a kernel's TCP, over devices ----------------------------------------------------------------

SIZE = 2 << 20
ROUTE = "10.0.0.1/24"
SOON = {"arp.probe_num": 1, "arp.announce_num": 1, "arp.announce_wait": 1}  # RFC 5227


def transferred(sent: Any, open_source: Any, **made: Any) -> None:
    """Have the stack take what a kernel sends, and hold it to what ``sent`` says."""
    from pmd_net_addr import Ip4IfAddr
    from pmd_pytcp import stack

    async def run() -> Any:
        stack.init(
            **made,
            ip4_host=Ip4IfAddr("10.0.0.2/24"),
            ip6_support=False,
            sysctls={"tcp.rcv_wnd_max": 1 << 20, **SOON},
        )
        (interface,) = stack.interfaces.values()
        ring = attach(interface, open_source)
        await stack.start()
        try:
            return await received(stack, SIZE), ring.dispatcher.stats.engine
        finally:
            await stack.stop()

    (count, digest), stats = asyncio.run(run())
    assert count == SIZE
    assert digest == sent.result(20)
    assert stats.super_packets > 0


async def received(stack: Any, size: int) -> tuple[int, bytes]:
    """What one connection to the stack's port 7 brings."""
    from pmd_pytcp.socket import AddressFamily, SocketType
    from pmd_pytcp.socket import socket as stack_socket

    async with asyncio.timeout(20):
        while not stack.local_ip4_unicast():
            await asyncio.sleep(0.01)
    listening = stack_socket(AddressFamily.INET4, SocketType.STREAM)
    listening.bind(("10.0.0.2", 7))
    listening.listen()
    ready.set()
    connection, _ = await listening.accept(timeout=20)
    digest, count = hashlib.sha256(), 0
    while count < size:
        data = await connection.recv(1 << 16, timeout=20)
        digest.update(data)
        count += len(data)
    connection.close()
    listening.close()
    return count, digest.digest()


ready = threading.Event()


def sending(where: Any) -> Any:
    """Send SIZE bytes from a kernel's TCP, once the stack listens."""
    payload = os.urandom(SIZE)

    def send() -> bytes:
        assert ready.wait(20)
        with socket.create_connection(("10.0.0.2", 7), timeout=20) as outgoing:
            outgoing.sendall(payload)
            outgoing.shutdown(socket.SHUT_WR)
        return hashlib.sha256(payload).digest()

    ready.clear()
    with where:
        return lab.Background(send)


def test_a_kernels_tcp_arrives_whole_through_a_tun() -> None:
    require(lacks_tun())
    from pmd_pytcp import stack

    with lab.Lab() as net, net.namespace() as here:
        made = stack.initialize_interface__tun("tun0")
        try:
            here.up("tun0")
            here.address("tun0", ROUTE)
            config = GroConfig(capacity=32)
            transferred(
                sending(here),
                lambda hook: ReadvDispatcher(os.dup(made["fd"]), hook, config, prefix=4),
                **made,
            )
        finally:
            os.close(made["fd"])


def test_a_kernels_tcp_arrives_whole_through_a_packet_socket() -> None:
    require(lacks_root())
    from pmd_net_addr import MacAddress
    from pmd_pytcp.lib.interface_layer import InterfaceLayer

    mac = "02:00:00:00:00:02"
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "eth0", there, "eth0")
        there.no_offloads("eth0")
        there.address("eth0", ROUTE)
        there.neighbour("eth0", "10.0.0.2", bytes.fromhex(mac.replace(":", "")))
        with here, socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as outgoing:
            outgoing.bind(("eth0", 0))  # protocol 0: for sending only
            config = GroConfig(link="ethernet", capacity=32)
            transferred(
                sending(there),
                lambda hook: RecvMmsgDispatcher("eth0", hook, config),
                fd=outgoing.fileno(),
                layer=InterfaceLayer.L2,
                mac_address=MacAddress(mac),
                interface_name="eth0",
                ip4_dhcp=False,
            )
