"""GroDispatcher: what it takes, when it delivers, and what misuse gets.

Which packets merge is tested elsewhere; here packets are simple and the engine is not.
"""

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.errors import EngineStateError
from tests.builders import ethernet, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import Recorder, batch_of


def stream(count: int, size: int = 100, start: int = 0, **fields: Any) -> list[bytes]:
    """Consecutive segments of one flow."""
    return [
        tcp4(bytes(size), seq=1 + size * place, ident=place, **fields)
        for place in range(start, start + count)
    ]


# --- making one ----------------------------------------------------------------------------------


def test_a_new_engine_says_what_it_was_made_with(engine: Engine) -> None:
    hook, config = Recorder(), GroConfig(capacity=3, udp=True)
    gro = engine.GroDispatcher(hook, config)
    assert gro.hook is hook
    assert gro.config is config
    assert (gro.pending, gro.enabled, gro.never_merge) == (0, True, None)
    assert engine.GroDispatcher(hook).config == GroConfig()


@pytest.mark.parametrize("wrong", [None, 5, "hook", []])
def test_a_hook_that_cannot_be_called_is_refused(engine: Engine, wrong: Any) -> None:
    with pytest.raises(TypeError, match="hook: "):
        engine.GroDispatcher(wrong)


@pytest.mark.parametrize("wrong", [{}, 5, GroConfig])
def test_a_configuration_of_another_kind_is_refused(engine: Engine, wrong: Any) -> None:
    with pytest.raises(TypeError, match="config: "):
        engine.GroDispatcher(Recorder(), wrong)


def test_an_engine_is_initialised_once(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    gro.enqueue(tcp4(b"x"))
    with pytest.raises(EngineStateError, match="once"):
        gro.__init__(Recorder())
    gro.flush()
    assert hook.counts == [1]


def test_an_engine_that_was_never_initialised_refuses_work_and_does_not_crash(
    engine: Engine,
) -> None:
    made = engine.GroDispatcher.__new__(engine.GroDispatcher)
    for call in (lambda: made.dispatch([]), lambda: made.enqueue(b""), made.flush):
        with pytest.raises((EngineStateError, AttributeError)):
            call()


UNMADE = """
import netstack_gro
for kind in (netstack_gro.GroDispatcher, netstack_gro.Batch, netstack_gro.Packet):
    made = kind.__new__(kind)
    for name in sorted(vars(kind)):
        if not name.startswith("_") or name in ("__len__", "__bytes__", "__repr__"):
            try:
                value = getattr(made, name)
                if callable(value):
                    value()
            except Exception:
                pass
print("alive")
"""


def test_objects_that_were_never_initialised_do_not_crash_the_process(engine: Engine) -> None:
    kind = {"interpreted": "1", "compiled": "0"}[engine.name]
    run = subprocess.run(
        [sys.executable, "-c", UNMADE],
        env=os.environ | {"NETSTACK_GRO_INTERPRETED": kind},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "alive\n"), run.stderr


def test_properties_are_read_only_and_no_attribute_can_be_added(engine: Engine) -> None:
    gro = engine.GroDispatcher(Recorder())
    for name in ("hook", "config", "pending", "stats", "colour"):
        with pytest.raises(AttributeError):
            setattr(gro, name, 1)


def test_an_engine_is_not_pickled_or_copied(engine: Engine) -> None:
    gro = engine.GroDispatcher(Recorder())
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="pickle 'GroDispatcher'"):
            make(gro)


# --- lists, whose packets are borrowed together --------------------------------------------------


def test_packets_of_a_list_live_until_they_are_delivered_whatever_becomes_of_the_list(
    engine: Engine,
) -> None:
    sent = stream(5)
    given = [bytes(bytearray(packet)) for packet in sent]  # nobody else holds them
    seen: list[bytes] = []

    def hook(packets: list[Any]) -> None:
        given.clear()
        reused = [b"\xff" * len(sent[0]) for _ in sent]
        seen.extend(part for packet in packets for part in packet.segments())
        assert len(reused) == len(sent)

    engine.GroDispatcher(hook).dispatch(given)
    assert seen == sent


