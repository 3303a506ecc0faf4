"""Live sources in an asyncio event loop."""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.errors import ConfigError, EngineStateError
from tests.builders import tcp4
from tests.engines import Engine

T = TypeVar("T")
PATIENCE_S = 10


@contextmanager
def pair(engine: Engine, hook: Any, kind: int = socket.SOCK_DGRAM) -> Iterator[tuple[Any, Any]]:
    """A dispatcher over one end of a socket pair, and the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    module = engine.module("dispatchers.recvmmsg")
    with theirs, module.RecvMmsgDispatcher(ours, hook, GroConfig(capacity=2)) as dispatcher:
        yield dispatcher, theirs


def run(awaitable: Awaitable[T]) -> T:
    async def within() -> T:
        return await asyncio.wait_for(awaitable, PATIENCE_S)

    return asyncio.run(within())


def segment(number: int) -> bytes:
    return tcp4(b"x" * 100, seq=100 * number, ident=number)


def test_it_dispatches_until_it_is_stopped(engine: Engine) -> None:
    serve = engine.module("dispatchers.aio").serve
    given: list[bytes] = []

    def hook(packets: list[Any]) -> None:
        given.extend(data for packet in packets for data in packet.segments())
        if len(given) == 7:
            dispatcher.stop()

    with pair(engine, hook) as (dispatcher, peer):
        for number in range(7):
            peer.send(segment(number))
        assert run(serve(dispatcher)) == 7
        assert given == [segment(number) for number in range(7)]
        peer.send(segment(7))
        assert dispatcher.dispatch_once() == 1


def test_packets_that_come_later_are_noticed(engine: Engine) -> None:
    serve = engine.module("dispatchers.aio").serve

    async def talk(dispatcher: Any, peer: socket.socket) -> int:
        task = asyncio.create_task(serve(dispatcher))
        for number in range(3):
            while len(given) < number:
                await asyncio.sleep(0)
            peer.send(segment(number))
        while len(given) < 3:
            await asyncio.sleep(0)
        dispatcher.stop()
        count: int = await task
        return count

    given: list[int] = []
    with pair(engine, lambda packets: given.append(len(packets))) as (dispatcher, peer):
        assert run(talk(dispatcher, peer)) == 3


def test_other_callbacks_get_their_turn_between_batches(engine: Engine) -> None:
    serve = engine.module("dispatchers.aio").serve
    seen: list[str] = []

    def hook(packets: list[Any]) -> None:
        seen.append("batch")

    async def talk(dispatcher: Any) -> None:
        task = asyncio.create_task(serve(dispatcher, batches=1))
        while seen.count("batch") < 5:
            await asyncio.sleep(0)
            seen.append("other")
        dispatcher.stop()
        await task

    with pair(engine, hook) as (dispatcher, peer):
        for number in range(10):
            peer.send(segment(number))
        run(talk(dispatcher))
    first, last = seen.index("batch"), len(seen) - seen[::-1].index("batch")
    assert "other" in seen[first:last]


def test_a_cancellation_leaves_the_dispatcher_as_it_was(engine: Engine) -> None:
    serve = engine.module("dispatchers.aio").serve

    async def cancel(dispatcher: Any) -> None:
        task = asyncio.create_task(serve(dispatcher))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not asyncio.get_running_loop().remove_reader(dispatcher.fileno())

    with pair(engine, lambda packets: None) as (dispatcher, peer):
        run(cancel(dispatcher))
        peer.send(segment(0))
        assert dispatcher.dispatch_once() == 1


def test_what_the_hook_raises_propagates(engine: Engine) -> None:
    serve = engine.module("dispatchers.aio").serve

    def hook(packets: list[Any]) -> None:
        raise LookupError("mine")

    with pair(engine, hook) as (dispatcher, peer):
        peer.send(segment(0))
        with pytest.raises(LookupError, match="mine"):
            run(serve(dispatcher))


def test_an_end_of_the_source_ends_it(engine: Engine) -> None:
    serve = engine.module("dispatchers.aio").serve
    with pair(engine, lambda packets: None, socket.SOCK_SEQPACKET) as (dispatcher, peer):
        peer.send(segment(0))
        peer.close()
        assert run(serve(dispatcher)) == 1
        assert dispatcher.exhausted


def test_a_source_that_is_closed_meanwhile_is_given_back_by_the_loop_first(
    engine: Engine,
) -> None:
    serve = engine.module("dispatchers.aio").serve

    async def close(dispatcher: Any) -> None:
        number = dispatcher.fileno()
        task = asyncio.create_task(serve(dispatcher))
        await asyncio.sleep(0)
        dispatcher.close()
        os.fstat(number)  # still open, as the loop watches it
        await task
        with pytest.raises(OSError) as caught:
            os.fstat(number)
        assert caught.value.errno == errno.EBADF

    with pair(engine, lambda packets: None) as (dispatcher, _peer):
        run(close(dispatcher))
        with pytest.raises(EngineStateError, match="closed"):
            run(serve(dispatcher))


def test_nobody_else_reads_what_a_loop_serves(engine: Engine) -> None:
    serve = engine.module("dispatchers.aio").serve

    async def intrude(dispatcher: Any) -> None:
        task = asyncio.create_task(serve(dispatcher))
        await asyncio.sleep(0)
        with pytest.raises(EngineStateError, match="at work already"):
            dispatcher.dispatch_once(0)
        with pytest.raises(EngineStateError, match="at work already"):
            await serve(dispatcher)
        dispatcher.stop()
        await task

    with pair(engine, lambda packets: None) as (dispatcher, _peer):
        run(intrude(dispatcher))


def test_a_descriptor_that_others_closed_is_an_error_and_no_busy_loop(engine: Engine) -> None:
    serve = engine.module("dispatchers.aio").serve
    with pair(engine, lambda packets: None) as (dispatcher, _peer):

        async def closed() -> object:  # within the loop: its descriptors would take the number
            os.close(dispatcher.fileno())
            return await serve(dispatcher)

        with pytest.raises(OSError) as caught:
            run(closed())
        assert caught.value.errno == errno.EBADF


def test_fewer_than_one_batch_a_turn_is_refused(engine: Engine) -> None:
    serve = engine.module("dispatchers.aio").serve
    with (
        pair(engine, lambda packets: None) as (dispatcher, _peer),
        pytest.raises(ConfigError, match="batches"),
    ):
        run(serve(dispatcher, batches=0))


@pytest.mark.parametrize("kind", [StopIteration, asyncio.CancelledError, GeneratorExit])
def test_what_no_future_takes_propagates_as_well(engine: Engine, kind: type) -> None:
    serve = engine.module("dispatchers.aio").serve
    seen: list[int] = []

    def hook(packets: list[Any]) -> None:
        seen.append(len(packets))
        raise kind("mine")

    async def talk(dispatcher: Any) -> None:
        with pytest.raises((kind, RuntimeError)):  # a coroutine turns StopIteration into the latter
            await serve(dispatcher)

    with pair(engine, hook) as (dispatcher, peer):
        peer.send(segment(0))
        run(talk(dispatcher))
    assert seen == [1]
