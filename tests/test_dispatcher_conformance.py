"""What all packet dispatchers have in common: the same frames give the same packets."""

import contextlib
import errno
import os
import socket
import threading
import time
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.errors import DeviceGoneError, EngineStateError
from tests import receivers
from tests.builders import ethernet, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import Given
from tests.requirements import lacks_root, lacks_tun, require

every_dispatcher = pytest.mark.parametrize("name", receivers.OPENERS)


@pytest.fixture(autouse=True)
def _privileged(request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params.get("name", "")
    if "pair" not in name and "pipe" not in name:
        require(lacks_tun() if name in {"tun", "tap"} else lacks_root())


class Hook:
    """Notes each flush."""

    def __init__(self) -> None:
        self.flushes: list[list[Given]] = []

    def __call__(self, packets: list[Any]) -> None:
        self.flushes.append([Given.of(packet) for packet in packets])

    @property
    def delivered(self) -> list[Given]:
        return [given for flush in self.flushes for given in flush]


def conversation() -> list[bytes]:
    """IP packets of five flows that merge, close, and pass through."""
    packets = []
    for number in range(6):
        packets += [
            tcp4(bytes([number]) * 1000, seq=1000 * number, ident=number),
            tcp6(bytes([number]) * 700, seq=700 * number, flow_label=5),
            udp4(bytes([number]) * 500, sport=7, dport=9, ident=number),
            udp6(bytes([number]) * (400 if number < 5 else 100), sport=7),
        ]
    packets.append(tcp4(b"", seq=6000, sport=5))
    packets.append(tcp4(b"late", seq=5000, ident=9))
    return packets


def framed(name: str, packets: list[bytes]) -> list[bytes]:
    """Packets with the link header that the dispatcher called ``name`` wants."""
    if receivers.LINKS.get(name, "ethernet") == "ip":
        return packets
    return [ethernet(packet) for packet in packets]


def config_for(name: str, **settings: Any) -> GroConfig:
    settings = {"capacity": 64, "udp": True} | settings
    return GroConfig(link=receivers.LINKS.get(name, "ethernet"), **settings)  # type: ignore[arg-type]


def said(given: Given) -> tuple[Any, ...]:
    """What does not depend on where a packet came from."""
    names = ("packets", "gso_type", "gso_size", "gso_segs", "ip_id_mode", "verdict", "closed_by")
    return (given.data, given.segments, *[given.said[name] for name in (*names, "wire_length")])


@every_dispatcher
def test_the_same_frames_give_the_same_packets(name: str, engine: Engine) -> None:
    frames = framed(name, conversation())
    expected, hook = Hook(), Hook()
    with engine.GroDispatcher(expected, config_for(name)) as reference:
        reference.dispatch(frames)
    with receivers.opened(name, engine, hook, config_for(name)) as (dispatcher, send):
        send(frames)
        assert receivers.drain(dispatcher, len(frames)) == len(frames)
        assert dispatcher.stats.engine.packets_in == len(frames)
        assert dispatcher.stats.truncated == 0
        assert dispatcher.stats.dropped == 0
    assert [said(given) for given in hook.delivered] == [
        said(given) for given in expected.delivered
    ]
    assert len(hook.flushes) == 1
    assert len(hook.delivered) < len(frames)


@every_dispatcher
def test_a_frame_with_hardly_more_than_its_link_header_is_delivered_whole(
    name: str, engine: Engine
) -> None:
    frame = framed(name, [bytes.fromhex("45000004")])[0]
    hook = Hook()
    with receivers.opened(name, engine, hook, config_for(name)) as (dispatcher, send):
        send([frame])
        receivers.drain(dispatcher, 1)
    assert [given.data for given in hook.delivered] == [frame]


@every_dispatcher
def test_a_batch_of_one_goes_straight_up(name: str, engine: Engine) -> None:
    hook = Hook()
    with receivers.opened(name, engine, hook, config_for(name)) as (dispatcher, send):
        for number in range(3):
            send(framed(name, [tcp4(b"x" * 100, seq=100 * number)]))
            assert dispatcher.dispatch_once() == 1
    assert [given.said["verdict"].name for given in hook.delivered] == ["ALONE"] * 3


@every_dispatcher
def test_more_than_a_batch_is_read_in_batches(name: str, engine: Engine) -> None:
    frames = framed(name, [tcp4(b"x" * 100, seq=100 * n, ident=n) for n in range(10)])
    hook = Hook()
    config = config_for(name, capacity=4)
    with receivers.opened(name, engine, hook, config) as (dispatcher, send):
        send(frames)
        receivers.drain(dispatcher, 10)
    segments = [segment for given in hook.delivered for segment in given.segments]
    assert segments == frames
    assert [len(flush[0].segments) for flush in hook.flushes] == [4, 4, 2]


@every_dispatcher
def test_a_slab_that_a_hook_looks_at_is_never_overwritten(name: str, engine: Engine) -> None:
    views: list[memoryview] = []

    def hook(packets: list[Any]) -> None:
        views.extend(view for packet in packets for view in packet.buffers())

    first = framed(name, [tcp4(b"a" * 100, seq=0)])
    second = framed(name, [tcp4(b"b" * 100, seq=0)])
    with receivers.opened(name, engine, hook, config_for(name)) as (dispatcher, send):
        for frames in (first, second):
            send(frames)
            receivers.drain(dispatcher, 1)
        assert [bytes(view) for view in views] == first + second
    assert [bytes(view) for view in views] == first + second


@every_dispatcher
def test_nothing_to_read_returns_when_the_time_is_up(name: str, engine: Engine) -> None:
    with receivers.opened(name, engine, Hook(), config_for(name)) as (dispatcher, _send):
        start = time.monotonic()
        assert dispatcher.dispatch_once(timeout=0) == 0
        assert dispatcher.dispatch_once(timeout=0.05) == 0
        assert time.monotonic() - start >= 0.05
        assert not dispatcher.exhausted


@every_dispatcher
def test_stop_ends_a_run_that_waits(name: str, engine: Engine) -> None:
    hook = Hook()
    with receivers.opened(name, engine, hook, config_for(name)) as (dispatcher, send):
        send(framed(name, [tcp4(b"x" * 100)] * 3))
        counts: list[int] = []
        thread = threading.Thread(target=lambda: counts.append(dispatcher.run()))
        thread.start()
        until = time.monotonic() + 10
        while len(hook.delivered) < 3 and time.monotonic() < until:
            time.sleep(0.001)
        dispatcher.stop()
        thread.join(10)
        assert not thread.is_alive()
        assert counts == [3]


@every_dispatcher
def test_a_stop_before_run_ends_it_at_once_and_is_used_up(name: str, engine: Engine) -> None:
    hook = Hook()
    with receivers.opened(name, engine, hook, config_for(name)) as (dispatcher, send):
        dispatcher.stop()
        assert dispatcher.run() == 0
        send(framed(name, [tcp4(b"x" * 100)]))
        assert dispatcher.dispatch_once(timeout=5) == 1
        dispatcher.stop()
        assert dispatcher.dispatch_once() == 0
        send(framed(name, [tcp4(b"x" * 100)]))
        assert dispatcher.dispatch_once(timeout=5) == 1


@every_dispatcher
def test_a_hook_may_stop_its_own_run(name: str, engine: Engine) -> None:
    with contextlib.ExitStack() as stack:

        def hook(packets: list[Any]) -> None:
            dispatcher.stop()

        dispatcher, send = stack.enter_context(
            receivers.opened(name, engine, hook, config_for(name))
        )
        send(framed(name, [tcp4(b"x" * 100)]))
        assert dispatcher.run() == 1


@every_dispatcher
def test_what_a_hook_raises_propagates_and_the_next_batch_starts_clean(
    name: str, engine: Engine
) -> None:
    given: list[bytes] = []

    def hook(packets: list[Any]) -> None:
        given.extend(bytes(packet) for packet in packets)
        if len(given) == 1:
            raise OSError(errno.EAGAIN, "the hook's own, which is not one of the read")

    frames = framed(name, [tcp4(b"a" * 100), tcp4(b"b" * 100)])
    with receivers.opened(name, engine, hook, config_for(name)) as (dispatcher, send):
        send(frames[:1])
        with pytest.raises(BlockingIOError, match="the hook's own"):
            dispatcher.run()
        send(frames[1:])
        assert dispatcher.dispatch_once(timeout=5) == 1
    assert given == frames


@every_dispatcher
def test_a_hook_that_reads_its_own_dispatcher_is_refused(name: str, engine: Engine) -> None:
    with contextlib.ExitStack() as stack:

        def hook(packets: list[Any]) -> None:
            dispatcher.dispatch_once(0)

        dispatcher, send = stack.enter_context(
            receivers.opened(name, engine, hook, config_for(name))
        )
        send(framed(name, [tcp4(b"x" * 100)]))
        with pytest.raises(EngineStateError, match="its own hook"):
            dispatcher.dispatch_once(5)


@every_dispatcher
def test_a_second_thread_inside_is_refused(name: str, engine: Engine) -> None:
    inside, done = threading.Event(), threading.Event()

    def hook(packets: list[Any]) -> None:
        inside.set()
        assert done.wait(10)

    with receivers.opened(name, engine, hook, config_for(name)) as (dispatcher, send):
        thread = threading.Thread(target=dispatcher.dispatch_once)
        send(framed(name, [tcp4(b"x" * 100)]))
        thread.start()
        assert inside.wait(10)
        with pytest.raises(EngineStateError, match="in another thread"):
            dispatcher.dispatch_once(0)
        done.set()
        thread.join(10)
        assert not thread.is_alive()


@every_dispatcher
def test_closing_from_another_thread_ends_a_run(name: str, engine: Engine) -> None:
    with receivers.opened(name, engine, Hook(), config_for(name)) as (dispatcher, _send):
        number = dispatcher.fileno()
        thread = threading.Thread(target=dispatcher.run)
        thread.start()
        while not dispatcher._turns:
            time.sleep(0.001)
        dispatcher.close()
        thread.join(10)
        assert not thread.is_alive()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
        for use in (dispatcher.fileno, dispatcher.dispatch_once, dispatcher.run):
            with pytest.raises(EngineStateError, match="is closed"):
                use()
        dispatcher.stop()
        dispatcher.close()
        assert dispatcher.stats.engine.packets_in == 0


@every_dispatcher
def test_a_hook_may_close_its_own_dispatcher(name: str, engine: Engine) -> None:
    with contextlib.ExitStack() as stack:

        def hook(packets: list[Any]) -> None:
            dispatcher.close()

        dispatcher, send = stack.enter_context(
            receivers.opened(name, engine, hook, config_for(name))
        )
        send(framed(name, [tcp4(b"x" * 100)]))
        assert dispatcher.run() == 1
        assert dispatcher.closed


@every_dispatcher
def test_a_descriptor_that_somebody_else_closed_is_an_error_that_names_it(
    name: str, engine: Engine
) -> None:
    with receivers.opened(name, engine, Hook(), config_for(name)) as (dispatcher, _send):
        os.close(dispatcher.fileno())
        with pytest.raises(DeviceGoneError) as caught:
            dispatcher.dispatch_once(5)
        assert caught.value.name == dispatcher.name
        assert str(caught.value).startswith(f"{dispatcher.name}: ")
        dispatcher.close()


@every_dispatcher
@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_that_is_none_is_refused(name: str, engine: Engine, timeout: float) -> None:
    with receivers.opened(name, engine, Hook(), config_for(name)) as (dispatcher, _send):
        with pytest.raises(ValueError, match="timeout"):
            dispatcher.dispatch_once(timeout)
        assert dispatcher.dispatch_once(0) == 0


@every_dispatcher
def test_its_descriptor_is_readable_when_there_is_something_to_do(
    name: str, engine: Engine
) -> None:
    with receivers.opened(name, engine, Hook(), config_for(name)) as (dispatcher, send):
        assert not receivers.readable(dispatcher, 0)
        send(framed(name, [tcp4(b"x" * 100)]))
        assert receivers.readable(dispatcher, 5)
        assert dispatcher.dispatch_once() == 1
        assert not receivers.readable(dispatcher, 0)


@every_dispatcher
def test_a_signal_handler_may_stop_a_run(name: str, engine: Engine) -> None:
    import signal

    with receivers.opened(name, engine, Hook(), config_for(name)) as (dispatcher, _send):
        before = signal.signal(signal.SIGALRM, lambda number, frame: dispatcher.stop())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            assert dispatcher.run() == 0
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "name", ["recvmmsg seqpacket pair", "readv seqpacket pair", "readv packet pipe"]
)
def test_the_other_side_s_end_is_the_end_of_the_source(name: str, engine: Engine) -> None:
    hook = Hook()
    kind = "dispatchers.recvmmsg" if name.startswith("recvmmsg") else "dispatchers.readv"
    if "pipe" in name:
        ours, theirs = os.pipe2(receivers.O_DIRECT)
        os.write(theirs, b"last")
        os.close(theirs)
    else:
        ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other.send(b"last")
        other.close()
    module = engine.module(kind)
    make = getattr(module, "RecvMmsgDispatcher" if "recvmmsg" in kind else "ReadvDispatcher")
    with make(ours, hook, GroConfig(capacity=8)) as dispatcher:
        assert dispatcher.run() == 1
        assert dispatcher.exhausted
        assert dispatcher.dispatch_once() == 0
    assert [given.data for given in hook.delivered] == [b"last"]
