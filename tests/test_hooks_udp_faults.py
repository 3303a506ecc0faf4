"""UdpTrainSender when the kernel does not do as it is told: nothing is lost, and little is said."""

import errno
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from netstack_gro.errors import DeviceDownError, DeviceError, UdpSendError
from tests import lab
from tests.datagrams import (
    SO_NO_CHECK,
    Received,
    answer,
    bodies,
    dispatch,
    equal_bodies,
    receiving,
    sender,
)
from tests.engines import Engine
from tests.requirements import lacks_root, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def loop(engine: Engine) -> Iterator[tuple[Any, Any, Received]]:
    """A sender, and a dispatcher that receives what it sends."""
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        yield made, dispatcher, received


# --- where the kernel does not cut --------------------------------------------------------------


def test_a_device_without_checksums_loses_nothing(engine: Engine) -> None:
    """Linux 6.11 cuts for it in software, earlier ones refuse with EIO."""
    require(lacks_root())
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "v", there, "v")
        here.address("v", "10.9.0.1/24", "fd09::1/64")
        there.address("v", "10.9.0.2/24", "fd09::2/64")
        here.no_offloads("v")
        for family, host in ((socket.AF_INET, "10.9.0.2"), (socket.AF_INET6, "fd09::2")):
            with there:
                far = socket.socket(family, socket.SOCK_DGRAM)
            far.bind((host, 0))
            with far, receiving(engine, far) as (dispatcher, received), here:
                with sender(engine, ("", 0)) as made:
                    sent = equal_bodies(300, 1000)
                    for _ in range(2):
                        assert made.send(sent, dispatcher.address) == 300
                        dispatch(dispatcher, 300)
                    assert received.datagrams == sent * 2
                    assert made.stats.cut <= 1, "what is known not to work is not tried again"


def test_a_route_that_cannot_cut_does_not_concern_the_others(engine: Engine) -> None:
    with receiving(engine, ("0.0.0.0", 0)) as (dispatcher, received):
        with sender(engine, ("0.0.0.0", 0)) as made:
            port = dispatcher.address[1]
            sent = equal_bodies(300, 100)
            answering = answer(made, errno.EIO)
            assert made.send(sent, ("127.0.0.1", port)) == 300
            assert made.without_gso == ("127.0.0.1",)
            assert made.send(sent, ("127.0.0.1", port)) == 300
            assert answering.tried == [(64, False)]
            assert (made.stats.trains, made.stats.cut) == (0, 1)
            assert made.send(sent, ("127.0.0.2", port)) == 300
            assert made.stats.trains == 5
            made.retry_gso()
            assert made.send(sent, ("127.0.0.1", port)) == 300
            assert made.stats.trains == 10
            assert made.without_gso == ()
            dispatch(dispatcher, 1200)
    assert received.datagrams == sent * 4


def test_einval_although_it_worked_before_is_no_error(engine: Engine) -> None:
    """By a real kernel, which does not cut what is to have no checksum."""
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own, sender(engine, own) as made:
            sent = equal_bodies(100, 500)
            for _ in range(2):
                assert made.send(sent, dispatcher.address) == 100
                dispatch(dispatcher, 100)
            assert made.stats.trains == 4
            own.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
            for _ in range(2):
                assert made.send(sent, dispatcher.address) == 100
                dispatch(dispatcher, 100)
            assert made.stats.trains == 4
            assert made.without_gso == ("127.0.0.1",)
    assert received.datagrams == sent * 4


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL])
def test_the_host_that_a_train_was_refused_for_is_remembered(loop: Any, number: int) -> None:
    made, dispatcher, received = loop
    sent = equal_bodies(70, 100)
    answering = answer(made, number)
    assert made.send(sent, dispatcher.address) == 70
    assert answering.tried == [(64, False)]
    assert made.without_gso == ("127.0.0.1",)
    dispatch(dispatcher, 70)
    assert received.datagrams == sent
    assert made.gso


