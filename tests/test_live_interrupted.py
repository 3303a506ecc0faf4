"""A signal handler that raises, at any instant: nothing stays at work, and what was closed is.

Interpreted only where hot modules take part: compiled code runs no handlers.
"""

import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import pytest

from netstack_gro.config import GroConfig
from tests.builders import tcp4
from tests.engines import Engine

TOOL = 3
"""One of those that sys.monitoring has for tools without a name."""

PACKETS = [tcp4(b"x", sport=2000 + number) for number in range(8)]


class Strike:
    """Raises KeyboardInterrupt once while it is entered; ``struck`` says whether it came to that.

    Before the instruction of ``number``, of those that the functions of ``codes`` execute.
    """

    def __init__(self, number: int, codes: set[CodeType]) -> None:
        self.struck = False
        self._left = number
        self._codes = codes

    def __enter__(self) -> Self:
        if sys.version_info >= (3, 12):
            monitoring = sys.monitoring
            monitoring.use_tool_id(TOOL, "strike")
            instruction = monitoring.events.INSTRUCTION
            monitoring.register_callback(TOOL, instruction, lambda *place: self._step())
            for code in self._codes:
                monitoring.set_local_events(TOOL, code, instruction)
        else:  # whose successors do not trace every instruction
            sys.settrace(self._enter)
        return self

    def __exit__(self, *exception: object) -> None:
        if sys.version_info >= (3, 12):
            for code in self._codes:
                sys.monitoring.set_local_events(TOOL, code, 0)
            sys.monitoring.free_tool_id(TOOL)
        else:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in self._codes:
            return None
        frame.f_trace_opcodes = True
        return self._trace

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "opcode":
            self._step()
        return self._trace

    def _step(self) -> None:
        self._left -= 1
        if self._left < 0 and not self.struck:
            self.struck = True
            raise KeyboardInterrupt


class Signal:
    """The same, where the interpreter looks for signals: in a function's beginning, after a call.

    Of all functions in the files whose names begin with ``path``.
    """

    def __init__(self, number: int, path: str) -> None:
        self.struck = False
        self._left = number
        self._path = path

    def __enter__(self) -> Self:
        sys.setprofile(self._step)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def _step(self, frame: FrameType, event: str, _: object) -> None:
        if event in {"call", "c_return"} and frame.f_code.co_filename.startswith(self._path):
            self._left -= 1
            if self._left < 0 and not self.struck:
                self.struck = True
                raise KeyboardInterrupt


def guard(engine: Engine) -> set[CodeType]:
    """The code that sees to it that one thread at a time is in a source, and lets go of it."""
    source = engine.module("dispatchers.live").LiveSource
    manager = contextlib._GeneratorContextManager
    functions: list[Any] = [
        source._read_once,
        source._enter,
        source._leave,
        source._yield,
        source._release,
        source._let_go,
        source.close,
        source.watched.__wrapped__,
        manager.__enter__,
        manager.__exit__,
    ]
    return {function.__code__ for function in functions}


