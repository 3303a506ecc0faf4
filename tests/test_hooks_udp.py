"""UdpTrainSender: what it sends, and that nothing is lost whatever the kernel answers."""

import errno
import random
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.dispatchers.addresses import PacketInfo
from netstack_gro.errors import ConfigError, DeviceDownError, DeviceError, EngineStateError
from tests.builders import tcp4, udp4
from tests.datagrams import (
    FAMILIES,
    LOOPBACK,
    Received,
    answer,
    bodies,
    dispatch,
    equal_bodies,
    open_descriptors,
    receiving,
    send_train,
    sender,
    sending_to,
)
from tests.engines import Engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture
def loop(engine: Engine) -> Iterator[tuple[Any, Any, Received]]:
    """A sender, and a dispatcher that receives what it sends."""
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        yield made, dispatcher, received


# --- what is sent -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_any_datagrams_arrive_once_in_order_with_their_boundaries(
    engine: Engine, family: socket.AddressFamily
) -> None:
    generator = random.Random(3)
    with receiving(engine, (LOOPBACK[family], 0)) as (dispatcher, received):
        with sender(engine, (LOOPBACK[family], 0)) as made:
            for _ in range(40):
                choices = generator.choices(range(1473), k=4)
                sent = bodies(*generator.choices(choices, k=generator.randrange(1, 129)))
                assert made.send(sent, dispatcher.address) == len(sent)
                dispatch(dispatcher, len(sent))
                assert received.datagrams == sent
                received.clear()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shorter", [False, True])
