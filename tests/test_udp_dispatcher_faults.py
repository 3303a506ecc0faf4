"""UdpDispatcher when something goes wrong: what the kernel answers, and whose socket it is."""

import contextlib
import errno
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from netstack_gro.errors import ConfigError, DeviceError, NotPermittedError
from tests import rights
from tests.datagrams import (
    UDP_GRO,
    Received,
    dispatch,
    equal_bodies,
    open_descriptors,
    receiving,
    send_train,
    sending_to,
)
from tests.engines import Engine
from tests.requirements import lacks_root, require

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

IP_RECVERR = 11  # include/uapi/linux/in.h
MSG_ERRQUEUE = 0x2000  # include/linux/socket.h


@pytest.fixture
def idle(engine: Engine) -> Iterator[tuple[Any, Received]]:
    """A dispatcher on loopback to which nothing was sent yet."""
    with receiving(engine, ("127.0.0.1", 0)) as opened:
        yield opened


# --- what the kernel answers --------------------------------------------------------------------


def test_a_peer_s_refusal_is_told_to_a_connected_socket(engine: Engine) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer, peer_socket() as near:
        peer.bind(("127.0.0.1", 0))
        address = peer.getsockname()
        near.connect(address)
        with receiving(engine, near) as (dispatcher, received):
            peer.connect(near.getsockname())
            peer.send(b"before")
            peer.close()
            near.send(b"nobody hears this")
            with pytest.raises(DeviceError, match=r"ICMP .* Connection refused") as raised:
                dispatcher.dispatch_once(1)
                dispatcher.dispatch_once(1)
            assert raised.value.errno == errno.ECONNREFUSED
            assert f"127.0.0.1:{address[1]}" in raised.value.name
            assert dispatcher.stats.refusals == 1
            if not received.datagrams:
                assert dispatcher.dispatch_once(1) == 1
            assert received.datagrams == [b"before"]
            assert dispatcher.dispatch_once(0) == 0


def test_a_refusal_may_be_counted_only(engine: Engine) -> None:
    with peer_socket() as peer, peer_socket() as near:
        near.connect(peer.getsockname())
        with receiving(engine, near, raise_refusals=False) as (dispatcher, received):
            peer.connect(near.getsockname())
            near.send(b"heard")
            peer.send(b"answer")
            peer.close()
            for _ in range(3):
                with contextlib.suppress(ConnectionRefusedError):
                    near.send(b"nobody hears this")
            assert dispatcher.dispatch_once(1) == 1
            assert dispatcher.dispatch_once(0) == 0
            assert received.datagrams == [b"answer"]
            assert dispatcher.stats.refusals >= 1


def test_an_unconnected_socket_hears_no_refusals(engine: Engine) -> None:
    with peer_socket() as near, peer_socket() as gone:
        nowhere = gone.getsockname()
        gone.close()
        with receiving(engine, near) as (dispatcher, received):
            for _ in range(10):
                near.sendto(b"nobody hears this", nowhere)
            with sending_to(dispatcher) as sender:
                sender.send(b"still there")
                dispatch(dispatcher, 1)
            assert received.datagrams == [b"still there"]
            assert dispatcher.stats.refusals == 0


def test_errors_that_the_kernel_keeps_wake_it_once(engine: Engine) -> None:
    """With IP_RECVERR, set by the socket's owner, the socket is in error until they are taken."""
    with peer_socket() as near, peer_socket() as gone:
        near.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        nowhere = gone.getsockname()
        gone.close()
        with receiving(engine, near) as (dispatcher, _received):
            for _ in range(5):
                with contextlib.suppress(ConnectionRefusedError):
                    near.sendto(b"nobody hears this", nowhere)
            waiting = select.poll()
            waiting.register(dispatcher.fileno(), select.POLLIN)
            assert waiting.poll(0)
            until = time.monotonic() + 10
            while waiting.poll(0) and time.monotonic() < until:
                assert dispatcher.dispatch_once(0.01) == 0
            assert not waiting.poll(0)
            assert dispatcher.stats.refusals >= 3
            with pytest.raises(BlockingIOError):
                near.recvmsg(0, 0, MSG_ERRQUEUE)


@pytest.mark.parametrize("how", [socket.SHUT_RD, socket.SHUT_RDWR])
def test_a_socket_that_its_owner_shuts_down_has_ended(engine: Engine, how: int) -> None:
    with peer_socket() as near, receiving(engine, near) as (dispatcher, received):
        with sending_to(dispatcher) as sender:
            sender.send(b"the last")
        with contextlib.suppress(OSError):
            near.shutdown(how)
        assert dispatcher.run() == 1
        assert dispatcher.exhausted
        assert received.datagrams == [b"the last"]


def test_what_the_kernel_had_no_room_for_is_counted(engine: Engine) -> None:
    with peer_socket() as near:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        with sending_to_socket(near) as early:
            for _ in range(50):  # before there is a dispatcher, which does not count it
                early.send(bytes(1000))
        with receiving(engine, near, gro=False, receive_buffer=8192) as (dispatcher, received):
            with sending_to_socket(near) as sender:
                while dispatcher.dispatch_once(0):
                    pass
                waited = len(received.datagrams)
                for _ in range(3):
                    for _ in range(100):
                        sender.send(bytes(1000))
                    while dispatcher.dispatch_once(0):
                        pass
                came = len(received.datagrams) - waited
                assert 0 < came < 300
                assert dispatcher.stats.dropped == 300 - came
                for _ in range(100):
                    sender.send(bytes(1000))
            # Nothing was read since, and yet it is known; also after the end.
            assert dispatcher.stats.dropped > 300 - came
        assert dispatcher.stats.dropped > 300 - came