def test_pieces_of_packets_of_a_list_outlive_the_hook(engine: Engine) -> None:
    sent = stream(3)
    pieces: list[memoryview] = []
    gro = engine.GroDispatcher(lambda packets: pieces.extend(packets[0].buffers()))
    gro.dispatch([bytes(bytearray(packet)) for packet in sent])
    gro.enqueue(tcp4(b"y"))  # which takes the place of the first
    gro.flush()
    assert b"".join(pieces[:4])[40:] == bytes(300)
    assert pieces[4] == tcp4(b"y")


@pytest.mark.parametrize("kinds", ["bbbm", "mbbb", "bmbm", "mmmm", "bbbb", "abab"])
@pytest.mark.parametrize("capacity", [1, 2, 3, 64])
def test_a_list_of_mixed_kinds_is_delivered_whole_and_in_order(
    engine: Engine, kinds: str, capacity: int
) -> None:
    sent = stream(len(kinds))
    make = {"b": bytes, "m": memoryview, "a": bytearray}
    cut: list[bytes] = []
    gro = engine.GroDispatcher(
        lambda packets: cut.extend(part for packet in packets for part in packet.segments()),
        GroConfig(capacity=capacity),
    )
    given: list[Any] = [make[kind](packet) for kind, packet in zip(kinds, sent, strict=True)]
    assert gro.dispatch(given) == len(sent)
    assert cut == sent


# --- dispatch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [list, tuple, iter, lambda packets: (p for p in packets)])
def test_dispatch_takes_any_iterable_of_packets(engine: Engine, kind: Any) -> None:
    hook = Recorder()
    assert engine.GroDispatcher(hook).dispatch(kind(stream(3))) == 3
    assert [len(flush) for flush in hook.flushes] == [1]
    assert hook.counts == [3]


def test_packets_of_an_iterable_may_be_any_bytes_like_object(engine: Engine) -> None:
    first, second, third = stream(3)
    hook = Recorder()
    engine.GroDispatcher(hook).dispatch([first, bytearray(second), memoryview(b"?" + third)[1:]])
    assert hook.given[0].segments == [first, second, third]


def test_a_batch_and_an_iterable_of_the_same_packets_give_the_same(engine: Engine) -> None:
    packets = [*stream(3), tcp6(b"x"), b"", *stream(2, start=3), udp4(b"y")]
    by_batch, by_list = Recorder(), Recorder()
    engine.GroDispatcher(by_batch).dispatch(batch_of(engine, packets))
    engine.GroDispatcher(by_list).dispatch(packets)
    assert by_batch == by_list


def test_nothing_calls_the_hook_for_nothing(engine: Engine) -> None:
    hook = Recorder()
    with engine.GroDispatcher(hook) as gro:
        assert gro.dispatch([]) == 0
        assert gro.dispatch(engine.Batch()) == 0
        assert gro.flush() == 0
    assert hook.flushes == []


@pytest.mark.parametrize("way", ["batch", "list", "generator"])
def test_a_packet_that_is_alone_is_not_looked_at(engine: Engine, way: str) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    for packet in (tcp4(b"x"), b"", b"\xff" * 9):
        given = {"batch": batch_of(engine, [packet]), "list": [packet]}.get(way)
        gro.dispatch(iter([packet]) if given is None else given)
    assert hook.verdicts == ["ALONE"] * 3
    assert hook.reasons == ["NOT_HELD"] * 3


def test_the_last_packet_beyond_the_capacity_is_alone_too(engine: Engine) -> None:
    for packets in (stream(4), batch_of(engine, stream(4))):
        hook = Recorder()
        assert engine.GroDispatcher(hook, GroConfig(capacity=3)).dispatch(packets) == 4
        assert hook.verdicts == ["MERGED", "ALONE"]


