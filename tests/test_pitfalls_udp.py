"""Faults that other users of UDP_GRO and UDP_SEGMENT were reported to have, each as a regression
test.

=====================================================  =============================================
fault reported                                         test
=====================================================  =============================================
a buffer that cuts the train's last datagram           a_train_never_ends_in_half_a_datagram
a buffer of 16 packets loses most of a train           a_train_of_30_is_not_cut_...
a wake-up is counted in reads, not in datagrams        two_busy_sockets_share_a_loop
the segment size read as 2 bytes                       a_segment_size_above_65535_...
the control message of a send written as an int        a_train_is_sent_with_a_size_of_two_bytes
no control buffer in the batch read                    a_read_without_its_control_messages_...
a coalesced read handed on as one datagram             a_program_that_wants_datagrams_gets_them
an aggregate reaches a socket that did not ask         a_receiver_that_did_not_ask_gets_datagrams
no size message taken for a default size               without_a_size_there_is_one_datagram
UDP_GRO set but not to be verified                     what_cannot_be_verified_is_off_...
UDP_SEGMENT ignored by an old kernel                   an_old_kernel_is_sent_single_datagrams
EIO for the want of checksum offload                   eio_is_the_kernel_s_and_not_the_caller_s
EINVAL later although it worked                        einval_after_two_successes_loses_nothing
more than 64 segments, or 65,507 bytes                 many_small_datagrams_are_several_trains, ...
a larger datagram appended                             a_longer_datagram_begins_a_train_of_its_own
a cap derived from an MTU of 1,500                     there_is_no_cap_on_the_datagrams_of_a_train
128 MiB of receive buffers                             the_buffers_are_as_large_as_a_read
control data at a wrong offset, lengths left over      a_message_without_control_data_...
probing on an IPv6 socket only                         what_there_is_is_found_without_ipv6
a mark that the kernel does not know loses a datagram  the_datagram_that_a_mark_was_refused_with_...
equal tails that some kernels damage                   an_equal_tail_can_be_avoided
ancillary data truncated by the size of its buffer     one_read_of_many_messages_equals_many_reads
add_reader on a transport's descriptor                 a_transport_s_socket_is_refused
switching off leaves bundles                           forwarding_goes_on_when_a_route_stops_cutting
=====================================================  =============================================
"""

import asyncio
import errno
import os
import socket
import sys
from typing import Any

import pytest

