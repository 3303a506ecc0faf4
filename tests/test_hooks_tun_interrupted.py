"""TunWriter when a signal handler raises: each packet is written or waits, once, in order.

Interpreted code is struck before each of its instructions in turn, which is more often than a
handler could run; either engine by real signals, at random. Where a call was cut short, the next
one sends the rest, and both together must have sent exactly what one call would have.
"""

import errno
import os
import random
import socket
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.errors import ConfigError, DeviceError, EngineStateError
from tests.builders import TCP, UDP
from tests.engines import Engine
from tests.strikes import Strike, alarms, arrived
from tests.tuns import stream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

PARTIAL = GroConfig(udp=True, delivered_checksums="partial")
WRITER = {"tun.py": True, "tun_frames.py": False}


class FakeDevice:
    """A TUN's queue that is a socket, so that each frame written to it can be read again."""

    name = "fake0"

    def __init__(self, vnet_size: int, link: str = "ip") -> None:
        able = vnet_size > 0
        self.accepts = SimpleNamespace(csum=able, tso=able, uso=able)
        self.link = link
        self.vnet_size = vnet_size
        self._near, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._near, self._far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
            end.setblocking(False)

    def fileno(self) -> int:
        return self._near.fileno()

    def written(self) -> list[bytes]:
        return arrived(self._far)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._near.close()
        self._far.close()


PACKETS = [
    *stream(4, TCP, [100, 30], first_id=1),
    *stream(6, UDP, [10], sport=7),
    *stream(6, UDP, [50, 50], sport=8),
]


class Holding:
    """A hook that keeps what it is given."""

    def __init__(self, limits: Any) -> None:
        self.limits = limits
        self.packets: list[Any] = []

    def __call__(self, packets: list[Any]) -> None:
        self.packets += [packet.detach() for packet in packets]


def write(engine: Engine, writer: Any) -> None:
    with engine.GroDispatcher(writer, PARTIAL) as gro:
        gro.dispatch(PACKETS)


def merged(engine: Engine, writer: Any) -> list[Any]:
    """What a writer would be given."""
    holding = Holding(writer.limits)
    write(engine, holding)
    return holding.packets


def reference(engine: Engine, vnet_size: int) -> list[bytes]:
    with FakeDevice(vnet_size) as device:
        write(engine, engine.module("hooks.tun").TunWriter(device))
        return device.written()


def fill_backlog(writer: Any, packets: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a writer keep packets, for want of room."""

    def full(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "full")

    writer._room._timeout = 0
    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", full)
        with pytest.raises(DeviceError):
            writer(packets)


@pytest.mark.parametrize(
    ("vnet_size", "waiting"), [(10, False), (0, True)], ids=["whole", "cut, from the backlog"]
)
def test_a_writer_that_is_struck_anywhere_loses_and_repeats_no_packet(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, vnet_size: int, waiting: bool
) -> None:
    expected = reference(engine, vnet_size)
    assert len(expected) == (3 if vnet_size else 5)
    module = engine.module("hooks.tun")
    number = 0
    struck = True
    while struck:
        with FakeDevice(vnet_size) as device:
            writer = module.TunWriter(device)
            packets = merged(engine, writer)
            if waiting:
                fill_backlog(writer, packets, monkeypatch)
                packets = []
            with Strike(number, WRITER, partial(getattr, writer, "_busy")) as strike:
                writer(packets)
            struck = strike.struck
            first = device.written()
            assert first == expected[: len(first)]
            writer.flush()
            assert first + device.written() == expected
            assert writer.backlog == 0
        number += 1
    assert number > 200


@pytest.mark.parametrize("vnet_size", [10, 0], ids=["whole", "cut"])
def test_signals_at_any_time_cost_no_packet(engine: Engine, vnet_size: int) -> None:
    expected = reference(engine, vnet_size)
    generator = random.Random(9)
    interrupted = 0
    with alarms() as alarm, FakeDevice(vnet_size) as device:
        writer = engine.module("hooks.tun").TunWriter(device)
        packets = merged(engine, writer)
        for _ in range(400):
            alarm(generator.uniform(2e-6, 250e-6), partial(writer, packets))
            first = device.written()
            if first or writer.backlog:
                interrupted += writer.backlog > 0
                writer.flush()
                assert first + device.written() == expected
    assert interrupted


@pytest.mark.parametrize("done", [False, True])
def test_only_a_write_that_is_not_the_kernel_s_is_in_doubt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """One that raises when it has written is taken for one that has not: twice beats never."""
    expected = reference(engine, 10)
    with FakeDevice(10) as device:
        writer = engine.module("hooks.tun").TunWriter(device)
        writev = os.writev
        calls = [0]

        def interrupted(descriptor: int, buffers: Any) -> int:
            calls[0] += 1
            if calls[0] == 2:
                if done:
                    writev(descriptor, buffers)
                raise KeyboardInterrupt
            return writev(descriptor, buffers)

        monkeypatch.setattr(os, "writev", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write(engine, writer)
        assert calls[0] == 2, "nothing is written once it has struck"
        assert writer.backlog == 2
        assert device.written() == expected[: 1 + done]
        writer.flush()
        assert device.written() == expected[1:]


def test_a_packet_that_no_device_takes_does_not_keep_the_others(engine: Engine) -> None:
    """Before: those behind it were lost."""
    with FakeDevice(0, link="ethernet") as device:
        writer = engine.module("hooks.tun").TunWriter(device)
        with pytest.raises(ConfigError, match="no Ethernet header"):
            write(engine, writer)
        assert writer.stats.refused == 1
        while writer.backlog:
            before = writer.backlog
            with pytest.raises(ConfigError):
                writer.flush()
            assert writer.backlog < before


def test_a_writer_is_entered_by_one_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeDevice(10) as device:
        writer = engine.module("hooks.tun").TunWriter(device)
        writev = os.writev
        errors = []

        def nested(descriptor: int, buffers: Any) -> int:
            for use in (writer.flush, writer.take_back):
                with pytest.raises(EngineStateError) as raised:
                    use()
                errors.append(raised.value)
            return writev(descriptor, buffers)

        monkeypatch.setattr(os, "writev", nested)
        write(engine, writer)
        assert len(errors) == 6
        assert len(device.written()) == 3
