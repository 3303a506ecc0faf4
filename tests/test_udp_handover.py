"""UdpDispatcher: what was read and not delivered, and a caller's socket that is given back."""

import errno
import logging
import os
import random
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from netstack_gro.errors import ConfigError, DeviceError
from tests.datagrams import (
    UDP_GRO,
    dispatch,
    equal_bodies,
    open_descriptors,
    receiving,
    send_train,
    sending_to,
)
from tests.engines import Engine
from tests.strikes import alarms

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

SO_TIMESTAMP, SO_TIMESTAMPNS, SO_RXQ_OVFL = 29, 35, 40  # include/uapi/asm-generic/socket.h
SO_TIMESTAMPNS_NEW, SO_BUF_LOCK = 64, 72
IP_PKTINFO, IP_RECVTOS = 8, 13  # include/uapi/linux/in.h


@contextmanager
def bound() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.bind(("127.0.0.1", 0))
        yield opened


# --- what was read when a handler raised --------------------------------------------------------


class Cut:
    """A reader whose calls end in KeyboardInterrupt when they are done."""

    def __init__(self, reader: Any, name: str) -> None:
        self._reader = reader
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._reader, name)
        if name != self._name:
            return found

        def call(*arguments: Any) -> None:
            found(*arguments)
            self._name = ""
            raise KeyboardInterrupt

        return call


@pytest.mark.parametrize("name", ["receive", "take_into"])
def test_what_was_read_when_a_handler_raised_is_delivered_next(engine: Engine, name: str) -> None:
    sent = equal_bodies(5, 100, 30)
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sending_to(dispatcher) as sender:
            send_train(sender, sent)
            dispatcher._reader = Cut(dispatcher._reader, name)
            with pytest.raises(KeyboardInterrupt):
                dispatcher.dispatch_once(1)
            assert received.datagrams == []
            send_train(sender, sent)
            dispatch(dispatcher, 10)
    assert received.datagrams == sent * 2
    assert dispatcher.stats.datagrams == 10


def test_messages_whose_number_was_lost_with_the_call_are_found(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.name == "compiled":
        return  # nothing comes between
    native = engine.module("dispatchers.native")
    call = native.recvmmsg

    def recvmmsg(*arguments: Any) -> int:
        call(*arguments)
        raise KeyboardInterrupt

    sent = [equal_bodies(3, 50), equal_bodies(4, 60)]
    with receiving(engine, ("127.0.0.1", 0)) as (dispatcher, received):
        with sending_to(dispatcher) as sender:
            for train in sent:
                send_train(sender, train)
            with monkeypatch.context() as patched:
                patched.setattr(native, "recvmmsg", recvmmsg)
                with pytest.raises(KeyboardInterrupt):
                    dispatcher.dispatch_once(0)
                assert received.trains == []
            dispatch(dispatcher, 7)
            assert received.trains == sent
            send_train(sender, sent[0])
            dispatch(dispatcher, 3)
    assert received.trains == [*sent, sent[0]]
    assert received.details[-1][1:3] == received.details[0][1:3]


def test_signals_at_any_time_cost_no_train(engine: Engine) -> None:
    """A hook that is a C function has been called or has not."""
    generator = random.Random(11)
    kept: list[Any] = []
    udp = engine.module("dispatchers.udp")
    interrupted = 0
    with alarms() as alarm, udp.UdpDispatcher(("127.0.0.1", 0), kept.extend) as dispatcher:
        with sending_to(dispatcher) as sender:
            for _ in range(300):
                sent = [equal_bodies(3, 40) for _ in range(4)]
                for train in sent:
                    send_train(sender, train)
                done = []
                alarm(
                    generator.uniform(2e-6, 200e-6),
                    lambda done=done: done.append(dispatcher.dispatch_once(0)),
                )
                interrupted += not done
                while dispatcher.dispatch_once(0):
                    pass
                assert [[bytes(each) for each in train] for train in kept] == sent
                kept.clear()
    assert interrupted
    assert dispatcher.stats.trains == 1200


# --- a socket that is given back ----------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {SO_TIMESTAMP: 1},
        {SO_TIMESTAMPNS: 1},
        {SO_TIMESTAMPNS_NEW: 1, SO_RXQ_OVFL: 1},
        {socket.SO_RCVBUF: 30_000},
    ],
)
def test_every_option_is_as_before(engine: Engine, options: dict[int, int]) -> None:
    looked_at = [
        *((socket.SOL_SOCKET, kind) for kind in (29, 35, 37, 40, 63, 64, 65)),
        (socket.SOL_SOCKET, socket.SO_RCVBUF),
        (socket.SOL_SOCKET, SO_BUF_LOCK),
        (socket.IPPROTO_IP, IP_PKTINFO),
        (socket.IPPROTO_IP, IP_RECVTOS),
        (socket.IPPROTO_UDP, UDP_GRO),
    ]

    def values(opened: socket.socket) -> list[int]:
        return [opened.getsockopt(*each) for each in looked_at]

    with bound() as own:
        for option, value in options.items():
            own.setsockopt(socket.SOL_SOCKET, option, value)
        own.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        before = values(own)
        with receiving(engine, own):
            assert values(own) != before
        assert values(own) == before


