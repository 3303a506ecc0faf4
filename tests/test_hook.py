"""Sinks: the stricter of their limits and the configuration holds, read at every batch."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import product
from typing import Any

import pytest

from netstack_gro.config import GroConfig, IpIdMode, Limits
from netstack_gro.hook import Sink
from tests.builders import tcp4, udp4
from tests.engines import Engine
from tests.flushes import Recorder, RecordingSink, batch_of, merged


def stream(count: int, size: int = 100, start: int = 0, **fields: Any) -> list[bytes]:
    """Consecutive segments of one flow."""
    return [
        tcp4(bytes(size), seq=1 + size * place, ident=place, **fields)
        for place in range(start, start + count)
    ]


def test_a_sink_is_a_hook_that_offers_limits() -> None:
    assert isinstance(RecordingSink(Limits()), Sink)
    assert not isinstance(Recorder(), Sink)


def test_limits_are_read_at_every_batch(engine: Engine) -> None:
    sink = RecordingSink(Limits())
    gro = engine.GroDispatcher(sink)
    for limits in (Limits(), Limits(tcp=False), Limits(max_tcp_segments=2), Limits(max_size=140)):
        sink.limits = limits
        gro.dispatch(stream(4))
    assert [[packet.packets for packet in flush] for flush in sink.flushes] == [
        [4],
        [1] * 4,
        [2, 2],
        [1] * 4,
    ]


def test_limits_replaced_while_packets_are_pending_hold_from_the_next_batch(
    engine: Engine,
) -> None:
    sink = RecordingSink(Limits())
    gro = engine.GroDispatcher(sink)
    first, second, third, fourth = stream(4)
    gro.enqueue(first)
    sink.limits = Limits(tcp=False)
    gro.enqueue(second)
    gro.flush()
    gro.enqueue(third)
    gro.enqueue(fourth)
    gro.flush()
    assert sink.counts == [2, 1, 1]


@pytest.mark.parametrize("wrong", [5, GroConfig(), {"udp": True}, "none"])
def test_limits_of_another_kind_are_refused_until_they_are_right(
    engine: Engine, wrong: Any
) -> None:
    sink = RecordingSink(Limits(max_tcp_segments=2))
    gro = engine.GroDispatcher(sink)
    gro.dispatch(stream(2))
    sink.limits = wrong
    sends: list[Callable[[], object]] = [
        lambda: gro.dispatch(stream(2)),
        lambda: gro.dispatch(batch_of(engine, stream(2))),
        lambda: gro.enqueue(b"x"),
    ]
    for send in sends:
        with pytest.raises(TypeError, match="limits: "):
            send()
        assert gro.pending == 0
    sink.limits = Limits(max_tcp_segments=3)
    gro.dispatch(stream(3))
    assert sink.counts == [2, 3]


def test_limits_that_cannot_be_read_refuse_the_batch(engine: Engine) -> None:
    class Broken(Recorder):
        broken = False

        @property
        def limits(self) -> Limits:
            if self.broken:
                raise LookupError("device gone")
            return Limits()

    sink = Broken()
    gro = engine.GroDispatcher(sink)
    sink.broken = True
    with pytest.raises(LookupError, match="device gone"):
        gro.dispatch(stream(2))
    sink.broken = False
    gro.dispatch(stream(2))
    assert sink.counts == [2]


# --- the stricter wins ---------------------------------------------------------------------------


def counts(engine: Engine, packets: Sequence[bytes], config: Any, limits: Any) -> list[int]:
    sink = RecordingSink(Limits(**limits))
    return merged(engine, packets, sink, **config).counts


@pytest.mark.parametrize("name", ["tcp", "udp"])
def test_a_protocol_merges_where_both_allow_it(engine: Engine, name: str) -> None:
    datagrams = [udp4(bytes(9), ident=ident) for ident in (1, 2)]
    packets = stream(2) if name == "tcp" else datagrams
    for ours, theirs in product((False, True), repeat=2):
        result = counts(engine, packets, {name: ours}, {name: theirs})
        assert result == ([2] if ours and theirs else [1, 1])


@pytest.mark.parametrize(
    ("ours", "theirs", "largest"),
    [(65535, 65535, 340), (240, 65535, 240), (65535, 240, 240), (339, 240, 240), (240, 339, 240)],
)
def test_the_smaller_size_holds(engine: Engine, ours: int, theirs: int, largest: int) -> None:
    sink = RecordingSink(Limits(max_size=theirs))
    merged(engine, stream(3), sink, max_size=ours)
    assert max(map(len, sink.data)) == largest


@pytest.mark.parametrize(
    ("ours", "theirs", "most"),
    [
        (None, None, 6),
        (2, None, 2),
        (None, 2, 2),
        (3, 2, 2),
        (2, 3, 2),
        (1, None, 1),
        (65535, 6, 6),
    ],
)
def test_the_smaller_tcp_segment_count_holds(
    engine: Engine, ours: int | None, theirs: int | None, most: int
) -> None:
    result = counts(engine, stream(6), {"max_tcp_segments": ours}, {"max_tcp_segments": theirs})
    assert result == [most] * (6 // most)


@pytest.mark.parametrize(("ours", "theirs", "most"), [(64, 64, 64), (128, 64, 64), (2, 128, 2)])
def test_the_smaller_udp_segment_count_holds(
    engine: Engine, ours: int, theirs: int, most: int
) -> None:
    packets = [udp4(b"x", ident=place) for place in range(128)]
    sink = RecordingSink(Limits(udp=True, max_udp_segments=theirs))
    assert merged(engine, packets, sink, udp=True, max_udp_segments=ours).counts == [most] * (
        128 // most
    )


def test_a_hundred_and_twenty_eight_datagrams_merge_where_both_allow_it(engine: Engine) -> None:
    packets = [udp4(b"x", ident=place) for place in range(129)]
    sink = RecordingSink(Limits(udp=True, max_udp_segments=128))
    assert merged(engine, packets, sink, udp=True, max_udp_segments=128).counts == [128, 1]


FIXED = {"merge": (True, True), "df": (True, False), "refuse": (False, False)}
"""Whether two segments of equal ID merge: with DF, without."""


@pytest.mark.parametrize("ours", FIXED)
@pytest.mark.parametrize("theirs", FIXED)
def test_the_stricter_rule_for_equal_ids_holds(engine: Engine, ours: str, theirs: str) -> None:
    for df, place in ((True, 0), (False, 1)):
        packets = [tcp4(b"abc", ident=7, df=df), tcp4(b"def", ident=7, df=df, seq=4)]
        sink = RecordingSink(Limits(fixed_ip_ids=theirs))  # type: ignore[arg-type]
        merged(engine, packets, sink, fixed_ip_ids=ours)
        allowed = FIXED[ours][place] and FIXED[theirs][place]
        assert sink.counts == ([2] if allowed else [1, 1])
        assert sink.given[0].ip_id_mode is (IpIdMode.FIXED if allowed else IpIdMode.NONE)


@pytest.mark.parametrize(
    ("ours", "theirs", "partial"),
    [
        ("complete", "complete", False),
        ("complete", "partial", False),
        ("partial", "complete", False),
        ("partial", "partial", True),
    ],
)
def test_partial_checksums_go_only_where_both_say_so(
    engine: Engine, ours: str, theirs: str, partial: bool
) -> None:
    sink = RecordingSink(Limits(delivered_checksums=theirs))  # type: ignore[arg-type]
    merged(engine, stream(2), sink, delivered_checksums=ours)
    assert sink.given[0].virtio.needs_csum is partial


def test_every_limit_has_a_test_and_a_field_of_the_same_name_in_the_configuration() -> None:
    names = {field.name for field in fields(Limits)}
    assert names == {
        "tcp",
        "udp",
        "max_size",
        "max_tcp_segments",
        "max_udp_segments",
        "delivered_checksums",
        "fixed_ip_ids",
    }
    assert names <= {field.name for field in fields(GroConfig)}


def test_a_plain_callable_takes_what_the_configuration_says(engine: Engine) -> None:
    hook = Recorder()
    engine.GroDispatcher(hook, GroConfig(udp=True)).dispatch(
        batch_of(engine, [udp4(b"x", ident=1), udp4(b"x", ident=2)])
    )
    assert hook.counts == [2]
