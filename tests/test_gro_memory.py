"""What an engine holds, for how long, and that it gives all of it back."""

import gc
import sys
import tracemalloc
import weakref
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.errors import PinnedError
from tests.builders import tcp4, udp4
from tests.engines import Engine
from tests.flushes import Recorder, batch_of


def stream(count: int, size: int = 100, start: int = 0, **fields: Any) -> list[bytes]:
    """Consecutive segments of one flow."""
    return [
        tcp4(bytes(size), seq=1 + size * place, ident=place, **fields)
        for place in range(start, start + count)
    ]


# --- memory --------------------------------------------------------------------------------------


def test_borrowed_buffers_are_given_back_by_the_flush(engine: Engine) -> None:
    class Watched(bytearray):
        """Bytes that can be referred to weakly."""

    gro = engine.GroDispatcher(Recorder())
    packets = [Watched(packet) for packet in stream(3)]
    watched = [weakref.ref(packet) for packet in packets]
    gro.dispatch(packets)
    for packet in packets:
        gro.enqueue(packet)
    del packet
    packets.clear()
    assert all(watch() is not None for watch in watched)
    gro.flush()
    gc.collect()
    assert [watch() for watch in watched] == [None] * 3


def test_references_to_bytes_are_given_back_by_the_flush(engine: Engine) -> None:
    gro = engine.GroDispatcher(Recorder())
    packets = [bytes(bytearray(packet)) for packet in stream(3)]
    before = [sys.getrefcount(packet) for packet in packets]
    for _ in range(3):
        gro.dispatch(packets)
    assert [sys.getrefcount(packet) for packet in packets] == before


def test_a_buffer_is_free_to_be_resized_after_the_flush(engine: Engine) -> None:
    gro = engine.GroDispatcher(Recorder())
    packet = bytearray(tcp4(b"x"))
    gro.enqueue(packet)
    with pytest.raises(BufferError):
        packet.clear()
    gro.flush()
    packet.clear()


def test_buffers_are_given_back_when_the_hook_or_the_iterable_raised(engine: Engine) -> None:
    def fail(packets: list[Any]) -> None:
        raise OSError

    packets = [bytearray(packet) for packet in stream(2)]
    gro = engine.GroDispatcher(fail)
    with pytest.raises(OSError):
        gro.dispatch(packets)
    with pytest.raises(OSError):
        gro.dispatch([*packets, None])
    for packet in packets:
        packet.clear()


def test_an_engine_and_its_hook_can_be_collected_though_they_refer_to_each_other(
    engine: Engine,
) -> None:
    class Stack:
        def __init__(self) -> None:
            self.gro = engine.GroDispatcher(self.take)

        def take(self, packets: list[Any]) -> None:
            self.last = packets

    stack = Stack()
    stack.gro.dispatch(stream(3))
    stack.gro.enqueue(tcp4(b"x"))
    watch = weakref.ref(stack)
    del stack
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("way", ["list", "batch", "enqueue"])
@pytest.mark.parametrize("keep", [False, True], ids=["dropped", "kept until the next"])
def test_thousands_of_flushes_leave_no_memory_behind(engine: Engine, way: str, keep: bool) -> None:
    kept: list[Any] = []

    def hook(packets: list[Any]) -> None:
        if keep:
            kept[:] = packets
        for packet in packets:
            assert packet.packets
            if keep:
                packet.virtio_header()

    gro = engine.GroDispatcher(hook, GroConfig(capacity=16, udp=True))
    packets = [*stream(3), tcp4(b""), udp4(b"abc"), udp4(b"abc", ident=1), b"\xff"]
    batch = batch_of(engine, packets)

    def send(times: int) -> None:
        for _ in range(times):
            if way == "enqueue":
                for packet in packets:
                    gro.enqueue(packet)
                gro.flush()
            else:
                gro.dispatch(batch if way == "batch" else packets)

    flushes = 10_000 if engine.name == "compiled" and way == "batch" else 600
    send(50)
    gc.collect()
    references = [sys.getrefcount(packet) for packet in packets]
    tracemalloc.start()
    try:
        send(20)
        before = tracemalloc.get_traced_memory()[0]
        send(flushes)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 4096
    assert [sys.getrefcount(packet) for packet in packets] == references


def test_ten_thousand_flushes_leave_no_objects_behind(engine: Engine) -> None:
    gro = engine.GroDispatcher(lambda packets: [len(packet) for packet in packets])
    packets = stream(2)
    gro.dispatch(packets)
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(10_000):
        gro.dispatch(packets)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 200