from netstack_gro.dispatchers import udp_socket
from netstack_gro.dispatchers.udp_socket import Support
from tests.datagrams import (
    SO_NO_CHECK,
    UDP_GRO,
    answer,
    bodies,
    dispatch,
    equal_bodies,
    receiving,
    send_train,
    sender,
    sending_to,
)
from tests.engines import Engine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def plain_socket() -> socket.socket:
    """A bound socket as most programs have them."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("127.0.0.1", 0))
    opened.settimeout(10)
    return opened


# --- receiving ----------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer_size", [2500, 65_535])
def test_a_train_never_ends_in_half_a_datagram(engine: Engine, buffer_size: int) -> None:
    sent = equal_bodies(5, 1000)
    with receiving(engine, ("127.0.0.1", 0), buffer_size=buffer_size) as (dispatcher, received):
        with sending_to(dispatcher) as source:
            send_train(source, sent)
            whole = min(5, buffer_size // 1000)
            dispatch(dispatcher, whole)
        assert received.datagrams == sent[:whole]
        assert dispatcher.stats.truncated == 5 - whole


def test_a_train_of_30_is_not_cut_by_default(engine: Engine) -> None:
    sent = equal_bodies(30, 1400)
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sending_to(dispatcher) as source:
            send_train(source, sent)
            dispatch(dispatcher, 30)
        assert received.trains == [sent]
        assert dispatcher.stats.truncated == 0


def test_two_busy_sockets_share_a_loop(engine: Engine) -> None:
    """However many datagrams a read gives, neither has more than its budget and one read more."""
    order: list[tuple[str, int]] = []

    def hook(name: str) -> Any:
        return lambda trains: order.append((name, sum(map(len, trains))))

    udp = engine.module("dispatchers.udp").UdpDispatcher
    options = {"budget": 80, "batch": 1}
    with udp(("127.0.0.1", 0), hook("a"), **options) as one:
        with udp(("127.0.0.1", 0), hook("b"), **options) as two:
            for target in (one, two):
                with sending_to(target) as source:
                    for _ in range(6):
                        send_train(source, equal_bodies(40, 100))
            while one.dispatch_once(0) + two.dispatch_once(0):
                pass
    assert order == [(name, 40) for _ in range(3) for name in "aabb"]


def test_a_segment_size_above_65535_shows_that_four_bytes_are_read(engine: Engine) -> None:
    """No kernel sends one; a reader of two bytes would see the lower half, here 1,000."""
    reader = engine.module("dispatchers.train_reader").TrainReader(1, 100, 0, 1, trains=True)
    header = socket.CMSG_LEN(4).to_bytes(8, sys.byteorder)
    header += socket.IPPROTO_UDP.to_bytes(4, sys.byteorder) + UDP_GRO.to_bytes(4, sys.byteorder)
    for value in (1000, 65_536 + 1000, 1000 << 16):
        control = header + value.to_bytes(4, sys.byteorder) + bytes(4)
        assert reader.describe(control, False)[0] == value


@pytest.mark.parametrize("room", [0, 16, 18])
def test_a_read_without_its_control_messages_is_not_one_datagram(engine: Engine, room: int) -> None:
    with plain_socket() as receiver, plain_socket() as source:
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        source.connect(receiver.getsockname())
        send_train(source, [*equal_bodies(2, 1000), *bodies(500)])
        kind = engine.module("dispatchers.train_reader").TrainReader
        reader = kind(4, 65_535, room, 1, trains=True)
        assert reader.receive(receiver.fileno()) == 1
        assert reader.take() == []
        assert reader.counters[4] == 1


def test_a_program_that_wants_datagrams_gets_them(engine: Engine) -> None:
    sent = [*equal_bodies(2, 1000), *bodies(500)]
    queue: list[bytes] = []
    udp = engine.module("dispatchers.udp")
    with udp.UdpDispatcher(
        ("127.0.0.1", 0),
        lambda trains: queue.extend(bytes(datagram) for train in trains for datagram in train),
    ) as dispatcher:
        with sending_to(dispatcher) as source:
            send_train(source, sent)
            assert dispatcher.dispatch_once(1) == 3
    assert queue == sent


def test_a_receiver_that_did_not_ask_gets_datagrams(engine: Engine) -> None:
    """Whatever the sender made of them, the receiver's option decides."""
    with plain_socket() as receiver, sender(engine) as made:
        sent = [*equal_bodies(2, 1000), *bodies(500)]
        assert made.send(sent, receiver.getsockname()) == 3
        assert made.stats.trains == 1
        assert [receiver.recv(65_535) for _ in sent] == sent


@pytest.mark.parametrize("size", [0, 1000, 2500, 65_507])
def test_without_a_size_there_is_one_datagram(engine: Engine, size: int) -> None:
    sent = bodies(size)
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sending_to(dispatcher) as source:
            source.send(sent[0])
            dispatch(dispatcher, 1)
    assert received.trains == [sent]


def test_what_cannot_be_verified_is_off_unless_asked_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = engine.module("dispatchers.udp_socket")

    def unverifiable(opened: socket.socket) -> Any:
        opened.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        return module.Support.UNVERIFIABLE

    monkeypatch.setattr(module, "gro_support", unverifiable)
    for asked, trains in ((None, 3), (True, 1), (False, 3)):
        with receiving(engine, ("127.0.0.1", 0), gro=asked) as (dispatcher, received):
            assert dispatcher.options.gro is module.Support.UNVERIFIABLE
            with sending_to(dispatcher) as source:
                send_train(source, equal_bodies(3, 100))
                dispatch(dispatcher, 3)
            assert len(received.trains) == trains


def test_there_is_no_cap_on_the_datagrams_of_a_train(engine: Engine) -> None:
    """45 were derived from 1,500 bytes and 53 from 1,280; smaller ones were dropped."""
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sending_to(dispatcher) as source:
            for count, size in ((46, 1400), (54, 1200), (64, 1000), (100, 600), (128, 1)):
                sent = equal_bodies(count, size)
                send_train(source, sent)
                dispatch(dispatcher, count)
                assert received.trains == [sent]
                received.clear()


def test_the_buffers_are_as_large_as_a_read(engine: Engine) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        with receiving(engine, ("127.0.0.1", 0), batch=8):
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 9 * 65_536