def test_no_more_hosts_are_remembered_than_there_is_room_for(engine: Engine) -> None:
    with sender(engine, ("0.0.0.0", 0)) as made:
        hosts = [f"127.0.{number >> 8}.{number & 255}" for number in range(1, 1034)]
        for host in hosts:
            answer(made, errno.EIO)
            made.send([b"x", b"y"], (host, 9))
        assert made.without_gso == tuple(hosts[-1024:])


def test_longer_than_the_path_mtu_is_sent_in_fragments(engine: Engine) -> None:
    """EMSGSIZE concerns this train alone: the next one is cut by the kernel again."""
    require(lacks_root())
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "v", there, "v", mtu=1400)
        here.address("v", "10.9.0.1/24", "fd09::1/64")
        there.address("v", "10.9.0.2/24", "fd09::2/64")
        for family, host in ((socket.AF_INET, "10.9.0.2"), (socket.AF_INET6, "fd09::2")):
            with there:
                far = socket.socket(family, socket.SOCK_DGRAM)
            far.bind((host, 0))
            with far, receiving(engine, far) as (dispatcher, received), here:
                with sender(engine, ("", 0)) as made:
                    long, short = equal_bodies(5, 2000), equal_bodies(20, 1200)
                    address = dispatcher.address
                    assert made.path_mtu(address) == 1400
                    assert made.send([*long, *short, *long], address) == 30
                    dispatch(dispatcher, 30)
                    assert received.datagrams == [*long, *short, *long]
                    assert made.stats.cut == 2
                    assert made.stats.trains == 1
                    assert made.without_gso == ()


@pytest.mark.parametrize(("size", "blamed"), [(572, ("127.0.0.1",)), (573, ())])
def test_einval_of_older_kernels_for_the_path_mtu_is_not_blamed_on_the_route(
    loop: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch, size: int, blamed: tuple[str, ...]
) -> None:
    made, dispatcher, received = loop
    monkeypatch.setattr(engine.module("hooks.udp_delivery"), "path_mtu", lambda *_: 600)
    sent = equal_bodies(5, size)
    answer(made, errno.EINVAL)
    assert made.send(sent, dispatcher.address) == 5
    dispatch(dispatcher, 5)
    assert received.datagrams == sent
    assert made.without_gso == blamed


def test_what_is_too_long_is_named_when_the_rest_was_sent(engine: Engine) -> None:
    require(lacks_root())
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "v", there, "v", mtu=1499)
        here.address("v", "10.9.0.1/24")
        there.address("v", "10.9.0.2/24")
        with there:
            far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        far.bind(("10.9.0.2", 0))
        with here:
            own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        own.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
        with far, own, receiving(engine, far) as (dispatcher, received), here:
            with sender(engine, own) as made:
                sent = bodies(1400, 1471, 1472, 1472, 70_000, 1400, 600_000, 9)
                with pytest.raises(UdpSendError) as raised:
                    made.send(sent, dispatcher.address)
                error = raised.value
                assert error.errno == errno.EMSGSIZE
                assert error.mtu == 1499
                assert "a datagram of 1472 bytes" in str(error)
                assert "where 1471 fit (MTU 1499)" in str(error)
                assert "3 more datagrams" in str(error)
                assert {address for _, address in error.refused} == {dispatcher.address}
                refused = [datagram for datagram, _ in error.refused]
                assert refused == [sent[2], sent[3], sent[4], sent[6]]
                kind, arguments = error.__reduce__()
                again = kind(*arguments)
                assert (str(again), again.errno) == (str(error), error.errno)
                assert (again.refused, again.mtu) == (error.refused, error.mtu)
                dispatch(dispatcher, 4)
                assert received.datagrams == [sent[0], sent[1], sent[5], sent[7]]
                assert made.stats.refused == 4
                assert made.backlog == 0
                assert made.send(sent[:2], dispatcher.address) == 2