@contextmanager
def pair(engine: Engine, hook: Any) -> Iterator[tuple[Any, socket.socket]]:
    """A dispatcher over one end of a socket pair, and the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = engine.module("dispatchers.readv").ReadvDispatcher(
        ours, hook, GroConfig(capacity=4), frame_size=256
    )
    with theirs:
        try:
            yield made, theirs
        finally:
            made.close()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def at_every_instant(engine: Engine, attempt: Callable[[int], bool], at_least: int) -> None:
    """Have ``attempt`` struck at one instant after the other, until none is left."""
    if engine.name == "compiled":
        pytest.skip("the same code, of which only the engine is compiled")
    for number in itertools.count():
        if not attempt(number):
            assert number >= at_least
            return


def test_at_every_instruction_of_a_read_it_is_left_and_what_came_is_delivered_once(
    engine: Engine,
) -> None:
    def attempt(number: int) -> bool:
        given: list[bytes] = []
        with pair(engine, lambda packets: given.extend(map(bytes, packets))) as (dispatcher, peer):
            descriptor = dispatcher.fileno()
            peer.send(PACKETS[0])
            strike = Strike(number, guard(engine))
            with suppress(KeyboardInterrupt), strike:
                dispatcher.dispatch_once(0)
            dispatcher.dispatch_once(0)
            assert given == PACKETS[:1]
            dispatcher.close()
            assert not is_open(descriptor)
        return strike.struck

    at_every_instant(engine, attempt, 60)


def test_at_every_instruction_of_a_read_whose_hook_closes_it_the_descriptor_is_closed(
    engine: Engine,
) -> None:
    def attempt(number: int) -> bool:
        opened: list[Any] = []
        with pair(engine, lambda packets: opened[0].close()) as (dispatcher, peer):
            opened.append(dispatcher)
            descriptor = dispatcher.fileno()
            peer.send(PACKETS[0])
            strike = Strike(number, guard(engine))
            with suppress(KeyboardInterrupt), strike:
                dispatcher.dispatch_once(0)
            dispatcher.close()
            assert not is_open(descriptor)
        return strike.struck

    at_every_instant(engine, attempt, 150)


def test_at_every_instruction_of_closing_it_can_be_closed_again(engine: Engine) -> None:
    def attempt(number: int) -> bool:
        with pair(engine, len) as (dispatcher, _peer):
            descriptor = dispatcher.fileno()
            strike = Strike(number, guard(engine))
            with suppress(KeyboardInterrupt), strike:
                dispatcher.close()
            dispatcher.close()
            assert not is_open(descriptor)
            successor = os.open(os.devnull, os.O_RDONLY)
            try:
                assert successor == descriptor
                dispatcher.close()
                assert is_open(successor)
            finally:
                os.close(successor)
        return strike.struck

    at_every_instant(engine, attempt, 60)


def test_at_every_instruction_of_an_event_loop_s_watch_it_ends(engine: Engine) -> None:
    def attempt(number: int) -> bool:
        with pair(engine, len) as (dispatcher, peer):
            descriptor = dispatcher.fileno()
            strike = Strike(number, guard(engine))
            with suppress(KeyboardInterrupt), strike, dispatcher.watched():
                pass
            peer.send(PACKETS[0])
            assert dispatcher.dispatch_once(0) == 1
            dispatcher.close()
            assert not is_open(descriptor)
        return strike.struck

    at_every_instant(engine, attempt, 60)


def test_wherever_a_signal_comes_a_batch_is_delivered_at_most_once(engine: Engine) -> None:
    def attempt(number: int) -> bool:
        given: list[bytes] = []
        with pair(engine, lambda packets: given.extend(map(bytes, packets))) as (dispatcher, peer):
            for packet in PACKETS[:4]:
                peer.send(packet)
            signal = Signal(number, str(Path(engine.module("gro").__file__ or "").parent))
            with suppress(KeyboardInterrupt), signal:
                dispatcher.dispatch_once(0)
            dispatcher.dispatch_once(0)
            for packet in PACKETS[4:]:
                peer.send(packet)
            while dispatcher.dispatch_once(0):
                pass
            assert len(set(given)) == len(given)
            assert given[-4:] == PACKETS[4:]
        return signal.struck

    at_every_instant(engine, attempt, 8)


@pytest.mark.parametrize("way", ["dispatch", "enqueue"])
def test_wherever_a_signal_comes_the_engine_is_not_left_at_work(engine: Engine, way: str) -> None:
    def attempt(number: int) -> bool:
        given: list[bytes] = []
        gro = engine.GroDispatcher(
            lambda packets: given.extend(map(bytes, packets)), GroConfig(capacity=4)
        )
        signal = Signal(number, engine.module("gro").__file__ or "")
        with suppress(KeyboardInterrupt), signal:
            if way == "dispatch":
                gro.dispatch(PACKETS[:4])
            else:
                gro.enqueue(PACKETS[0])
                gro.flush()
        gro.flush()
        gro.dispatch(PACKETS[4:])
        assert given[-4:] == PACKETS[4:]
        gro.close()
        return signal.struck

    at_every_instant(engine, attempt, 8)