def test_a_hook_that_raises_every_time_leaves_no_memory_behind(engine: Engine) -> None:
    def hook(packets: list[Any]) -> None:
        raise OSError(packets)

    gro = engine.GroDispatcher(hook)

    def send(times: int) -> None:
        for _ in range(times):
            with pytest.raises(OSError):
                gro.dispatch(stream(3))

    send(50)
    gc.collect()
    blocks = sys.getallocatedblocks()
    send(500)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 200


# --- views that a hook keeps ---------------------------------------------------------------------


class Keeper:
    """A hook that keeps a view of each packet's header, and what the view showed."""

    def __init__(self, take: Any) -> None:
        self.take = take
        self.kept: list[tuple[memoryview, bytes]] = []
        self.data: list[bytes] = []

    def __call__(self, packets: list[Any]) -> None:
        for packet in packets:
            self.data.append(bytes(packet))
            view = self.take(packet)
            self.kept.append((view, bytes(view)))

    def unharmed(self) -> bool:
        return all(bytes(view) == data for view, data in self.kept)


VIEWS = {
    "header": lambda packet: packet.header,
    "part of the header": lambda packet: packet.header[4:9],
    "buffers": lambda packet: packet.buffers()[0],
    "a cast of it": lambda packet: memoryview(packet.buffers()[0]).cast("b"),
}


@pytest.mark.parametrize("take", VIEWS)
def test_a_kept_view_of_a_header_is_never_overwritten(engine: Engine, take: str) -> None:
    hook = Keeper(VIEWS[take])
    gro = engine.GroDispatcher(hook, GroConfig(capacity=8, max_slabs=4))
    for port in range(3):
        gro.dispatch(stream(3, sport=port))
        assert hook.unharmed()
    assert gro.stats.pinned == 2
    hook.kept.clear()
    for port in range(10):
        gro.dispatch(stream(3, sport=port))
        hook.kept.clear()
    assert gro.stats.pinned == 2
    assert all(len(data) == 340 for data in hook.data)


def test_views_that_are_let_go_within_the_hook_pin_nothing(engine: Engine) -> None:
    def hook(packets: list[Any]) -> None:
        for packet in packets:
            packet.header[8] = 9
            assert packet.buffers()

    gro = engine.GroDispatcher(hook, GroConfig(max_slabs=1))
    for _ in range(5):
        gro.dispatch(stream(3))
    assert gro.stats.pinned == 0


@pytest.mark.parametrize("way", ["list", "batch", "enqueue"])
def test_beyond_max_slabs_every_batch_is_refused_and_no_view_overwritten(
    engine: Engine, way: str
) -> None:
    hook = Keeper(lambda packet: packet.header)
    gro = engine.GroDispatcher(hook, GroConfig(capacity=8, max_slabs=2))

    def send(port: int) -> None:
        if way == "enqueue":
            for packet in stream(3, sport=port):
                gro.enqueue(packet)
            gro.flush()
        else:
            packets = stream(3, sport=port)
            gro.dispatch(packets if way == "list" else batch_of(engine, packets))

    send(1)
    send(2)
    for port in (3, 4, 5):
        with pytest.raises(PinnedError, match="max_slabs"):
            send(port)
        assert gro.pending == 0
        assert hook.unharmed()
    assert len(hook.data) == 2
    hook.kept.pop()
    send(6)
    assert len(hook.data) == 3
    assert hook.unharmed()


def test_a_batch_that_was_refused_can_be_sent_when_the_view_is_gone(engine: Engine) -> None:
    hook = Keeper(lambda packet: packet.header)
    gro = engine.GroDispatcher(hook, GroConfig(max_slabs=1))
    gro.dispatch(stream(3))
    batch = batch_of(engine, stream(2))
    for _ in range(2):
        with pytest.raises(PinnedError):
            gro.dispatch(batch)
    hook.kept.clear()
    assert gro.dispatch(batch) == 2
    assert [len(data) for data in hook.data] == [340, 240]
    assert gro.stats.packets_in == 5


def test_a_kept_view_of_the_slab_survives_the_next_read(engine: Engine) -> None:
    packets = stream(2)
    batch = engine.Batch(bytearray(b"".join(packets)))
    kept: list[memoryview] = []
    gro = engine.GroDispatcher(lambda given: kept.extend(given[0].buffers()))
    for _ in range(2):
        batch.slab[:] = b"".join(packets)
        batch.add(0, 140)
        batch.add(140, 140)
        gro.dispatch(batch)
        batch.recycle()
        batch.slab[:] = bytes(280)
    assert batch.slabs_replaced == 2
    assert [bytes(piece) for piece in kept[1:3]] == [packets[0][40:], packets[1][40:]]
