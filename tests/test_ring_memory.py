"""Blocks of a ring that somebody still looks at, and what is left of a ring that was closed."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.errors import PinnedError
from tests import lab
from tests.cables import Cable
from tests.engines import Engine
from tests.requirements import lacks_root, require
from tests.rings import Hook, Keeper, drain, numbered, ring, send


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


def test_a_batch_that_the_engine_has_no_space_for_is_not_lost(engine: Engine, cable: Cable) -> None:
    headers: list[tuple[memoryview, bytes]] = []

    def keep_header(packets: list[Any]) -> None:
        headers.extend((packet.header, bytes(packet.header)) for packet in packets)

    hook = Hook(keep_header)
    frames = numbered(cable, range(4))
    with ring(engine, cable, hook, max_slabs=1) as dispatcher:
        send(cable, frames[:1])
        drain(dispatcher, 1)
        send(cable, frames[1:])
        for _ in range(2):
            with pytest.raises(PinnedError, match="slabs"):
                drain(dispatcher, 1)
        headers.clear()
        count = 0
        while count < 3:
            headers.clear()
            count += dispatcher.dispatch_once(1)
    assert hook.data == frames


def test_views_outlive_the_dispatcher_and_the_ring_does_not(engine: Engine, cable: Cable) -> None:
    keeper = Keeper()
    blocks = 64
    options = {"blocks": blocks, "block_size": 1 << 17, "max_slabs": 4}
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


def test_opened_and_closed_again_and_again_nothing_is_left(engine: Engine, cable: Cable) -> None:
    def state() -> tuple[list[Path], int]:
        maps = Path("/proc/self/maps").read_text("ascii")
        return sorted(Path("/proc/self/fd").iterdir()), maps.count("\n")

    keeper = Keeper()
    for number in range(40):
        with ring(engine, cable, keeper, block_size=4096) as dispatcher:
            if number % 4 == 0:
                send(cable, numbered(cable, range(1)))
                drain(dispatcher, 1)
                keeper.kept.clear()
        if number == 4:
            before = state()
    after = state()
    assert after[0] == before[0]
    assert after[1] <= before[1] + 2  # the allocator may have mapped something


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
