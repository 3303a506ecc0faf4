"""What interrupts the engine itself: no memory, Ctrl-C. It ends the batch and harms nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from tests.builders import tcp4
from tests.engines import Engine

CAPACITY = 4
SEGMENTS = [tcp4(bytes(100), seq=1 + 100 * number, ident=number) for number in range(CAPACITY)]
OTHERS = [tcp4(b"x", sport=2000 + number, ident=number) for number in range(CAPACITY)]


class Keeper:
    """A hook that keeps every packet, and what each had to say while it could."""

    def __init__(self) -> None:
        self.packets: list[Any] = []
        self.data: list[bytes] = []

    def __call__(self, packets: list[Any]) -> None:
        for packet in packets:
            self.packets.append(packet)
            self.data.append(bytes(packet))


def dispatch_batch(engine: Engine, gro: Any, packets: list[bytes]) -> None:
    batch = engine.Batch(capacity=CAPACITY)
    for packet in packets:
        batch.append(packet)
    gro.dispatch(batch)


def dispatch_list(engine: Engine, gro: Any, packets: list[bytes]) -> None:
    gro.dispatch(packets)


def enqueue(engine: Engine, gro: Any, packets: list[bytes]) -> None:
    for packet in packets:
        gro.enqueue(packet)
    gro.flush()


WAYS = [dispatch_batch, dispatch_list, enqueue]
Way = Callable[[Engine, Any, list[bytes]], None]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("packets", [SEGMENTS, OTHERS], ids=["merging", "not merging"])
def test_memory_that_fails_anywhere_leaves_a_clean_engine(
    engine: Engine, way: Way, packets: list[bytes]
) -> None:
    if engine.name == "interpreted":
        pytest.skip("the interpreter's own objects fail first, in places without number")
    testcapi = pytest.importorskip("_testcapi", reason="needs CPython's module that fails malloc")
    failures = 0
    for failing in range(60):
        hook = Keeper()
        gro = engine.GroDispatcher(hook, GroConfig(capacity=CAPACITY))
        failed = False
        try:
            testcapi.set_nomemory(failing, failing + 1)
            way(engine, gro, packets)
        except MemoryError:
            failed = True
            failures += 1
        finally:
            testcapi.remove_mem_hooks()
        gro.flush()
        kept = list(hook.packets)
        hook.packets.clear()
        hook.data.clear()
        way(engine, gro, OTHERS)
        assert hook.data == OTHERS, f"after failure {failing} ({failed})"
        for packet in kept:
            with pytest.raises(ValueError, match="released"):
                bytes(packet)
        stats = gro.stats
        assert sum(stats.verdicts.values()) == stats.packets_in
    assert failures, "no allocation failed, so nothing was tried"


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_while_packets_are_parsed_ends_the_batch(
    engine: Engine, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine.name == "compiled":
        pytest.skip("compiled, no Python code runs while packets are parsed")
    headers = engine.module("headers")
    parse = headers.parse
    calls = 0

    def interrupted(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        answer: int = parse(*arguments)
        return answer

    hook = Keeper()
    gro = engine.GroDispatcher(hook, GroConfig(capacity=CAPACITY))
    monkeypatch.setattr(headers, "parse", interrupted)
    with pytest.raises(KeyboardInterrupt):
        way(engine, gro, OTHERS)
    monkeypatch.undo()
    delivered = list(hook.data)
    assert delivered in ([], OTHERS[:2]), "what was delivered is whole packets, each once"
    assert gro.pending == 0
    hook.data.clear()
    way(engine, gro, OTHERS)
    assert hook.data == OTHERS
    stats = gro.stats
    assert stats.packets_in == sum(stats.verdicts.values()) == len(delivered) + len(OTHERS)


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_in_the_hook_leaves_a_clean_engine(engine: Engine, way: Way) -> None:
    kept: list[Any] = []

    def hook(packets: list[Any]) -> None:
        kept.extend(packets)
        if len(kept) == CAPACITY:
            raise KeyboardInterrupt

    gro = engine.GroDispatcher(hook, GroConfig(capacity=CAPACITY))
    with pytest.raises(KeyboardInterrupt):
        way(engine, gro, OTHERS)
    way(engine, gro, OTHERS)
    assert len(kept) == 2 * CAPACITY
    for packet in kept:
        assert len(packet) == len(OTHERS[0])
        with pytest.raises(ValueError, match="released"):
            bytes(packet)
