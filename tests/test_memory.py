"""Everything is allocated once: no growth over many batches, no copies of payload on the way."""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from tests.builders import tcp4
from tests.engines import Engine
from tests.traffic import TrafficPacket, generate

BATCHES = 10_000


def bulk(segments: int, size: int, start: int = 0) -> list[bytes]:
    """One flow of segments that merge."""
    return [
        tcp4(bytes(size), seq=start + size * number, ident=number) for number in range(segments)
    ]


def filled(engine: Engine, packets: list[bytes] | list[TrafficPacket]) -> Any:
    batch = engine.Batch(capacity=len(packets))
    for packet in packets:
        if isinstance(packet, bytes):
            batch.append(packet)
        else:
            batch.append(packet.data, **packet.keywords())
    return batch


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def resident() -> int:
    """Bytes of this process in memory."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def look(packets: list[Any]) -> None:
    """A hook that asks for everything and keeps nothing."""
    for packet in packets:
        bytes(packet)
        packet.virtio_header()
        packet.timestamps()
        len(packet)


@pytest.mark.parametrize("hook", [len, look], ids=["that looks at nothing", "that looks at all"])
def test_ten_thousand_batches_allocate_nothing_that_stays(
    engine: Engine, hook: Callable[[list[Any]], object]
) -> None:
    batch = filled(engine, [*bulk(6, 100), b"neither", *bulk(3, 50, start=9000)])
    gro = engine.GroDispatcher(hook, GroConfig(capacity=64))
    with no_collector():
        for _ in range(100):
            gro.dispatch(batch)
        blocks = sys.getallocatedblocks()
        for _ in range(BATCHES):
            gro.dispatch(batch)
        grown = sys.getallocatedblocks() - blocks
    # The counters of an interpreted engine outgrow the interpreter's small integers.
    assert grown < 50
    assert gro.stats.batches == BATCHES + 100


def test_ten_thousand_batches_of_every_kind_do_not_grow_the_process(engine: Engine) -> None:
    made = list(generate(9, 3000, max_batch=24, sizes=(100, 50, 7)))
    batches = [filled(engine, packets) for packets in made]
    rounds = BATCHES // len(batches) + 1
    if engine.name == "interpreted":
        rounds = rounds // 4 + 1
    gro = engine.GroDispatcher(look, GroConfig(udp=True, capacity=64))

    def run(times: int) -> None:
        for _ in range(times):
            for batch, packets in zip(batches, made, strict=True):
                gro.dispatch(batch)
                for packet in packets[:5]:
                    gro.enqueue(packet.data, **packet.keywords())
                gro.flush()

    with no_collector():
        run(2)
        blocks, before = sys.getallocatedblocks(), resident()
        run(rounds)
        assert sys.getallocatedblocks() - blocks < 200
        assert resident() - before < 2**20


def test_a_flush_copies_no_payload(engine: Engine) -> None:
    batch = filled(engine, bulk(44, 1448))
    gro = engine.GroDispatcher(len, GroConfig(capacity=64))
    gro.dispatch(batch)
    tracemalloc.start()
    try:
        gro.dispatch(batch)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        gro.dispatch(batch)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # One packet at a time is summed from a slice by the interpreted engine.
    assert peak < 8192


def test_packets_that_a_hook_kept_are_given_back_with_it(engine: Engine) -> None:
    batch = filled(engine, bulk(10, 100))
    kept: list[Any] = []
    gro = engine.GroDispatcher(kept.extend, GroConfig(capacity=16))

    def keep_and_forget() -> int:
        for _ in range(1000):
            gro.dispatch(batch)
        assert len({id(packet) for packet in kept}) == 1000
        kept.clear()
        return sys.getallocatedblocks()

    with no_collector():
        keep_and_forget()  # fills the interpreter's own free lists
        blocks = keep_and_forget()
        assert keep_and_forget() - blocks < 50


def test_engines_and_batches_give_back_all_their_memory(engine: Engine) -> None:
    packets = bulk(4, 100)
    capacity = 4096 if engine.name == "compiled" else 256

    def live_once() -> None:
        gro = engine.GroDispatcher(look, GroConfig(capacity=capacity))
        batch = engine.Batch(bytearray(1000), capacity=capacity)
        batch.append(packets[0])
        gro.dispatch(batch)
        gro.dispatch(packets)
        gro.enqueue(packets[0])

    for _ in range(5):
        live_once()
    gc.collect()
    blocks, before = sys.getallocatedblocks(), resident()
    for _ in range(60):
        live_once()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 200
    assert resident() - before < 4 * 2**20


def test_cutting_gives_back_what_it_takes(engine: Engine) -> None:
    delivered: list[tuple[bytes, Any, Any]] = []

    def hook(packets: list[Any]) -> None:
        delivered.extend((bytes(p), p.virtio_header(), p.ip_id_mode) for p in packets)

    engine.GroDispatcher(hook).dispatch(bulk(30, 1000))
    (arguments,) = delivered
    with no_collector():
        assert len(list(engine.segment(*arguments))) == 30
        blocks = sys.getallocatedblocks()
        for _ in range(300):
            for _ in chain(engine.segment(*arguments), engine.segment(*arguments)):
                pass
            next(engine.segment(*arguments))
        assert sys.getallocatedblocks() - blocks < 20
