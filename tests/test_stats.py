"""Counters: what an engine counts, when it counts it, and how snapshots add up."""

import dataclasses
from collections import Counter

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.stats import Stats
from netstack_gro.verdicts import CloseReason, Verdict
from tests.builders import tcp4
from tests.engines import Engine
from tests.flushes import Recorder, batch_of
from tests.traffic import generate

COUNTS = (
    "batches",
    "packets_in",
    "bytes_in",
    "packets_out",
    "bytes_out",
    "super_packets",
    "segments",
    "pinned",
)


def stream(count: int, size: int = 100, **fields: int) -> list[bytes]:
    return [
        tcp4(bytes(size), seq=1 + size * place, ident=place, **fields) for place in range(count)
    ]


def test_a_new_engine_has_counted_nothing(engine: Engine) -> None:
    stats = engine.GroDispatcher(Recorder()).stats
    assert stats == Stats()
    assert all(getattr(stats, name) == 0 for name in COUNTS)
    assert set(stats.verdicts) == set(Verdict)
    assert set(stats.closed) == set(CloseReason) - {CloseReason.NOT_HELD}
    assert not any(stats.verdicts.values())
    assert not any(stats.closed.values())


def test_one_batch_is_counted_as_the_hook_saw_it(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    packets = [*stream(3), tcp4(seq=9, sport=2), *stream(1, sport=3)]
    gro.dispatch(batch_of(engine, packets))
    stats = gro.stats
    assert {name: getattr(stats, name) for name in COUNTS} == {
        "batches": 1,
        "packets_in": 5,
        "bytes_in": 3 * 140 + 40 + 140,
        "packets_out": 3,
        "bytes_out": 340 + 40 + 140,
        "super_packets": 1,
        "segments": 3,
        "pinned": 0,
    }
    assert stats.bytes_out == sum(map(len, hook.data))
    assert {verdict: count for verdict, count in stats.verdicts.items() if count} == {
        Verdict.MERGED: 3,
        Verdict.OPENED: 1,
        Verdict.TCP_NO_PAYLOAD: 1,
    }
    assert {reason: count for reason, count in stats.closed.items() if count} == {
        CloseReason.BATCH_END: 2
    }


def test_counters_of_random_traffic_are_the_sums_over_what_was_delivered(engine: Engine) -> None:
    hook = Recorder(cut=False)
    gro = engine.GroDispatcher(hook, GroConfig(udp=True))
    taken = size = 0
    for batch in generate(17, 1500):
        gro.dispatch(batch_of(engine, batch))
        taken += len(batch)
        size += sum(len(packet.data) for packet in batch)
    stats, given = gro.stats, hook.given
    assert (stats.packets_in, stats.bytes_in) == (taken, size)
    assert (stats.packets_out, stats.bytes_out) == (len(given), sum(len(p.data) for p in given))
    assert stats.batches == len(hook.flushes)
    merged = [packet.packets for packet in given if packet.packets > 1]
    assert (stats.super_packets, stats.segments) == (len(merged), sum(merged))
    verdicts: Counter[Verdict] = Counter()
    for packet in given:
        verdicts[packet.verdict] += packet.packets
    assert Counter(stats.verdicts) == verdicts
    heads = Counter(packet.closed_by for packet in given)
    del heads[CloseReason.NOT_HELD]
    assert Counter(stats.closed) == heads
    assert sum(stats.verdicts.values()) == stats.packets_in


def test_packets_that_are_pending_are_not_counted_yet(engine: Engine) -> None:
    gro = engine.GroDispatcher(Recorder())
    gro.enqueue(tcp4(b"abc"))
    assert gro.stats == Stats()
    gro.flush()
    assert (gro.stats.packets_in, gro.stats.bytes_in) == (1, 43)


def test_an_empty_flush_is_no_batch(engine: Engine) -> None:
    gro = engine.GroDispatcher(Recorder())
    gro.flush()
    gro.dispatch([])
    assert gro.stats == Stats()


def test_a_flush_whose_hook_raised_counts_as_delivered(engine: Engine) -> None:
    def fail(packets: list[object]) -> None:
        raise OSError("no room")

    gro = engine.GroDispatcher(fail)
    with pytest.raises(OSError, match="no room"):
        gro.dispatch(stream(2))
    stats = gro.stats
    assert (stats.batches, stats.packets_in, stats.packets_out, stats.segments) == (1, 2, 1, 2)


def test_a_snapshot_does_not_move_on(engine: Engine) -> None:
    gro = engine.GroDispatcher(Recorder())
    gro.dispatch(stream(2))
    before = gro.stats
    copy = dataclasses.replace(before, verdicts=dict(before.verdicts), closed=dict(before.closed))
    gro.dispatch(stream(2))
    assert before == copy
    assert gro.stats.packets_in == 4


def test_a_snapshot_is_read_only(engine: Engine) -> None:
    gro = engine.GroDispatcher(Recorder())
    with pytest.raises(AttributeError):
        gro.stats = Stats()
    with pytest.raises(dataclasses.FrozenInstanceError):
        gro.stats.packets_in = 1


def test_snapshots_add_up(engine: Engine) -> None:
    snapshots = []
    for count in (1, 2, 5):
        gro = engine.GroDispatcher(Recorder())
        gro.dispatch(stream(count))
        snapshots.append(gro.stats)
    total = sum(snapshots, Stats())
    for name in COUNTS:
        assert getattr(total, name) == sum(getattr(one, name) for one in snapshots)
    assert total.verdicts[Verdict.MERGED] == 7
    assert total.verdicts[Verdict.ALONE] == 1
    assert total.closed[CloseReason.BATCH_END] == 2
    assert Stats() + total == total
    with pytest.raises(TypeError):
        total + 1  # type: ignore[operator]