def test_what_was_dropped_last_is_counted_when_it_is_closed(engine: Engine) -> None:
    with peer_socket() as near:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        with receiving(engine, near, receive_buffer=8192) as (dispatcher, _received):
            with sending_to(dispatcher) as sender:
                for _ in range(100):
                    sender.send(bytes(1000))
    assert dispatcher.stats.dropped > 0


def test_a_descriptor_that_others_close_is_an_error(idle: tuple[Any, Received]) -> None:
    dispatcher, _received = idle
    held = os.dup(dispatcher.fileno())
    os.close(dispatcher.fileno())
    with pytest.raises(DeviceError) as raised:
        dispatcher.dispatch_once(1)
    assert raised.value.errno == errno.EBADF
    os.dup2(held, dispatcher.fileno())
    os.close(held)


# --- whose socket it is -------------------------------------------------------------------------


@contextlib.contextmanager
def peer_socket() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        yield opened


@contextlib.contextmanager
def sending_to_socket(target: socket.socket) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(target.getsockname())
        yield sender


def test_the_caller_s_socket_is_as_before_afterwards(engine: Engine) -> None:
    with peer_socket() as own:
        with receiving(engine, own) as (dispatcher, _received):
            assert dispatcher.fileno() != own.fileno()
            assert own.getsockopt(socket.IPPROTO_UDP, UDP_GRO) == 1
            own.sendto(b"sent through it", own.getsockname())
            dispatch(dispatcher, 1)
        assert own.getsockopt(socket.IPPROTO_UDP, UDP_GRO) == 0
        assert os.get_blocking(own.fileno())
        with sending_to_socket(own) as sender:
            send_train(sender, equal_bodies(3, 100))
            data, ancillary, flags, _ = own.recvmsg(65535, 200)
            assert (len(data), ancillary, flags) == (100, [], 0)


def test_several_dispatchers_share_an_address(engine: Engine) -> None:
    with receiving(engine, ("127.0.0.1", 0), reuse_port=True) as (first, one):
        with receiving(engine, first.address, reuse_port=True) as (second, two):
            for _ in range(64):
                with sending_to(first) as sender:
                    sender.send(b"x")
            taken = first.dispatch_once(0) + second.dispatch_once(0)
    assert taken == 64 == len(one.datagrams) + len(two.datagrams)
    assert one.datagrams
    assert two.datagrams


def test_what_is_no_udp_socket_is_refused(engine: Engine) -> None:
    dispatcher = engine.module("dispatchers.udp").UdpDispatcher
    for family, kind in (
        (socket.AF_INET, socket.SOCK_STREAM),
        (socket.AF_UNIX, socket.SOCK_DGRAM),
        (socket.AF_UNIX, socket.SOCK_STREAM),
    ):
        with socket.socket(family, kind) as other:
            with pytest.raises(ConfigError, match="UDP over IPv4 or IPv6 is required"):
                dispatcher(other, print)
    for wrong in (None, 7, "127.0.0.1", ["127.0.0.1", 0], b"x"):
        with pytest.raises(TypeError, match="an address or a socket is required"):
            dispatcher(wrong, print)


def test_parameters_out_of_range_are_refused_by_name(engine: Engine) -> None:
    dispatcher = engine.module("dispatchers.udp").UdpDispatcher
    for name, wrong in (
        ("batch", 0),
        ("batch", 1025),
        ("buffer_size", 65_536),
        ("budget", 0),
        ("receive_buffer", -1),
        ("max_slabs", 0),
        ("max_slabs", 1.5),
        ("batch", True),
    ):
        with pytest.raises(ConfigError, match=f"^{name}: ") as raised:
            dispatcher(("127.0.0.1", 0), print, **{name: wrong})
        assert raised.value.field == name


def test_an_address_that_cannot_be_bound_is_named(engine: Engine) -> None:
    dispatcher = engine.module("dispatchers.udp").UdpDispatcher
    with pytest.raises(DeviceError, match=r"^udp 192\.0\.2\.1:9: cannot be bound") as raised:
        dispatcher(("192.0.2.1", 9), print)
    assert raised.value.errno == errno.EADDRNOTAVAIL
    with pytest.raises(DeviceError, match="there is no such address"):
        dispatcher(("x" * 64, 9), print)  # no name has a label of that length: RFC 1035


def test_a_low_port_names_the_right_that_it_takes(engine: Engine) -> None:
    require(lacks_root())
    dispatcher = engine.module("dispatchers.udp").UdpDispatcher
    with pytest.raises(NotPermittedError, match="cannot be bound") as raised:
        rights.with_only((), lambda: dispatcher(("127.0.0.1", 80), print))
    assert raised.value.right == "CAP_NET_BIND_SERVICE"


def test_nothing_is_left_open(engine: Engine) -> None:
    dispatcher = engine.module("dispatchers.udp").UdpDispatcher
    before = open_descriptors()
    for _ in range(50):
        with dispatcher(("127.0.0.1", 0), print):
            pass
        with pytest.raises(ConfigError):
            dispatcher(("127.0.0.1", 0), print, batch=0)
        with pytest.raises(DeviceError):
            dispatcher(("192.0.2.1", 0), print)
    assert open_descriptors() == before