def test_an_enqueued_packet_is_never_alone(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    gro.enqueue(tcp4(b"x"))
    gro.flush()
    gro.enqueue(tcp4(b"x"))
    gro.dispatch([])
    gro.enqueue(tcp4(b"x"))
    gro.dispatch(engine.Batch())
    assert hook.verdicts == ["OPENED"] * 3


def test_a_batch_of_one_behind_a_pending_packet_continues_it(engine: Engine) -> None:
    first, second = stream(2)
    for more in ([second], batch_of(engine, [second])):
        hook = Recorder()
        gro = engine.GroDispatcher(hook)
        gro.enqueue(first)
        assert gro.pending == 1
        assert gro.dispatch(more) == 1
        assert gro.pending == 0
        assert hook.counts == [2]
        assert hook.given[0].segments == [first, second]


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("count", [1, 2, 6, 7, 8, 20])
def test_a_long_batch_is_flushed_in_pieces_of_the_capacity(
    engine: Engine, capacity: int, count: int
) -> None:
    packets = stream(count)
    for given in (packets, batch_of(engine, packets)):
        hook = Recorder()
        assert engine.GroDispatcher(hook, GroConfig(capacity=capacity)).dispatch(given) == count
        sizes = [sum(packet.packets for packet in flush) for flush in hook.flushes]
        assert sizes == [capacity] * (count // capacity) + [count % capacity] * bool(
            count % capacity
        )
        assert [part for packet in hook.given for part in packet.segments] == packets


def test_a_batch_behind_pending_packets_is_flushed_at_the_capacity(engine: Engine) -> None:
    packets = stream(8)
    for rest in (packets[2:], batch_of(engine, packets[2:])):
        hook = Recorder()
        gro = engine.GroDispatcher(hook, GroConfig(capacity=3))
        gro.enqueue(packets[0])
        gro.enqueue(packets[1])
        assert gro.dispatch(rest) == 6
        assert hook.counts == [3, 3, 2]
        assert [part for packet in hook.given for part in packet.segments] == packets


def test_an_iterable_that_raises_ends_the_batch_after_what_was_taken(engine: Engine) -> None:
    def packets() -> Iterator[bytes]:
        yield from stream(2)
        raise KeyError("the source broke")

    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    with pytest.raises(KeyError, match="the source broke") as caught:
        gro.dispatch(packets())
    assert any("2 packets" in note for note in caught.value.__notes__)
    assert hook.counts == [2]
    gro.dispatch(stream(3))
    assert hook.counts == [2, 3]


@pytest.mark.parametrize("wrong", [None, 5, "text", memoryview(bytes(8))[::2]])
def test_what_is_no_packet_is_named_by_its_index(engine: Engine, wrong: Any) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook, GroConfig(capacity=4))
    with pytest.raises(TypeError, match=r"^packet 6: "):
        gro.dispatch([*stream(6), wrong, b"never"])
    assert hook.counts == [4, 2]
    with pytest.raises(TypeError, match=r"^packet 0: "):
        gro.dispatch([wrong])
    gro.dispatch(stream(2))
    assert hook.counts == [4, 2, 2]


def test_a_released_view_is_named_by_its_index(engine: Engine) -> None:
    view = memoryview(bytearray(8))
    view.release()
    with pytest.raises(ValueError, match=r"^packet 1: .*released"):
        engine.GroDispatcher(Recorder()).dispatch([b"", view])


@pytest.mark.parametrize("wrong", [None, 5, object()])
def test_what_is_no_batch_is_refused(engine: Engine, wrong: Any) -> None:
    with pytest.raises(TypeError, match=type(wrong).__name__):
        engine.GroDispatcher(Recorder()).dispatch(wrong)


# --- enqueue, flush, close -----------------------------------------------------------------------