def test_what_there_is_is_found_without_ipv6(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = socket.socket

    class WithoutIpv6(original):  # type: ignore[misc, valid-type]
        def __init__(self, family: int = -1, *arguments: Any, **options: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *arguments, **options)

    monkeypatch.setattr(socket, "socket", WithoutIpv6)
    with receiving(engine, ("", 0)) as (dispatcher, _), sender(engine, ("", 0)) as made:
        assert dispatcher.options.gro is engine.module("dispatchers.udp_socket").Support.YES
        assert made.gso
        assert made.send(equal_bodies(3, 9), ("127.0.0.1", dispatcher.address[1])) == 3
        dispatch(dispatcher, 3)


def recvmsg_loop(receiver: socket.socket) -> list[list[bytes]]:
    """What a program without recvmmsg reads, one message at a time."""
    receiver.setblocking(False)
    buffer = bytearray(65_535)
    trains = []
    while True:
        try:
            size, ancillary, flags, _ = receiver.recvmsg_into([buffer], socket.CMSG_SPACE(4))
        except BlockingIOError:
            return trains
        assert flags == 0
        segment = int.from_bytes(ancillary[0][2], sys.byteorder) if ancillary else size
        data = bytes(buffer[:size])
        trains.append([data[at : at + segment] for at in range(0, size, segment or 1)] or [b""])


def test_one_read_of_many_messages_equals_many_reads(engine: Engine) -> None:
    """The same datagrams to both; the compiled reader as well as that by ctypes."""
    sent = [
        equal_bodies(5, 100, 7),
        bodies(0),
        equal_bodies(64, 1000),
        bodies(65_507),
        equal_bodies(2, 1),
    ] * 3
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), plain_socket() as other:
        other.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        other.setsockopt(socket.SOL_SOCKET, udp_socket.SO_RCVBUFFORCE, 1 << 23)
        with sending_to(dispatcher) as source, plain_socket() as to_other:
            to_other.connect(other.getsockname())
            for train in sent:
                send_train(source, train)
                send_train(to_other, train)
            dispatch(dispatcher, sum(map(len, sent)))
        assert received.trains == recvmsg_loop(other) == sent


def test_a_transport_s_socket_is_refused(engine: Engine) -> None:
    """Both would read it; and the transport would go on, unharmed, when the dispatcher closes."""

    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        heard: asyncio.Future[bytes] = loop.create_future()

        class Protocol(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: Any) -> None:
                heard.set_result(data)

        transport, _ = await loop.create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
        try:
            owned = transport.get_extra_info("socket")
            for kind in (
                lambda: engine.module("dispatchers.udp").UdpDispatcher(owned, print),
                lambda: engine.module("hooks.udp").UdpTrainSender(owned),
            ):
                with pytest.raises(TypeError, match="belongs to an asyncio transport"):
                    kind()
            with plain_socket() as source:
                source.sendto(b"still heard", owned.getsockname())
                return await asyncio.wait_for(heard, 10)
        finally:
            transport.close()

    assert asyncio.run(main()) == b"still heard"


# --- sending ------------------------------------------------------------------------------------


def test_a_train_is_sent_with_a_size_of_two_bytes(engine: Engine) -> None:
    """In a control message, never as an option that would stay on the caller's socket."""
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), plain_socket() as own:
        with sender(engine, own) as made:
            sent = equal_bodies(2, 100)
            assert made.send(sent, dispatcher.address) == 2
            dispatch(dispatcher, 2)
        assert received.trains == [sent]
        assert own.getsockopt(socket.IPPROTO_UDP, udp_socket.UDP_SEGMENT) == 0


