"""UdpDispatcher on real sockets: every datagram once, in order, with its own boundary."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from netstack_gro.dispatchers.addresses import PacketInfo
from netstack_gro.errors import EngineStateError
from tests import lab
from tests.datagrams import (
    FAMILIES,
    LOOPBACK,
    Received,
    bodies,
    dispatch,
    equal_bodies,
    receiving,
    send_train,
    sending_to,
)
from tests.engines import Engine
from tests.requirements import lacks_root, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

COUNTS = (1, 2, 3, 44, 63, 64, 65, 127, 128)
SIZES = (1, 2, 100, 511, 1200, 1399, 1472)
LARGEST = {socket.AF_INET: 65_493, socket.AF_INET6: 65_473}  # that lo leaves in one piece


@pytest.fixture
def idle(engine: Engine) -> Iterator[tuple[Any, Received]]:
    """A dispatcher on loopback to which nothing was sent yet."""
    with receiving(engine, ("127.0.0.1", 0)) as opened:
        yield opened


# --- trains -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shorter", [False, True])
def test_trains_of_1_to_128_datagrams_over_loopback(
    engine: Engine, family: socket.AddressFamily, shorter: bool
) -> None:
    with receiving(engine, (LOOPBACK[family], 0)) as (dispatcher, received):
        assert dispatcher.options.trains
        with sending_to(dispatcher) as sender:
            for count in COUNTS:
                for size in SIZES:
                    if count * size > LARGEST[family]:
                        continue
                    sent = equal_bodies(count, size, max(1, size // 2) if shorter else size)
                    send_train(sender, sent)
                    dispatch(dispatcher, count)
                    assert received.trains == [sent], f"{count} of {size} bytes"
                    received.clear()
    assert dispatcher.stats.truncated == dispatcher.stats.control_truncated == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_datagrams_that_nobody_merged(engine: Engine, family: socket.AddressFamily) -> None:
    sent = bodies(*range(0, 1473, 16), 0, 0, 9000, 65_507, 1)
    with receiving(engine, (LOOPBACK[family], 0)) as (dispatcher, received):
        with sending_to(dispatcher) as sender:
            for datagram in sent:
                sender.send(datagram)
            dispatch(dispatcher, len(sent))
    assert received.trains == [[datagram] for datagram in sent]
    assert max(map(len, received.reads)) == 8
    stats = dispatcher.stats
    assert (stats.trains, stats.datagrams) == (len(sent), len(sent))
    assert stats.bytes == sum(map(len, sent))


def test_without_gro_each_datagram_is_a_train(engine: Engine) -> None:
    sent = equal_bodies(30, 1000)
    with receiving(engine, ("127.0.0.1", 0), gro=False) as (dispatcher, received):
        assert not dispatcher.options.trains
        with sending_to(dispatcher) as sender:
            send_train(sender, sent)
            dispatch(dispatcher, 30)
    assert received.trains == [[datagram] for datagram in sent]


@pytest.mark.parametrize("merging", [False, True], ids=["plain", "host GRO"])
@pytest.mark.parametrize("mtu", [1280, 1499, 1500, 9000])
@pytest.mark.parametrize("family", FAMILIES)
def test_trains_from_another_host(
    engine: Engine, family: socket.AddressFamily, mtu: int, merging: bool
) -> None:
    """Over a veth, where nothing may be derived from an MTU of 1,500."""
    require(lacks_root())
    headers = 28 if family == socket.AF_INET else 48
    far = "10.9.0.2" if family == socket.AF_INET else "fd09::2"
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "v", there, "v", mtu=mtu)
        here.address("v", "10.9.0.1/24", "fd09::1/64")
        there.address("v", "10.9.0.2/24", "fd09::2/64")
        there.offloads("v", gro=merging)
        with there:
            socket_there = socket.socket(family, socket.SOCK_DGRAM)
        socket_there.bind((far, 0))
        with socket_there, receiving(engine, socket_there) as (dispatcher, received), here:
            with sending_to(dispatcher) as sender:
                for count in (1, 2, 7, 44, 64, 128):
                    for size in (1, 777, mtu - headers - 1, mtu - headers):
                        fitting = min(count, 65_400 // size)
                        for last in {size, max(1, size - 5)}:
                            sent = equal_bodies(fitting, size, last)
                            send_train(sender, sent)
                            dispatch(dispatcher, fitting)
                            assert received.datagrams == sent
                            received.clear()
        assert there.counters()["UdpInErrors"] == 0
        assert there.counters()["UdpInCsumErrors"] == 0


def test_reads_of_many_trains_stay_in_order(idle: tuple[Any, Received]) -> None:
    dispatcher, received = idle
    sent = [equal_bodies(1 + number % 5, 10 + number, 1 + number) for number in range(60)]
    with sending_to(dispatcher) as sender:
        for train in sent:
            send_train(sender, train)
        dispatch(dispatcher, sum(map(len, sent)))
    assert received.trains == sent
    assert len(received.reads) == 8


# --- what comes with them -----------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_told_of_a_train_is_what_the_socket_module_tells(
    engine: Engine, family: socket.AddressFamily
) -> None:
    level, option = (
        (socket.IPPROTO_IP, socket.IP_TOS)
        if family == socket.AF_INET
        else (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)
    )
    tos: list[Any] = []
    received = Received()

    def hook(trains: list[Any]) -> None:
        received(trains)
        tos.extend(train.tos for train in trains)

    udp = engine.module("dispatchers.udp")
    with udp.UdpDispatcher((LOOPBACK[family], 0), hook) as dispatcher:
        with sending_to(dispatcher) as sender:
            before = time.time_ns()
            for value in (0, 1, 2, 3, 0xB8, 0xBA):
                sender.setsockopt(level, option, value)
                send_train(sender, equal_bodies(3, 99))
            dispatch(dispatcher, 18)
            after = time.time_ns()
            own = sender.getsockname()
    assert tos == [0, 1, 2, 3, 0xB8, 0xBA]
    assert [ecn for _, ecn, _, _ in received.details] == [0, 1, 2, 3, 0, 2]
    assert {address for address, _, _, _ in received.details} == {own}
    assert {info for _, _, info, _ in received.details} == {
        PacketInfo(LOOPBACK[family], socket.if_nametoindex("lo"))
    }
    times = [at for _, _, _, at in received.details]
    assert times == sorted(times)
    assert before <= times[0] <= times[-1] <= after


def test_what_was_not_asked_for_is_not_told(engine: Engine) -> None:
    off = {"ecn": False, "packet_info": False, "timestamps": False}
    with receiving(engine, ("127.0.0.1", 0), **off) as (dispatcher, received):
        options = dispatcher.options
        assert (options.ecn, options.packet_info, options.timestamps) == (False, False, False)
        with sending_to(dispatcher) as sender:
            send_train(sender, equal_bodies(2, 5))
            own = sender.getsockname()
            dispatch(dispatcher, 2)
    assert received.details == [(own, None, None, None)]


def test_ipv4_through_an_ipv6_socket(engine: Engine) -> None:
    """The empty host takes both; mapped addresses and the marks of IPv4 are told as well."""
    with receiving(engine, ("", 0)) as (dispatcher, received):
        port = dispatcher.address[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as four:
            four.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
            four.connect(("127.0.0.1", port))
            send_train(four, equal_bodies(3, 99))
            from_four = four.getsockname()
            dispatch(dispatcher, 3)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six:
            six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 3)
            six.connect(("::1", port))
            send_train(six, equal_bodies(3, 99))
            from_six = six.getsockname()
            dispatch(dispatcher, 3)
    (four_told, six_told) = received.details
    assert four_told[0] == ("::ffff:127.0.0.1", from_four[1], 0, 0)
    assert four_told[1:3] == (2, PacketInfo("::ffff:127.0.0.1", 1))
    assert six_told[:3] == (from_six, 3, PacketInfo("::1", 1))


def test_many_peers_are_told_apart(idle: tuple[Any, Received]) -> None:
    dispatcher, received = idle
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(sending_to(dispatcher)) for _ in range(20)]
        for turn in range(3):
            for number, sender in enumerate(senders):
                send_train(sender, [bytes([turn, number])] * 2)
        dispatch(dispatcher, 120)
        names = [sender.getsockname() for sender in senders]
    assert [address for address, _, _, _ in received.details] == names * 3
    assert received.datagrams == [
        bytes([turn, number]) for turn in range(3) for number in range(20) for _ in range(2)
    ]


# --- how much at once ---------------------------------------------------------------------------


def test_a_busy_socket_returns_after_its_budget_of_datagrams(engine: Engine) -> None:
    """Counted in datagrams, so that trains of 40 do not starve the other sockets of a loop."""
    options = {"budget": 100, "batch": 2}
    with receiving(engine, ("127.0.0.1", 0), **options) as (dispatcher, received):
        with sending_to(dispatcher) as sender:
            for _ in range(10):
                send_train(sender, equal_bodies(40, 100))
            counts = [dispatcher.dispatch_once(0) for _ in range(5)]
            assert counts == [160, 160, 80, 0, 0]
            for datagram in bodies(*[9] * 250):
                sender.send(datagram)
            counts = [dispatcher.dispatch_once(0) for _ in range(4)]
            assert counts == [100, 100, 50, 0]
    assert len(received.datagrams) == 650


def test_run_ends_after_the_batch_at_hand_when_its_hook_stops_it(engine: Engine) -> None:
    reads: list[int] = []

    def hook(trains: list[Any]) -> None:
        reads.append(sum(map(len, trains)))
        dispatcher.stop()

    udp = engine.module("dispatchers.udp")
    with udp.UdpDispatcher(("127.0.0.1", 0), hook, batch=2) as dispatcher:
        with sending_to(dispatcher) as sender:
            for datagram in bodies(*[9] * 5):
                sender.send(datagram)
            assert dispatcher.run() == 2
            assert reads == [2]
            assert dispatcher.run() == 2
            assert dispatcher.dispatch_once(0) == 1


def test_a_hook_that_raises_loses_nothing(engine: Engine) -> None:
    received = Received()

    def hook(trains: list[Any]) -> None:
        received(trains)
        if len(received.reads) == 1:
            raise LookupError("the hook's own")

    udp = engine.module("dispatchers.udp")
    with udp.UdpDispatcher(("127.0.0.1", 0), hook, batch=2) as dispatcher:
        with sending_to(dispatcher) as sender:
            sent = bodies(*[9] * 5)
            for datagram in sent:
                sender.send(datagram)
            with pytest.raises(LookupError, match="the hook's own"):
                dispatcher.dispatch_once(0)
            dispatch(dispatcher, 3)
    assert received.datagrams == sent


def test_a_hook_may_close_its_dispatcher(engine: Engine) -> None:
    received = Received()

    def hook(trains: list[Any]) -> None:
        received(trains)
        dispatcher.close()

    udp = engine.module("dispatchers.udp")
    dispatcher = udp.UdpDispatcher(("127.0.0.1", 0), hook, batch=2)
    with sending_to(dispatcher) as sender:
        for datagram in bodies(*[9] * 5):
            sender.send(datagram)
        assert dispatcher.run() == 2
    assert dispatcher.stats.datagrams == 2
    for use in (dispatcher.fileno, dispatcher.dispatch_once, lambda: dispatcher.address):
        with pytest.raises(EngineStateError, match="closed"):
            use()


def test_its_own_hook_cannot_enter_it_again(engine: Engine) -> None:
    errors: list[Exception] = []

    def hook(_trains: list[Any]) -> None:
        try:
            dispatcher.dispatch_once(0)
        except EngineStateError as error:
            errors.append(error)

    udp = engine.module("dispatchers.udp")
    with udp.UdpDispatcher(("127.0.0.1", 0), hook) as dispatcher:
        with sending_to(dispatcher) as sender:
            sender.send(b"x")
            dispatch(dispatcher, 1)
    assert len(errors) == 1


def test_a_waiting_run_is_stopped_by_another_thread(idle: tuple[Any, Received]) -> None:
    dispatcher, received = idle
    thread = threading.Thread(target=dispatcher.run)
    thread.start()
    with sending_to(dispatcher) as sender:
        sender.send(b"first")
        until = time.monotonic() + 10
        while not received.datagrams and time.monotonic() < until:
            os.sched_yield()
    dispatcher.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert received.datagrams == [b"first"]


def test_an_event_loop_serves_it(engine: Engine, idle: tuple[Any, Received]) -> None:
    dispatcher, received = idle
    sent = equal_bodies(20, 500)

    async def main() -> int:
        loop = asyncio.get_running_loop()
        with sending_to(dispatcher) as sender:
            loop.call_soon(send_train, sender, sent)
            loop.call_later(0.05, dispatcher.stop)
            count: int = await engine.module("dispatchers.aio").serve(dispatcher)
            return count

    assert asyncio.run(main()) == 20
    assert received.datagrams == sent


def test_a_hook_that_could_not_be_called_is_refused(engine: Engine) -> None:
    async def coroutine(trains: list[Any]) -> None: ...

    make = engine.module("dispatchers.udp").UdpDispatcher
    for hook, text in (
        (None, "a callable"),
        (7, "a callable"),
        (coroutine, "a coroutine function"),
    ):
        with pytest.raises(TypeError, match=text):
            make(("127.0.0.1", 0), hook)
