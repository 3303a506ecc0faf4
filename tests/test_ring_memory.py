"""Blocks of a ring that somebody still looks at, and what is left of a ring that was closed."""

import ctypes
import errno
import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.errors import PinnedError
from tests import lab
from tests.cables import Cable
from tests.engines import Engine
from tests.requirements import lacks_root, require
from tests.rings import Hook, Keeper, drain, numbered, ring, send
from tests.test_live_interrupted import Signal


@pytest.fixture
def cable() -> Iterator[Cable]:
    require(lacks_root())
    with lab.Lab() as net, Cable(net) as made:
        yield made


def test_a_block_that_a_hook_looks_at_is_replaced_and_never_overwritten(
    engine: Engine, cable: Cable
) -> None:
    keeper = Keeper()
    hook = Hook(keeper)
    frames = numbered(cable, range(40))
    with ring(engine, cable, hook, max_slabs=8) as dispatcher:
        for number, frame in enumerate(frames):
            keeper.keeping = number < 6
            send(cable, [frame])
            drain(dispatcher, 1)
        assert dispatcher.stats.replaced == 6
        assert dispatcher.stats.dropped == 0
        keeper.assert_unchanged()
    assert hook.data == frames
    assert [data for _view, data in keeper.kept] == frames[:6]
    keeper.assert_unchanged()


def test_what_is_kept_no_longer_does_not_count(engine: Engine, cable: Cable) -> None:
    keeper = Keeper()
    with ring(engine, cable, keeper, max_slabs=2) as dispatcher:
        for frame in numbered(cable, range(20)):
            send(cable, [frame])
            drain(dispatcher, 1)
            keeper.assert_unchanged()
            del keeper.kept[:-1]
        assert dispatcher.stats.replaced == 20


def test_more_kept_blocks_than_allowed_are_an_error_until_they_are_let_go(
    engine: Engine, cable: Cable
) -> None:
    keeper = Keeper()
    hook = Hook(keeper)
    frames = numbered(cable, range(5))
    with ring(engine, cable, hook, max_slabs=2) as dispatcher:
        for frame in frames[:3]:
            send(cable, [frame])
            drain(dispatcher, 1)  # the third is delivered, and its block waits
        send(cable, frames[3:])
        for _ in range(3):
            with pytest.raises(PinnedError, match=r"2 blocks.*detach"):
                dispatcher.dispatch_once(1)
        keeper.assert_unchanged()
        del keeper.kept[1:]
        keeper.keeping = False
        drain(dispatcher, 2)
        assert dispatcher.stats.replaced == 2
        keeper.assert_unchanged()
    assert hook.data == frames


@pytest.mark.parametrize("meddling", [False, True])
def test_a_batch_that_the_engine_has_no_space_for_is_not_lost(
    engine: Engine, cable: Cable, meddling: bool
) -> None:
    headers: list[tuple[memoryview, bytes]] = []

    def keep_header(packets: list[Any]) -> None:
        headers.extend((packet.header, bytes(packet.header)) for packet in packets)

    hook = Hook(keep_header)
    frames = numbered(cable, range(6))
    with ring(engine, cable, hook, max_slabs=1) as dispatcher:
        if meddling:  # with what is the program's to use, too
            dispatcher.gro.dispatch(frames[4:5])
            headers.clear()
        send(cable, frames[:1])
        drain(dispatcher, 1)
        if meddling:
            headers.clear()
            dispatcher.gro.enqueue(frames[5])
            assert dispatcher.gro.flush() == 1
        send(cable, frames[1:4])
        for _ in range(2):
            with pytest.raises(PinnedError, match="slabs"):
                drain(dispatcher, 1)
        headers.clear()
        count = 0
        while count < 3:
            headers.clear()
            count += dispatcher.dispatch_once(1)
    expected = [frames[4], frames[0], frames[5], *frames[1:4]] if meddling else frames[:4]
    assert hook.data == expected


def test_views_outlive_the_dispatcher_and_the_ring_does_not(engine: Engine, cable: Cable) -> None:
    keeper = Keeper()
    blocks = 64
    options: dict[str, Any] = {"blocks": blocks, "block_size": 1 << 17, "max_slabs": 4}
    with ring(engine, cable, keeper, **options) as dispatcher:
        before = mapped()
        assert packet_sockets(cable) == 1
        for frame in numbered(cable, range(5)):  # the last block must wait for being replaced
            send(cable, [frame])
            drain(dispatcher, 1)
        assert dispatcher.stats.replaced == 4
    assert len(keeper.kept) == 5
    keeper.assert_unchanged()
    assert packet_sockets(cable) == 0
    assert mapped() < before - (blocks - 8 << 17)
    held = mapped()
    keeper.kept.clear()
    assert mapped() <= held - (5 << 17)


def mapped() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")


def packet_sockets(cable: Cable) -> int:
    """How many the kernel knows at the near end, whoever still refers to them."""
    with cable.near:
        return len(Path("/proc/thread-self/net/packet").read_text("ascii").splitlines()) - 1


def ring_mappings() -> int:
    """How many mappings of sockets this process has."""
    return Path("/proc/self/maps").read_text("ascii").count(" socket:[")