def test_too_long_may_have_been_an_earlier_one(loop: Any) -> None:
    """With IP_RECVERR, a router's answer to one datagram is told in place of sending another."""
    made, dispatcher, _received = loop
    for _ in range(3):
        answer(made, errno.EMSGSIZE)
        assert made.send([b"short"], dispatcher.address) == 1
    dispatch(dispatcher, 3)
    assert made.stats.refused == 0


def test_marks_are_left_out_where_they_are_to_blame(loop: Any) -> None:
    """The train is dropped first, then the mark; each is remembered by itself."""
    made, dispatcher, received = loop
    sent = equal_bodies(3, 100)
    answering = answer(made, errno.EINVAL, errno.EINVAL)
    assert made.send(sent, dispatcher.address, ecn=2) == 3
    assert answering.tried == [(3, True), (1, True)]
    assert made.without_gso == (), "it did not help, so it was not to blame"
    assert made.send(sent, dispatcher.address, ecn=2) == 3
    assert made.stats.trains == 1
    assert made.without_gso == ()
    dispatch(dispatcher, 6)
    assert received.datagrams == sent * 2
    assert [ecn for _, ecn, _, _ in received.details] == [0] * 4
    made.retry_gso()
    assert made.send(sent, dispatcher.address, ecn=2) == 3
    dispatch(dispatcher, 3)
    assert received.details[-1][1] == 2


def test_a_mark_alone_may_be_to_blame(loop: Any) -> None:
    made, dispatcher, received = loop
    answering = answer(made, errno.EIO)
    assert made.send([b"x"], dispatcher.address, ecn=1) == 1
    assert answering.tried == [(1, True)]
    dispatch(dispatcher, 1)
    assert received.details[0][1] == 0


def test_what_nothing_helps_against_blames_nothing(loop: Any, engine: Engine) -> None:
    made, dispatcher, received = loop
    sent = equal_bodies(2, 100)
    answer(made, *[errno.EINVAL] * 3)
    with pytest.raises(UdpSendError) as raised:
        made.send([*sent, b"rest"], dispatcher.address, ecn=1)
    assert raised.value.errno == errno.EINVAL
    assert raised.value.refused == [(sent[0], dispatcher.address)]
    assert made.without_gso == ()
    dispatch(dispatcher, 2)
    assert received.datagrams == [sent[1], b"rest"]
    assert made.send(sent, dispatcher.address, ecn=1) == 2
    dispatch(dispatcher, 2)
    assert received.details[-1][1] == 1
    assert len(received.trains[-1]) == 2


# --- what passes --------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOBUFS, errno.EINTR, errno.ENOMEM])
def test_what_passes_is_waited_for(loop: Any, number: int) -> None:
    made, dispatcher, received = loop
    answer(made, number, number)
    sent = equal_bodies(70, 100)
    assert made.send(sent, dispatcher.address) == 70
    assert made.stats.retries == (0 if number == errno.EINTR else 2)
    dispatch(dispatcher, 70)
    assert received.datagrams == sent


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOBUFS])
def test_what_does_not_pass_in_time_waits_for_the_next_call(engine: Engine, number: int) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sender(engine, timeout=0) as made:
            first, second, third = (equal_bodies(1100, size) for size in (30, 40, 50))
            for sent in (first, second):
                answer(made, number)
                with pytest.raises(DeviceError, match="cannot be sent through") as raised:
                    made.send(sent, dispatcher.address)
                assert raised.value.errno == number
            assert made.backlog == 2200
            assert made.send(third[:1], dispatcher.address) == 2201
            assert made.backlog == 0
            dispatch(dispatcher, 2201)
            assert received.datagrams == [*first, *second, third[0]]
            assert made.flush() == 0


def test_each_call_has_its_own_time_to_wait(engine: Engine) -> None:
    with sender(engine, timeout=0.02) as made:
        answer(made, *[errno.ENOBUFS] * 100_000)
        with pytest.raises(DeviceError):
            made.send([b"a"], ("127.0.0.1", 9))
        answer(made, errno.ENOBUFS)
        assert made.send([b"b"], ("127.0.0.1", 9)) == 2