def test_trains_of_1_to_128_datagrams(
    engine: Engine, family: socket.AddressFamily, shorter: bool
) -> None:
    with receiving(engine, (LOOPBACK[family], 0)) as (dispatcher, received):
        with sender(engine, (LOOPBACK[family], 0)) as made:
            for count in (1, 2, 44, 45, 63, 64, 65, 128):
                for size in (1, 2, 100, 1200, 1472):
                    sent = equal_bodies(count, size, max(1, size // 2) if shorter else size)
                    assert made.send(sent, dispatcher.address) == count
                    assert made.send_train(b"".join(sent), size, dispatcher.address) == count
                    dispatch(dispatcher, 2 * count)
                    assert received.datagrams == sent * 2
                    assert max(map(len, received.trains)) == min(64, count, 65_507 // size)
                    received.clear()
            assert made.stats.cut == 0
            assert made.without_gso == ()


def test_more_than_there_is_room_for_is_sent_all_the_same(loop: Any) -> None:
    made, dispatcher, received = loop
    sent = equal_bodies(1000, 1200)
    for start in range(0, 1000, 500):  # what the socket holds
        assert made.send(sent[start : start + 500], dispatcher.address) == 500
        dispatch(dispatcher, 500)
    assert received.datagrams == sent
    received.clear()
    assert made.send_train(b"".join(sent[:600]), 1200, dispatcher.address) == 600
    dispatch(dispatcher, 600)
    assert received.datagrams == sent[:600]
    received.clear()
    assert made.send(bodies(*range(700)), dispatcher.address) == 700
    dispatch(dispatcher, 700)


def test_trains_stay_within_the_limits_that_it_was_given(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sender(engine, max_segments=5, max_bytes=450) as made:
            made.send(equal_bodies(23, 50), dispatcher.address)
            made.send(equal_bodies(10, 100), dispatcher.address)
            made.send(equal_bodies(2, 500), dispatcher.address)
            dispatch(dispatcher, 35)
    assert [len(train) for train in received.trains] == [5, 5, 5, 5, 3, 4, 4, 2, 1, 1]


def test_trains_leave_room_for_the_longer_headers_of_ipv6(engine: Engine) -> None:
    """An IPv6 packet of 65,535 bytes in all has room for 65,487, one of IPv4 for 20 more."""
    for family, first in ((socket.AF_INET, 59), (socket.AF_INET6, 58)):
        with receiving(engine, (LOOPBACK[family], 0)) as (dispatcher, _):
            with sender(engine, (LOOPBACK[family], 0)) as made:
                tried = answer(made, errno.EINTR).tried
                made.send(equal_bodies(59, 1129, 25), dispatcher.address)
                assert tried == [(first, False)]
                dispatch(dispatcher, 59)


def test_a_connected_socket_needs_no_address(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sending_to(dispatcher) as own, sender(engine, own) as made:
            assert made.send([b"a", b"b"]) == 2
            assert made.send_train(b"", 1) == 1
            dispatch(dispatcher, 3)
            assert received.datagrams == [b"a", b"b", b""]
            assert made.path_mtu() == 65_536 or made.path_mtu() == 65_535


def test_without_an_address_an_unconnected_socket_says_so(engine: Engine) -> None:
    with sender(engine) as made:
        with pytest.raises(DeviceError) as raised:
            made.send([b"a"])
        assert raised.value.errno == errno.EDESTADDRREQ
        assert raised.value.refused == [(b"a", None)]


def test_a_dispatcher_s_socket_answers_from_its_own_port(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, _):
        with sender(engine, dispatcher) as made, sending_to(dispatcher) as peer:
            assert made.fileno() != dispatcher.fileno()
            made.send([b"answer"], peer.getsockname())
            assert peer.recvfrom(100) == (b"answer", dispatcher.address)


@pytest.mark.parametrize("family", [*FAMILIES, None], ids=["IPv4", "IPv6", "mapped"])
def test_marks_and_source_addresses_go_with_each_train(
    engine: Engine, family: socket.AddressFamily | None
) -> None:
    """Also by IPv4 through an IPv6 socket, where the messages are those of IPv4."""
    host = LOOPBACK[family or socket.AF_INET]
    with receiving(engine, (host, 0)) as (dispatcher, received):
        with sender(engine, ("", 0) if family is None else (host, 0)) as made:
            info = PacketInfo("127.0.0.9" if host == "127.0.0.1" else host, 0)
            for mark in (0, 1, 2, 3, None):
                made.send(equal_bodies(3, 50), dispatcher.address, ecn=mark, packet_info=info)
            made.send_train(bytes(99), 50, dispatcher.address, ecn=3)
            dispatch(dispatcher, 17)
    assert [ecn for _, ecn, _, _ in received.details] == [0, 1, 2, 3, 0, 3]
    assert {address[0] for address, _, _, _ in received.details[:5]} == {info.address}
    assert [len(train) for train in received.trains] == [3] * 5 + [2]


def test_a_mark_leaves_the_socket_s_dscp_alone(engine: Engine) -> None:
    tos: list[Any] = []
    udp = engine.module("dispatchers.udp")
    with udp.UdpDispatcher(
        ("127.0.0.1", 0), lambda trains: tos.extend(train.tos for train in trains)
    ) as dispatcher:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0xBA)
            with sender(engine, own) as made:
                made.send([b"x"], dispatcher.address, ecn=1)
                dispatch(dispatcher, 1)
    assert tos == [0xB9]


def test_what_is_no_datagram_address_or_mark_is_refused(loop: Any) -> None:
    made, dispatcher, received = loop
    for single in (b"one", bytearray(b"one"), memoryview(b"one")):
        with pytest.raises(TypeError, match="a list of datagrams is required, not one"):
            made.send(single, dispatcher.address)
    with pytest.raises(ValueError, match="not an IPv4 address in numbers"):
        made.send([b"x"], ("localhost", 9))
    with pytest.raises(ValueError, match="ecn: 4 is not an ECN mark"):
        made.send([b"x"], dispatcher.address, ecn=4)
    with pytest.raises(ConfigError, match=r"^segment_size: "):
        made.send_train(b"x", 0, dispatcher.address)
    with pytest.raises(TypeError, match="a bytes-like object is required, not 'int'"):
        made.send([b"before", 7, b"after"], dispatcher.address)
    assert (made.backlog, made.stats.refused) == (2, 1), "the others wait"
    assert made.send([], dispatcher.address) == 2
    dispatch(dispatcher, 2)
    assert received.datagrams == [b"before", b"after"]


# --- as a hook ----------------------------------------------------------------------------------


def test_trains_are_forwarded_as_trains(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (far, received):
        with sender(engine, ("127.0.0.1", 0), far.address) as made:
            udp = engine.module("dispatchers.udp")
            with udp.UdpDispatcher(("127.0.0.1", 0), made) as near, sending_to(near) as source:
                source.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 2)
                sent = [equal_bodies(5, 800, 100), equal_bodies(64, 9), bodies(0), bodies(1472)]
                for train in sent:
                    send_train(source, train)
                dispatch(near, 71)
        dispatch(far, 71)
    assert received.trains == sent
    assert {ecn for _, ecn, _, _ in received.details} == {2}


def test_the_segments_of_a_super_packet_make_a_train(engine: Engine) -> None:
    """The outer side of a tunnel: one datagram for each wire packet, encrypted on the way."""
    packets = [tcp4(bytes([n]) * 500, seq=1 + 500 * n, ident=n) for n in range(20)]
    packets += [udp4(bytes([n]) * 300, ident=n) for n in range(7)]
    packets.append(tcp4(b"", sport=99))
    packets.append(b"no packet at all")

    def encrypt(packet: Any) -> bytes:
        return bytes(byte ^ 0x5A for byte in packet) + b"tag"

    with receiving(engine, ("127.0.0.1", 0)) as (far, received):
        with sender(engine, ("127.0.0.1", 0), far.address, transform=encrypt) as made:
            assert made.limits.udp
            with engine.GroDispatcher(made, GroConfig(udp=True)) as gro:
                gro.dispatch(packets)
                dispatch(far, len(packets))
            assert made.stats.trains == 2
    assert received.datagrams == [encrypt(packet) for packet in packets]
    assert [len(train) for train in received.trains] == [20, 7, 1, 1]


def test_each_train_may_have_a_peer_of_its_own(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (one, first):
        with receiving(engine, ("127.0.0.1", 0)) as (two, second):
            peers = [one.address, two.address, None]
            order: list[int] = []

            def peer(train: Any) -> Any:
                order.append(len(train))
                return peers[len(train) % 3]

            udp = engine.module("dispatchers.udp")
            with sender(engine, ("127.0.0.1", 0), peer) as made:
                with udp.UdpDispatcher(("127.0.0.1", 0), made) as near, sending_to(near) as source:
                    sent = [equal_bodies(count, 10) for count in range(1, 9)]
                    for train in sent:
                        send_train(source, train)
                    dispatch(near, 36)
            dispatch(one, 9)
            dispatch(two, 12)
            assert order == list(range(1, 9))
            assert made.stats.refused == 0
            assert first.trains == [sent[2], sent[5]]
            assert second.trains == [sent[0], sent[3], sent[6]]


def test_a_hook_keeps_what_it_could_not_send_and_counts_what_is_refused(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (far, received):
        with sender(engine, ("127.0.0.1", 0), far.address) as made:
            gro = engine.GroDispatcher(made, GroConfig(udp=True))
            packets = [tcp4(bytes([n]) * 50, seq=1 + 50 * n, ident=n) for n in range(9)]
            lone = [tcp4(b"", sport=port) for port in range(1, 400)]
            answer(made, errno.ENETDOWN)
            with pytest.raises(DeviceDownError):
                gro.dispatch([*packets, *lone])
            assert made.backlog == 9 + 399
            answer(made, errno.EPERM)
            gro.dispatch(packets)
            assert made.stats.refused == 10  # a train: the nine, and a shorter one
            gro.dispatch(packets)
            dispatch(far, 398 + 9 + 9)
            gro.close()
    assert received.datagrams == [*lone[1:], *packets, *packets]


def test_a_transform_that_raises_costs_only_what_it_raised_on(engine: Engine) -> None:
    def transform(datagram: Any) -> bytes:
        if bytes(datagram) == b"bad":
            raise LookupError("no key")
        return bytes(datagram)

    with receiving(engine, ("127.0.0.1", 0)) as (far, received):
        with sender(engine, ("127.0.0.1", 0), far.address, transform=transform) as made:
            udp = engine.module("dispatchers.udp")
            with udp.UdpDispatcher(("127.0.0.1", 0), made) as near, sending_to(near) as source:
                for datagram in (b"one", b"two", b"bad", b"four"):
                    source.send(datagram)
                with pytest.raises(LookupError, match="no key"):
                    near.dispatch_once(1)
                assert (made.backlog, made.stats.refused) == (3, 1)
                source.send(b"five")
                dispatch(near, 1)
                dispatch(far, 4)
    assert received.datagrams == [b"one", b"two", b"four", b"five"]


# --- misuse -------------------------------------------------------------------------------------


def test_it_is_used_by_one_at_a_time(loop: Any) -> None:
    made, dispatcher, received = loop
    errors: list[Exception] = []

    class Curious(list[bytes]):
        """Datagrams whose reading sends others."""

        def __iter__(self) -> Iterator[bytes]:
            made.send([b"before"], dispatcher.address)
            return super().__iter__()

    assert made.send(Curious([b"x"]), dispatcher.address) == 1

    def enter(*_arguments: Any) -> int:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        count: int = outgoing.send(*_arguments)
        return count

    def attempt() -> None:
        try:
            made.send([b"y"], dispatcher.address)
        except EngineStateError as error:
            errors.append(error)

    answering = answer(made)
    outgoing = answering._outgoing
    answering.__dict__["send"] = enter
    assert made.send([b"z"], dispatcher.address) == 1
    assert len(errors) == 1
    dispatch(dispatcher, 3)
    assert received.datagrams == [b"before", b"x", b"z"]


def test_after_closing_nothing_is_sent(engine: Engine) -> None:
    with sender(engine) as made:
        made.close()
        made.close()
        for use in (
            made.fileno,
            made.flush,
            made.path_mtu,
            lambda: made.send([b"x"], ("127.0.0.1", 9)),
            lambda: made([]),
        ):
            with pytest.raises(EngineStateError, match="closed"):
                use()
        assert made.stats.datagrams == 0
        assert made.take_back() == []


def test_parameters_out_of_range_are_refused_by_name(engine: Engine) -> None:
    for name, wrong in (
        ("max_segments", 0),
        ("max_segments", 129),
        ("max_bytes", 65_508),
        ("backlog", -1),
        ("timeout", -1),
        ("timeout", float("nan")),
    ):
        with pytest.raises(ConfigError, match=f"^{name}: "):
            with sender(engine, **{name: wrong}):
                pass
    before = open_descriptors()
    with pytest.raises(ValueError, match="not an IPv4 address"):
        with sender(engine, ("127.0.0.1", 0), ("::1", 9)):
            pass
    assert open_descriptors() == before


def test_gso_can_be_left_off(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sender(engine, gso=False) as made:
            assert not made.gso
            sent = equal_bodies(300, 100)
            assert made.send(sent, dispatcher.address) == 300
            assert made.send_train(b"".join(sent), 100, dispatcher.address) == 300
            dispatch(dispatcher, 600)
            assert received.trains == [[datagram] for datagram in sent * 2]
            assert made.stats.trains == made.stats.cut == 0