def test_opened_and_closed_again_and_again_nothing_is_left(engine: Engine, cable: Cable) -> None:
    rounds, size = 40, 4 << 20
    keeper = Keeper()
    before = sorted(Path("/proc/self/fd").iterdir()), mapped()
    for number in range(rounds):
        options: dict[str, Any] = {"block_size": size, "blocks": 2, "capacity": 16}
        with ring(engine, cable, keeper, **options) as dispatcher:
            assert ring_mappings() > 0
            if number % 2:
                send(cable, numbered(cable, range(1)))
                drain(dispatcher, 1)
        assert ring_mappings() == 0
        keeper.assert_unchanged()
        keeper.kept.clear()
    assert sorted(Path("/proc/self/fd").iterdir()) == before[0]
    # A copy was made in half of the rounds. What else there is, is smaller by far than all these.
    assert mapped() < before[1] + rounds * size // 4


def test_a_dead_cycle_may_look_at_a_block_to_its_very_end(engine: Engine) -> None:
    size = 4 << 20
    memory, file = memory_of_a_file(engine, size, 2)
    reading, writing = os.pipe()
    seen: list[int | None] = []

    class Looking:
        """The collector calls weak references' callbacks first, then this."""

        view: memoryview
        itself: "Looking"

        def __del__(self) -> None:
            try:  # of what is not mapped, the kernel says EFAULT
                seen.append(os.write(writing, self.view[:4]))
            except OSError as error:
                seen.append(error.errno)

    looking = Looking()
    looking.view = memoryview(memory.blocks[1])
    looking.itself = looking
    memory.replace(1)
    before = mapped()
    assert memory.kept == 1
    del looking
    gc.collect()
    assert seen == [4]
    assert os.read(reading, 4) == bytes(4)
    assert memory.kept == 0
    assert mapped() <= before - size
    memory.close()
    for descriptor in (reading, writing, file):
        os.close(descriptor)


def memory_of_a_file(engine: Engine, size: int, count: int) -> tuple[Any, int]:
    """A file in place of a ring: it is mapped, too."""
    file = os.memfd_create("ring")
    os.truncate(file, size * count)
    return engine.module("dispatchers.ring_memory").RingMemory(file, size, count), file


def test_closed_without_memory_for_copies_views_stay_and_all_else_goes(
    engine: Engine, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = engine.module("dispatchers.ring_memory")
    keeper = Keeper()
    with ring(engine, cable, keeper, blocks=8, max_slabs=1) as dispatcher:
        for frame in numbered(cable, range(2)):  # the second's block waits for being replaced
            send(cable, [frame])
            drain(dispatcher, 1)
        refuse_memory(module, monkeypatch)
        dispatcher.close()
        dispatcher.close()
        assert ring_mappings() == 1
        assert dispatcher._memory.kept == 2
        keeper.assert_unchanged()
        del keeper.kept[1:]
        assert ring_mappings() == 0
        assert dispatcher._memory.kept == 1
        assert packet_sockets(cable) == 0
    keeper.assert_unchanged()


def test_a_block_that_cannot_be_copied_waits_until_there_is_memory(
    engine: Engine, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = engine.module("dispatchers.ring_memory")
    keeper = Keeper()
    hook = Hook(keeper)
    frames = numbered(cable, range(6))
    with ring(engine, cable, hook, blocks=2) as dispatcher, monkeypatch.context() as patch:
        refuse_memory(module, patch)
        before = ring_mappings()
        send(cable, frames[:1])
        drain(dispatcher, 1)
        with pytest.raises(PinnedError, match="Cannot allocate memory"):
            dispatcher.dispatch_once(0)
        assert ring_mappings() == before
        patch.undo()
        for frame in frames[1:]:
            send(cable, [frame])
            drain(dispatcher, 1)
        keeper.assert_unchanged()
        assert dispatcher.stats.replaced == 6
    assert hook.data == frames


def refuse_memory(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the kernel out of memory for copies."""
    granted = module._mmap

    def refuse(*arguments: Any) -> Any:
        if arguments[3] & module.MAP_ANONYMOUS:
            ctypes.set_errno(errno.ENOMEM)
            return module._FAILED
        return granted(*arguments)

    monkeypatch.setattr(module, "_mmap", refuse)


def test_wherever_a_signal_comes_the_ring_goes_round_and_nothing_comes_twice(
    engine: Engine, cable: Cable
) -> None:
    if engine.name == "compiled":
        pytest.skip("the same code, of which only the engine is compiled")
    path = (engine.module("dispatchers.ring").__file__ or "").removesuffix(".py")  # ring_memory
    keeper = Keeper()
    hook = Hook(keeper)
    number = 0
    struck = True
    with ring(engine, cable, hook, capacity=4, blocks=3, max_slabs=4) as dispatcher:
        while struck:
            del keeper.kept[:-2]
            send(cable, numbered(cable, range(2 * number, 2 * number + 1)))
            signal = Signal(number, path)
            with suppress(KeyboardInterrupt), signal:
                dispatcher.dispatch_once(5)
            struck = signal.struck
            last = numbered(cable, range(2 * number + 1, 2 * number + 2))
            send(cable, last)
            while hook.data[-1:] != last:
                dispatcher.dispatch_once(5)
            keeper.assert_unchanged()
            number += 1
        assert dispatcher.stats.dropped == 0
    assert len(set(hook.data)) == len(hook.data)
    assert number > 20


def test_a_ring_that_cannot_be_made_is_unmapped(
    engine: Engine, cable: Cable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(engine.module("dispatchers.live"), "require_linux", refuse)
    before = mapped()
    with pytest.raises(OSError, match="open files"):
        ring(engine, cable, Hook(), blocks=512)
    assert mapped() < before + (64 << 17)
    assert packet_sockets(cable) == 0