def test_a_full_socket_keeps_what_it_has_no_room_for(engine: Engine) -> None:
    """EAGAIN by a real kernel: datagrams that wait for a neighbour fill the send buffer."""
    require(lacks_root())
    with lab.Lab() as net:
        here, there = net.namespace(), net.namespace()
        net.veth(here, "v", there, "v")
        here.address("v", "10.9.0.1/24")
        with here, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
            with sender(engine, own, timeout=0) as made:
                sent = bodies(*range(1000, 1050))
                with pytest.raises(DeviceError) as raised:
                    made.send(sent, ("10.9.0.2", 9))
                assert raised.value.errno == errno.EAGAIN
                waiting = made.backlog
                assert 0 < waiting == 50 - made.stats.datagrams
                assert [data for data, _ in made.take_back()] == sent[-waiting:]


def test_what_waits_can_be_taken_back(loop: Any) -> None:
    made, dispatcher, _received = loop
    answer(made, errno.ENETDOWN)
    with pytest.raises(DeviceDownError) as raised:
        made.send([b"a", b"bb", b"c"], dispatcher.address)
    assert made.name in str(raised.value)
    assert made.backlog == 3
    assert made.take_back() == [(data, dispatcher.address) for data in (b"a", b"bb", b"c")]
    assert made.backlog == 0
    assert made.flush() == 0
    assert dispatcher.dispatch_once(0) == 0


def test_a_second_failure_keeps_the_order(loop: Any) -> None:
    made, dispatcher, received = loop
    sent = bodies(*range(1, 40))
    for part in (sent[:10], sent[10:20], sent[20:]):
        answer(made, errno.ENETDOWN)
        with pytest.raises(DeviceDownError):
            made.send(part, dispatcher.address)
    answer(made)
    assert made.flush() == 39
    dispatch(dispatcher, 39)
    assert received.datagrams == sent


def test_the_backlog_is_bounded(engine: Engine) -> None:
    with sender(engine, timeout=0, backlog=1000) as made:
        for _ in range(3):
            answer(made, errno.ENOBUFS)
            with pytest.raises(DeviceError):
                made.send(equal_bodies(6, 100), ("127.0.0.1", 9))
        assert made.backlog == 10
        assert made.stats.dropped == 8


def test_a_peer_s_refusal_costs_no_datagram(engine: Engine) -> None:
    """The kernel tells of it once, in place of sending what was to be sent next."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        address = peer.getsockname()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.connect(address)
            with sender(engine, own) as made:
                peer.close()
                assert made.send([b"refused"]) == 1
                with receiving(engine, address) as (dispatcher, received):
                    assert made.send([b"heard", b"also"]) == 2
                    dispatch(dispatcher, 2)
                    assert received.datagrams == [b"heard", b"also"]
                assert made.stats.refusals == 1
                assert made.take_refusal() == errno.ECONNREFUSED
                assert made.take_refusal() == 0
                sent = bodies(*range(1, 60))
                assert made.send(sent) == 59, "each send is answered with a refusal of the last"


def test_where_there_is_no_route_the_others_are_not_kept(engine: Engine) -> None:
    require(lacks_root())
    with lab.Lab() as net, net.namespace():
        with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
            with sender(engine, ("0.0.0.0", 0)) as made:
                with pytest.raises(UdpSendError) as raised:
                    made.send([b"a", b"b"], ("192.0.2.1", 9))
                assert raised.value.errno == errno.ENETUNREACH
                assert "192.0.2.1" in str(raised.value)
                assert [data for data, _ in raised.value.refused] == [b"a", b"b"]
                assert made.send([b"c"], dispatcher.address) == 1
                dispatch(dispatcher, 1)
                assert received.datagrams == [b"c"]
