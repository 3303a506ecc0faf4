"""UdpTrainSender when a signal handler raises: each datagram is sent or waits, once, in order.

Interpreted code is struck before each of its instructions in turn, which is more often than a
handler could run; either engine by real signals, at random. Where a call was cut short, the next
one sends the rest, and both together must have sent exactly what one call would have.
"""

import errno
import random
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from netstack_gro.errors import DeviceError, EngineStateError, UdpSendError
from tests.datagrams import Answering, answer, bodies, equal_bodies, sender
from tests.engines import Engine
from tests.strikes import Strike, alarms, arrived

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@contextmanager
def wire() -> Iterator[socket.socket]:
    """A socket that takes datagrams, without GRO."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        opened.bind(("127.0.0.1", 0))
        opened.setblocking(False)
        yield opened


class Item:
    """A packet of an engine that stands for itself."""

    gso_size = 0

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bytes__(self) -> bytes:
        return self._data


# --- datagrams ----------------------------------------------------------------------------------


def check_sender(made: Any, far: socket.socket, sent: list[bytes], refused: list[bytes]) -> None:
    """Struck or not, what was sent so far is a beginning, and the next call sends the rest."""
    first = arrived(far)
    assert made.stats.datagrams == len(first)
    named = [data for data, _ in made.refused]
    assert len(first) + made.backlog + len(named) == len(sent) + len(refused)
    try:
        made.flush()
    except DeviceError:
        named += [data for data, _ in made.refused]
    assert first + arrived(far) == sent
    assert named == refused
    assert (made.stats.datagrams, made.stats.dropped, made.backlog) == (len(sent), 0, 0)


FINE = {"udp_delivery.py": True}
COARSE = {"outgoing.py": False, "messages.py": False, "native.py": False}


@pytest.mark.parametrize("answers", [(), (errno.EIO,)], ids=["trains", "cut"])
def test_a_sender_that_is_struck_anywhere_loses_and_repeats_no_datagram(
    engine: Engine, answers: tuple[int, ...]
) -> None:
    long = bodies(600_000)
    waiting, sent = bodies(30, 30, 20), [*equal_bodies(2, 50), *bodies(9)]
    files = FINE | (COARSE if engine.name == "interpreted" else {})
    number = 0
    struck = True
    with wire() as far:
        address = far.getsockname()
        while struck:
            with sender(engine, timeout=0) as made:
                answer(made, errno.EAGAIN)
                with pytest.raises(DeviceError):
                    made.send(waiting, address)
                answer(made, *answers)
                delivery = made._delivery
                with Strike(number, files, partial(getattr, delivery, "_busy")) as strike:
                    with suppress(UdpSendError):
                        made.send([sent[0], *long, *sent[1:]], address)
                struck = strike.struck
                answer(made)
                check_sender(made, far, [*waiting, *sent], long)
            number += 1
    assert number > 500


def test_a_sink_that_is_struck_anywhere_loses_and_repeats_no_packet(engine: Engine) -> None:
    sent = bodies(40, 40, 40, 10, 60)
    number = 0
    struck = True
    with wire() as far:
        while struck:
            with sender(engine, ("127.0.0.1", 0), far.getsockname(), transform=bytes) as made:
                delivery = made._delivery
                files = FINE | {"udp.py": True, "addresses.py": False}
                with Strike(number, files, partial(getattr, delivery, "_busy")) as strike:
                    made([Item(datagram) for datagram in sent])
                struck = strike.struck
                check_sender(made, far, sent, [])
            number += 1
    assert number > 300


def test_signals_at_any_time_cost_no_datagram(engine: Engine) -> None:
    generator = random.Random(8)
    interrupted = 0
    with alarms() as alarm, wire() as far, sender(engine, ("127.0.0.1", 0)) as made:
        for _ in range(300):
            sent = [*equal_bodies(20, 100), *bodies(30, 40), *equal_bodies(9, 20)]
            before = made.stats.datagrams
            alarm(generator.uniform(2e-6, 400e-6), partial(made.send, sent, far.getsockname()))
            first = arrived(far)
            if first or made.backlog:  # else it came before the call
                assert made.stats.datagrams - before == len(first)
                interrupted += made.backlog > 0
                made.flush()
                assert first + arrived(far) == sent
    assert interrupted


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, TimeoutError])
@pytest.mark.parametrize("done", [False, True])
def test_an_exception_out_of_the_system_call_keeps_what_it_did_not_send(
    engine: Engine, raised: type[BaseException], done: bool
) -> None:
    """One that strikes when the kernel has sent is as good as one that strikes later."""
    sent = [*equal_bodies(3, 50), *bodies(70, 80)]
    with wire() as far, sender(engine, ("127.0.0.1", 0)) as made:
        answering: Answering = answer(made)
        outgoing = answering._outgoing

        def send(descriptor: int) -> int:
            if done:
                outgoing.send(descriptor)
            raise raised

        answering.__dict__["send"] = send
        with pytest.raises(raised):
            made.send(sent, far.getsockname())
        assert arrived(far) == (sent if done else [])
        assert made.backlog == (0 if done else 5)
        del answering.__dict__["send"]
        made.flush()
        assert arrived(far) == ([] if done else sent)


def test_the_kernel_s_own_note_tells_what_a_lost_answer_does_not(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.name == "compiled":
        return  # nothing comes between
    native = engine.module("dispatchers.native")
    call = native.sendmmsg
    limit = [2]

    def sendmmsg(fd: int, base: Any, at: int, count: int, flags: int) -> int:
        call(fd, base, at, min(count, limit[0]), flags)
        raise KeyboardInterrupt

    sent = [*equal_bodies(3, 50), *bodies(70, 80, 20)]
    with wire() as far, sender(engine, ("127.0.0.1", 0)) as made:
        with monkeypatch.context() as patched:
            patched.setattr(native, "sendmmsg", sendmmsg)
            with pytest.raises(KeyboardInterrupt):
                made.send(sent, far.getsockname())
        assert arrived(far) == sent[:4]
        assert [data for data, _ in made.take_back()] == sent[4:]
        assert made.stats.datagrams == 4
        assert made.stats.bytes == 3 * 50 + 70


def test_a_handler_that_raises_in_a_transform_has_the_datagram_kept(engine: Engine) -> None:
    sent = bodies(10, 11, 12, 13)
    calls = []

    def transform(datagram: Any) -> bytes:
        calls.append(bytes(datagram))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return bytes(datagram)

    with wire() as far, sender(engine, ("127.0.0.1", 0), far.getsockname()) as made:
        made._transform = transform
        with pytest.raises(KeyboardInterrupt):
            made([Item(datagram) for datagram in sent])
        assert arrived(far) == []
        assert calls == [*sent[:3], *sent[2:]]
        assert made.flush() == 4
        assert arrived(far) == sent


def test_what_waits_is_not_taken_while_it_is_being_sent(engine: Engine) -> None:
    with wire() as far, sender(engine, ("127.0.0.1", 0), far.getsockname()) as made:
        failures: list[type] = []

        def transform(datagram: Any) -> bytes:
            with pytest.raises(EngineStateError) as raised:
                made.take_back()
            failures.append(raised.type)
            return bytes(datagram)

        made._transform = transform
        made([Item(b"x")])
        assert failures == [EngineStateError]


def test_what_was_refused_in_a_call_that_failed_is_named(engine: Engine) -> None:
    """Before: only counted."""
    long = bodies(600_000)
    with wire() as far, sender(engine, timeout=0) as made:
        answer(made, errno.EPERM, errno.ENETDOWN)
        with pytest.raises(DeviceError) as raised:
            made.send([b"forbidden", *long, b"rest"], far.getsockname())
        assert raised.value.errno == errno.ENETDOWN
        assert made.refused == [(b"forbidden", far.getsockname()), (long[0], far.getsockname())]
        assert made.stats.refused == 2
        assert made.flush() == 1
        assert made.refused == []
        assert arrived(far) == [b"rest"]