def test_enqueued_packets_wait_for_flush(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    for number, packet in enumerate(stream(3)):
        gro.enqueue(packet)
        assert gro.pending == number + 1
    assert hook.flushes == []
    assert gro.flush() == 1
    assert (gro.pending, hook.counts) == (0, [3])
    assert gro.flush() == 0


def test_enqueue_flushes_at_the_capacity_before_it_takes(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook, GroConfig(capacity=2))
    for packet in stream(5):
        gro.enqueue(packet)
    assert hook.counts == [2, 2]
    assert gro.pending == 1
    gro.flush()
    assert hook.counts == [2, 2, 1]


def test_a_refused_packet_leaves_what_is_pending_alone(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    packets = stream(2)
    gro.enqueue(packets[0])
    for wrong, meta in ((5, {}), (packets[1], {"interface": -1}), (packets[1], {"vlan": "x"})):
        with pytest.raises((TypeError, ValueError)):
            gro.enqueue(wrong, **meta)
    assert gro.pending == 1
    gro.enqueue(packets[1])
    gro.flush()
    assert hook.counts == [2]


def test_leaving_the_context_flushes_also_after_an_error(engine: Engine) -> None:
    hook = Recorder()
    with engine.GroDispatcher(hook) as gro:
        gro.enqueue(tcp4(b"x"))
    assert hook.counts == [1]
    gro.enqueue(tcp4(b"x"))
    with pytest.raises(KeyError), gro:
        raise KeyError
    assert hook.counts == [1, 1]


def test_a_closed_engine_refuses_packets_and_may_be_closed_again(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    gro.enqueue(tcp4(b"x"))
    gro.close()
    assert hook.counts == [1]
    calls: list[Callable[[], object]] = [
        lambda: gro.enqueue(b""),
        lambda: gro.dispatch([]),
        lambda: gro.dispatch(engine.Batch()),
    ]
    for call in calls:
        with pytest.raises(EngineStateError, match="closed"):
            call()
    assert gro.flush() == 0
    gro.close()
    with gro:
        pass
    assert (hook.counts, gro.pending, gro.stats.packets_in) == ([1], 0, 1)


def test_an_engine_is_closed_even_if_the_hook_fails_at_the_last_flush(engine: Engine) -> None:
    def fail(packets: list[Any]) -> None:
        raise OSError("gone")

    gro = engine.GroDispatcher(fail)
    gro.enqueue(tcp4(b"x"))
    with pytest.raises(OSError, match="gone"):
        gro.close()
    with pytest.raises(EngineStateError, match="closed"):
        gro.enqueue(b"")


# --- switches ------------------------------------------------------------------------------------


def test_switched_off_every_packet_is_passed_on_as_it_came(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    gro.enabled = False
    packets = [*stream(3), b"", b"\xff" * 50, tcp6(b"x")]
    gro.dispatch(packets)
    assert hook.data == packets
    assert hook.verdicts == ["DISABLED"] * 6
    gro.enabled = True
    gro.dispatch(stream(3))
    assert hook.counts[-1] == 3


def test_switching_in_the_middle_of_a_batch_closes_heads_and_keeps_order(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    packets = stream(8)
    for number, packet in enumerate(packets):
        gro.enqueue(packet)
        if number in (1, 3):
            gro.enabled = not gro.enabled
    gro.flush()
    assert hook.counts == [2, 1, 1, 4]
    assert hook.verdicts == ["MERGED", "DISABLED", "DISABLED", "MERGED"]
    assert hook.reasons == ["BARRIER", "NOT_HELD", "NOT_HELD", "BATCH_END"]
    assert [part for packet in hook.given for part in packet.segments] == packets


def test_setting_the_switch_to_what_it_is_closes_nothing(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    for packet in stream(3):
        gro.enqueue(packet)
        gro.enabled = True
    gro.flush()
    assert hook.counts == [3]


@pytest.mark.parametrize("wrong", [0, 1, None, "yes"])
def test_the_switch_is_a_bool(engine: Engine, wrong: Any) -> None:
    gro = engine.GroDispatcher(Recorder())
    with pytest.raises(TypeError, match="enabled: "):
        gro.enabled = wrong
    assert gro.enabled is True


@pytest.mark.parametrize("wrong", [0, True, "flow"])
def test_the_predicate_is_callable_or_none(engine: Engine, wrong: Any) -> None:
    gro = engine.GroDispatcher(Recorder())
    with pytest.raises(TypeError, match="never_merge: "):
        gro.never_merge = wrong
    gro.never_merge = len
    assert gro.never_merge is len
    gro.never_merge = None
    assert gro.never_merge is None


def test_the_predicate_is_asked_about_flows_as_they_are_on_the_wire(engine: Engine) -> None:
    asked: list[Any] = []
    gro = engine.GroDispatcher(Recorder(), GroConfig(link="ethernet", udp=True))
    gro.never_merge = asked.append
    batch = engine.Batch()
    four = {"source": bytes((1, 2, 3, 4)), "destination": bytes((5, 6, 7, 8))}
    six = {"source": bytes(range(16)), "destination": bytes(range(16, 32))}
    batch.append(ethernet(tcp4(b"x", sport=1, dport=65535, **four)), interface=(1 << 32) - 1)
    batch.append(ethernet(udp6(b"x", sport=0, dport=53, **six), tags=[(0x8100, 5)]))
    batch.append(ethernet(tcp4(b"")))  # no candidate
    gro.dispatch(batch)
    assert asked == [
        ((1 << 32) - 1, 6, four["source"], four["destination"], 1, 65535),
        (0, 17, six["source"], six["destination"], 0, 53),
    ]
    assert asked[0]._fields == (
        "interface",
        "protocol",
        "source",
        "destination",
        "source_port",
        "destination_port",
    )


def test_flows_that_the_predicate_claims_are_passed_on_in_order(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    gro.never_merge = lambda flow: flow.source_port == 7
    mixed = [p for both in zip(stream(3, sport=7), stream(3), strict=True) for p in both]
    gro.dispatch(mixed)
    assert hook.counts == [1, 3, 1, 1]
    assert hook.verdicts == ["NEVER_MERGE", "MERGED", "NEVER_MERGE", "NEVER_MERGE"]
    assert gro.stats.verdicts[engine.Verdict.NEVER_MERGE] == 3


@pytest.mark.parametrize("way", ["list", "batch", "enqueue"])
def test_a_predicate_that_raises_loses_nothing_and_is_heard_of(engine: Engine, way: str) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)

    def predicate(flow: Any) -> bool:
        if flow.source_port == 7:
            raise LookupError("no such flow")
        return False

    gro.never_merge = predicate
    packets = [*stream(2, sport=7), *stream(2)]

    def send() -> None:
        if way == "enqueue":
            for packet in packets:
                gro.enqueue(packet)
            assert gro.pending == 4
            gro.flush()
        else:
            gro.dispatch(packets if way == "list" else batch_of(engine, packets))

    for number in (1, 2):
        with pytest.raises(LookupError, match="no such flow"):
            send()
        assert hook.verdicts == ["NEVER_MERGE", "NEVER_MERGE", "MERGED"] * number
    gro.never_merge = None
    send()
    assert hook.counts[-2:] == [2, 2]


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "expected"), [(340, [3]), (339, [2, 1]), (240, [2, 1])])
def test_no_super_packet_is_larger_than_max_size(
    engine: Engine, limit: int, expected: list[int]
) -> None:
    hook = Recorder()
    engine.GroDispatcher(hook, GroConfig(max_size=limit)).dispatch(stream(3))
    assert hook.counts == expected


@pytest.mark.parametrize("tags", [(), ((0x8100, 5),), ((0x88A8, 5), (0x8100, 6))])
def test_max_frame_counts_the_link_header(engine: Engine, tags: tuple[Any, ...]) -> None:
    frames = [ethernet(packet, tags=tags) for packet in stream(3)]
    link = 14 + 4 * len(tags)
    for limit, expected in ((link + 340, [3]), (link + 339, [2, 1]), (link + 239, [1, 1, 1])):
        hook = Recorder()
        engine.GroDispatcher(hook, GroConfig(link="ethernet", max_frame=limit)).dispatch(frames)
        assert hook.counts == expected
        assert max(map(len, hook.data)) <= limit


@pytest.mark.parametrize("how", [{"max_size": 139}, {"max_frame": 139}, {"max_size": 1}])
def test_a_packet_that_is_too_large_by_itself_is_passed_on(
    engine: Engine, how: dict[str, Any]
) -> None:
    hook = Recorder()
    packets = stream(2)
    engine.GroDispatcher(hook, GroConfig(**how)).dispatch(packets)
    assert hook.data == packets
    assert hook.verdicts == ["TOO_LARGE"] * 2
