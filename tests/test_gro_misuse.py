"""An engine whose hook raises, comes back into it, or tampers with the batch in flight."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.errors import EngineStateError
from tests.builders import tcp4
from tests.engines import Engine
from tests.flushes import Recorder, batch_of


def stream(count: int, size: int = 100, start: int = 0, **fields: Any) -> list[bytes]:
    """Consecutive segments of one flow."""
    return [
        tcp4(bytes(size), seq=1 + size * place, ident=place, **fields)
        for place in range(start, start + count)
    ]


# --- the hook ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["list", "batch", "enqueue"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_hook_s_exception_propagates_and_the_next_batch_starts_clean(
    engine: Engine, way: str, error: type[BaseException]
) -> None:
    recorder = Recorder()
    fail = [True, False]

    def hook(packets: list[Any]) -> None:
        recorder(packets)
        if fail.pop(0):
            raise error("from the hook")

    gro = engine.GroDispatcher(hook)
    packets = stream(4)

    def send(some: list[bytes]) -> None:
        if way == "enqueue":
            for packet in some:
                gro.enqueue(packet)
            gro.flush()
        else:
            gro.dispatch(some if way == "list" else batch_of(engine, some))

    with pytest.raises(error, match="from the hook"):
        send(packets[:2])
    assert gro.pending == 0
    send(packets[2:])  # continues the flow, yet nothing of the first batch is left
    assert recorder.counts == [2, 2]
    assert recorder.given[1].segments == packets[2:]


def test_packets_behind_a_hook_that_raised_at_the_capacity_can_be_sent_again(
    engine: Engine,
) -> None:
    calls = []

    def hook(packets: list[Any]) -> None:
        calls.append([bytes(packet) for packet in packets])
        if len(calls) == 1:
            raise OSError("full")

    batch = batch_of(engine, [tcp4(b"x", sport=port) for port in range(4)])
    gro = engine.GroDispatcher(hook, GroConfig(capacity=2))
    with pytest.raises(OSError, match="full"):
        gro.dispatch(batch)
    assert len(batch) == 4
    assert gro.dispatch(batch) == 4
    assert [len(call) for call in calls] == [2, 2, 2]


def re_entrances(engine: Engine, gro: Any, batch: Any) -> list[Any]:
    return [
        lambda: gro.dispatch([b"x", b"y"]),
        lambda: gro.dispatch(batch),
        lambda: gro.enqueue(b"x"),
        gro.flush,
        gro.close,
        lambda: gro.__exit__(None, None, None),
    ]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("way", ["list", "batch", "enqueue"])
def test_a_hook_that_enters_its_own_engine_gets_an_error(
    engine: Engine, number: int, way: str
) -> None:
    errors: list[BaseException] = []
    recorder = Recorder()
    batch = batch_of(engine, stream(2))

    def hook(packets: list[Any]) -> None:
        recorder(packets)
        try:
            re_entrances(engine, gro, batch)[number]()
        except RuntimeError as error:
            errors.append(error)
        assert bytes(packets[0]) == recorder.data[-1]

    gro = engine.GroDispatcher(hook)
    for _ in range(2):
        if way == "enqueue":
            for packet in stream(2):
                gro.enqueue(packet)
            gro.flush()
        else:
            gro.dispatch(batch if way == "batch" else stream(2))
    assert [type(error) for error in errors] == [EngineStateError] * 2
    assert recorder.counts == [2, 2]


def test_an_iterable_that_enters_the_engine_gets_an_error(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)

    def packets() -> Iterator[bytes]:
        yield tcp4(b"x")
        gro.enqueue(b"y")

    with pytest.raises(EngineStateError):
        gro.dispatch(packets())
    assert hook.counts == [1]


def test_a_hook_may_read_the_engine_s_state(engine: Engine) -> None:
    seen = []

    def hook(packets: list[Any]) -> None:
        seen.append((gro.enabled, gro.config, gro.hook, gro.stats.packets_in))

    gro = engine.GroDispatcher(hook)
    gro.dispatch(stream(2))
    assert seen == [(True, gro.config, hook, 2)]


def test_a_second_thread_inside_the_engine_gets_an_error(engine: Engine) -> None:
    inside, done = threading.Event(), threading.Event()
    recorder = Recorder()

    def hook(packets: list[Any]) -> None:
        recorder(packets)
        inside.set()
        assert done.wait(20)

    gro = engine.GroDispatcher(hook)
    worker = threading.Thread(target=gro.dispatch, args=(stream(2),))
    worker.start()
    try:
        assert inside.wait(20)
        for call in (gro.flush, lambda: gro.enqueue(b"x"), lambda: gro.dispatch([b"x"])):
            with pytest.raises(EngineStateError, match="thread"):
                call()
    finally:
        done.set()
        worker.join(20)
    assert not worker.is_alive()
    gro.dispatch(stream(3))
    assert recorder.counts == [2, 3]


def test_the_list_belongs_to_the_hook(engine: Engine) -> None:
    lists: list[list[Any]] = []

    def hook(packets: list[Any]) -> None:
        lists.append(packets)
        packets.reverse()
        packets.append(None)

    gro = engine.GroDispatcher(hook)
    gro.dispatch([b"a", b"b"])
    gro.dispatch([b"c", b"d"])
    assert lists[0] is not lists[1]
    assert [len(packets) for packets in lists] == [3, 3]


# --- a batch in use ------------------------------------------------------------------------------


def test_a_batch_cannot_be_changed_while_it_is_dispatched(engine: Engine) -> None:
    batch = engine.Batch(bytearray(tcp4(b"x")), capacity=8)
    batch.append(tcp4(b"x"))
    batch.add(0, 41)
    errors = []

    def hook(packets: list[Any]) -> None:
        for change in (
            batch.clear,
            batch.recycle,
            lambda: batch.append(b"y"),
            lambda: batch.add(0, 1),
        ):
            with pytest.raises(EngineStateError, match="dispatched") as caught:
                change()
            errors.append(caught.value)

    gro = engine.GroDispatcher(hook)
    gro.dispatch(batch)
    gro.enqueue(b"pending")
    gro.dispatch(batch)
    assert len(errors) == 8
    assert len(batch) == 2
    batch.clear()
    batch.append(b"y")


def test_a_batch_is_dispatched_by_one_engine_at_a_time(engine: Engine) -> None:
    batch = batch_of(engine, stream(2))
    inner = Recorder()
    other = engine.GroDispatcher(inner)
    errors = []

    def hook(packets: list[Any]) -> None:
        for pending in (False, True):
            if pending:
                other.enqueue(tcp4(b"own"))
            with pytest.raises(EngineStateError, match="another engine") as caught:
                other.dispatch(batch)
            errors.append(caught.value)

    engine.GroDispatcher(hook).dispatch(batch)
    other.flush()
    other.dispatch(batch)
    assert len(errors) == 2
    assert inner.counts == [1, 2]


def test_a_batch_is_free_again_after_the_hook_raised(engine: Engine) -> None:
    def fail(packets: list[Any]) -> None:
        raise OSError

    batch = batch_of(engine, stream(2))
    gro = engine.GroDispatcher(fail)
    for pending in (False, True):
        if pending:
            gro.enqueue(b"x")
        with pytest.raises(OSError):
            gro.dispatch(batch)
    batch.append(b"y")
    batch.clear()


def test_a_batch_of_another_engine_s_kind_is_refused(both_engines: tuple[Engine, Engine]) -> None:
    for one, other in (both_engines, both_engines[::-1]):
        with pytest.raises(TypeError):
            one.GroDispatcher(Recorder()).dispatch(batch_of(other, stream(2)))


# --- the predicate -------------------------------------------------------------------------------


def test_a_predicate_that_enters_the_engine_gets_an_error(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    batch = batch_of(engine, stream(2))
    errors = []

    def predicate(flow: Any) -> bool:
        for number in range(6):
            with pytest.raises(EngineStateError) as caught:
                re_entrances(engine, gro, batch)[number]()
            errors.append(caught.value)
        return False

    gro.never_merge = predicate
    gro.dispatch(batch)
    assert len(errors) == 6
    assert hook.counts == [2]


def test_a_predicate_that_switches_merging_off_is_obeyed_at_once(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)

    def predicate(flow: Any) -> bool:
        gro.enabled = False
        return False

    gro.never_merge = predicate
    packets = stream(3)
    gro.dispatch(packets)
    assert hook.data == packets
    assert hook.verdicts[1:] == ["DISABLED", "DISABLED"]


def test_a_predicate_and_a_hook_that_both_raise_lose_neither_error(engine: Engine) -> None:
    def hook(packets: list[Any]) -> None:
        raise OSError("from the hook")

    def predicate(flow: Any) -> bool:
        raise LookupError("from the predicate")

    gro = engine.GroDispatcher(hook)
    gro.never_merge = predicate
    with pytest.raises((OSError, LookupError)) as caught:
        gro.dispatch(stream(2))
    context = caught.value.__context__
    assert {type(caught.value), type(context)} == {OSError, LookupError}
    with pytest.raises((OSError, LookupError)):
        gro.dispatch(stream(2))
    assert gro.stats.packets_in == 4


def test_a_coroutine_function_is_no_hook(engine: Engine) -> None:
    async def hook(packets: list[Any]) -> None:
        """Nobody would await it."""

    with pytest.raises(TypeError, match="coroutine"):
        engine.GroDispatcher(hook)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_one_packet_is_no_batch(engine: Engine, kind: Any) -> None:
    gro = engine.GroDispatcher(lambda packets: None)
    with pytest.raises(TypeError, match="enqueue"):
        gro.dispatch(kind(b"a packet"))
    assert gro.stats.packets_in == 0


@pytest.mark.parametrize("limits", [None, "udp", 7])
def test_a_sink_has_limits_or_is_refused(engine: Engine, limits: object) -> None:
    class Sink:
        def __init__(self) -> None:
            self.limits = limits

        def __call__(self, packets: list[Any]) -> None:
            raise AssertionError("nothing may be delivered")

    gro = engine.GroDispatcher(Sink())
    for _ in range(2):
        with pytest.raises(TypeError, match="limits"):
            gro.dispatch([b"one", b"two"])
    assert gro.stats.packets_in == 0


def test_a_range_of_no_slab_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(ValueError, match="no slab"):
        engine.Batch().add(0, 10)