def test_an_old_kernel_is_sent_single_datagrams(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    uname = os.uname()
    old = os.uname_result((*uname[:2], "4.9.337", *uname[3:]))
    monkeypatch.setattr(os, "uname", lambda: old)
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        assert not made.gso
        sent = equal_bodies(2, 100)
        assert made.send(sent, dispatcher.address) == 2
        dispatch(dispatcher, 2)
    assert received.trains == [[datagram] for datagram in sent]


def test_eio_is_the_kernel_s_and_not_the_caller_s(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        sent = equal_bodies(2, 100)
        answer(made, errno.EIO)
        assert made.send(sent, dispatcher.address) == 2
        dispatch(dispatcher, 2)
        assert received.trains == [[datagram] for datagram in sent]
        assert made.without_gso == ("127.0.0.1",)


def test_einval_after_two_successes_loses_nothing(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        sent = equal_bodies(2, 100)
        for numbers in ((), (), (errno.EINVAL,)):
            answer(made, *numbers)
            assert made.send(sent, dispatcher.address) == 2
            dispatch(dispatcher, 2)
        assert list(map(len, received.trains)) == [2, 2, 1, 1]
        assert received.datagrams == sent * 3


@pytest.mark.parametrize("count", [65, 128, 129, 300])
def test_many_small_datagrams_are_several_trains(engine: Engine, count: int) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        sent = equal_bodies(count, 100)
        assert made.send(sent, dispatcher.address) == count
        dispatch(dispatcher, count)
        full, rest = divmod(count, 64)
        assert list(map(len, received.trains)) == [64] * full + [rest] * (rest > 0)
        assert received.datagrams == sent


@pytest.mark.parametrize("octets", [65_507, 65_508, 131_014])
def test_no_train_is_longer_than_the_kernel_takes(engine: Engine, octets: int) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        (data,) = bodies(octets)
        count = -(-octets // 1129)  # 58 make 65,482, and 25 more the 65,507
        assert made.send_train(data, 1129, dispatcher.address) == count
        dispatch(dispatcher, count)
        assert b"".join(received.datagrams) == data
        assert made.stats.cut == made.stats.refused == 0


def test_a_longer_datagram_begins_a_train_of_its_own(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        sent = bodies(100, 1200, 1200)
        assert made.send(sent, dispatcher.address) == 3
        dispatch(dispatcher, 3)
        assert received.trains == [sent[:1], sent[1:]]


def test_a_message_without_control_data_has_none(engine: Engine) -> None:
    """After one that had some, in the same place; a mark makes the two differ in length, too."""
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        sent = []
        for turn in range(12):
            train = equal_bodies(1 + turn % 3, 50)
            made.send(train, dispatcher.address, ecn=2 if turn % 4 == 1 else None)
            sent.append(train)
        dispatch(dispatcher, sum(map(len, sent)))
        assert received.trains == sent
        assert [ecn for _, ecn, _, _ in received.details] == [0, 2, 0, 0] * 3


def test_the_datagram_that_a_mark_was_refused_with_is_sent(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received), sender(engine) as made:
        sent = equal_bodies(2, 100)
        tried = answer(made, errno.EINVAL, errno.EINVAL).tried
        assert made.send(sent, dispatcher.address, ecn=1) == 2
        assert tried == [(2, True), (1, True)]
        dispatch(dispatcher, 2)
        assert received.datagrams == sent
        tried = answer(made, errno.EINVAL).tried
        assert made.send(sent, dispatcher.address, ecn=1) == 2
        assert tried == [(2, False)], "the mark is remembered, and the train tried again"
        dispatch(dispatcher, 2)


def test_an_equal_tail_can_be_avoided(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sender(engine, never_equal_tail=True) as made:
            sent = [*equal_bodies(3, 100), *equal_bodies(3, 200, 100)]
            assert made.send(sent, dispatcher.address) == 6
            dispatch(dispatcher, 6)
            assert received.trains == [[sent[0]], [sent[1]], [sent[2]], sent[3:]]


def test_forwarding_goes_on_when_a_route_stops_cutting(engine: Engine) -> None:
    """In the middle of a flush, and for good: what is sent keeps its order, and is all there."""
    with receiving(engine, ("127.0.0.1", 0)) as (far, received), plain_socket() as own:

        def peer(train: Any) -> Any:
            stopped = train.segment_size >= 105
            own.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, stopped)
            return far.address

        udp = engine.module("dispatchers.udp")
        with sender(engine, own, peer) as made:
            with udp.UdpDispatcher(("127.0.0.1", 0), made) as near, sending_to(near) as source:
                sent = [equal_bodies(10, size) for size in [*range(100, 116), *range(90, 100)]]
                for train in sent:
                    send_train(source, train)
                dispatch(near, 260)
                dispatch(far, 260)
                assert received.datagrams == [datagram for train in sent for datagram in train]
                assert made.without_gso == ("127.0.0.1",)
                made.retry_gso()
                received.clear()
                send_train(source, sent[0])
                dispatch(near, 10)
                dispatch(far, 10)
                assert received.trains == sent[:1]


def test_support_says_what_it_means() -> None:
    assert [support.value for support in Support] == ["yes", "unverifiable", "no"]