def test_no_train_is_left_uncut_in_a_socket_that_is_given_back(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Before: the kernel gave what it had merged as one long datagram."""
    sent = equal_bodies(5, 100, 30)
    lone = equal_bodies(2, 40)
    with bound() as own, receiving(engine, own) as (dispatcher, received):
        with sending_to(dispatcher) as sender:
            send_train(sender, sent)
            dispatch(dispatcher, 5)
            for _ in range(20):
                send_train(sender, sent)
            send_train(sender, lone[:1])
            peer = sender.getsockname()
            with caplog.at_level(logging.WARNING, "netstack_gro"):
                dispatcher.close()
            assert "101 datagrams" in caplog.text
            send_train(sender, lone)
        own.setblocking(False)
        after = [own.recv(65_535) for _ in range(2)]
        with pytest.raises(BlockingIOError):
            own.recv(65_535)
    assert received.datagrams == sent
    assert dispatcher.take_left() == [(each, peer) for each in [*sent * 20, lone[0]]]
    assert dispatcher.take_left() == []
    assert after == lone


def test_nothing_is_said_of_a_socket_that_was_empty(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with bound() as own, receiving(engine, own):
        pass
    assert caplog.records == []


def test_a_socket_that_merged_before_keeps_what_is_queued(engine: Engine) -> None:
    sent = equal_bodies(5, 100)
    with bound() as own:
        own.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        with receiving(engine, own) as (dispatcher, _received), sending_to(dispatcher) as sender:
            send_train(sender, sent)
        assert dispatcher.take_left() == []
        assert own.getsockopt(socket.IPPROTO_UDP, UDP_GRO) == 1
        assert own.recv(65_535) == b"".join(sent)


def test_where_kept_datagrams_pin_all_buffers_it_is_said(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[Any] = []
    udp = engine.module("dispatchers.udp")
    with bound() as own:
        with udp.UdpDispatcher(own, kept.extend, batch=1, budget=1, max_slabs=1) as dispatcher:
            with sending_to(dispatcher) as sender:
                for _ in range(2):
                    send_train(sender, equal_bodies(2, 100))
                    dispatch_one(dispatcher)
                send_train(sender, equal_bodies(2, 100))
        assert "read uncut" in caplog.text
        kept.clear()


def dispatch_one(dispatcher: Any) -> None:
    assert dispatcher.dispatch_once(1) == 2


def test_a_forked_child_s_close_changes_nothing_for_the_parent(engine: Engine) -> None:
    sent = equal_bodies(3, 100)
    with bound() as own, receiving(engine, own) as (dispatcher, received):
        with sending_to(dispatcher) as sender:
            send_train(sender, sent)
            child = os.fork()
            if not child:
                try:
                    dispatcher.close()
                finally:
                    os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert own.getsockopt(socket.IPPROTO_UDP, UDP_GRO) == 1
            assert own.getsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS) == 1
            assert not os.get_blocking(dispatcher.fileno())
            dispatch(dispatcher, 3)
    assert received.trains == [sent]


# --- what it cannot be made of ------------------------------------------------------------------


def test_an_address_that_is_none_is_named(engine: Engine) -> None:
    before = open_descriptors()
    for made in (
        lambda source: engine.module("dispatchers.udp").UdpDispatcher(source, print),
        lambda source: engine.module("hooks.udp").UdpTrainSender(source),
    ):
        for wrong in (
            (),
            ("127.0.0.1",),
            ("127.0.0.1", 1, 2),
            ("127.0.0.1", 99_999),
            ("127.0.0.1", -1),
            ("127.0.0.1", "80"),
            ("127.0.0.1", None),
            ("127.0.0.1", True),
            (None, 80),
            (b"127.0.0.1", 80),
            (1, 80),
            ("127.0.0.1\0", 80),
            ("::1", 80, 2**32, 0),
            ("::1", 80, 0, "lo"),
        ):
            with pytest.raises(ConfigError, match=r"^source: ") as raised:
                made(wrong)
            assert raised.value.field == "source"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
            pass
        with pytest.raises(DeviceError, match="cannot be duplicated") as gone:
            made(closed)
        assert gone.value.errno == errno.EBADF
    assert open_descriptors() == before


def test_a_sink_s_parameters_are_named(engine: Engine) -> None:
    sender = engine.module("hooks.udp").UdpTrainSender
    writer = engine.module("hooks.tun").TunWriter
    before = open_descriptors()
    for name, wrong in (
        ("peer", 5),
        ("peer", "127.0.0.1"),
        ("peer", ("127.0.0.1", 99_999)),
        ("peer", ("fe80::1%nowhere", 9)),
        ("transform", 5),
        ("timeout", "x"),
        ("timeout", None),
        ("backlog", 1.5),
    ):
        with pytest.raises(ConfigError, match=f"^{name}: "):
            sender(("::1", 0) if "fe80" in str(wrong) else ("127.0.0.1", 0), **{name: wrong})
    for wrong in (None, 5, "tun0"):
        with pytest.raises(ConfigError, match=r"^device: "):
            writer(wrong)
    assert open_descriptors() == before


def test_having_no_descriptors_left_is_an_error_of_the_device(engine: Engine) -> None:
    makers = [
        lambda source: engine.module("dispatchers.udp").UdpDispatcher(source, print),
        lambda source: engine.module("hooks.udp").UdpTrainSender(source),
    ]
    with bound() as own, ExitStack() as opened:
        for make in makers:
            for source in (own, ("127.0.0.1", 0), ("", 0)):
                make(source).close()  # what is imported is imported
                limits = resource.getrlimit(resource.RLIMIT_NOFILE)
                highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
                resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 3, limits[1]))
                try:
                    spare = []
                    with pytest.raises(DeviceError) as raised:
                        while True:
                            spare.append(opened.enter_context(make(source)))
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                    opened.close()
                assert raised.value.errno == errno.EMFILE
                assert raised.value.name.startswith("udp")
