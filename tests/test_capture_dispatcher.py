"""CaptureDispatcher: how batches are formed, and what happens at the end, at damage, at faults."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.capture import open_capture
from netstack_gro.config import GroConfig
from netstack_gro.errors import CaptureError, CaptureFormatError, ConfigError, EngineStateError
from netstack_gro.verdicts import Verdict
from tests.builders import SYN, ethernet, null, sll2, tcp4, udp4
from tests.capture_files import enhanced, interface, pcap_header, pcap_record, section
from tests.captures import ETHERNET, RAW, Collector, Shot, capture, payloads, run, segments
from tests.engines import Engine

MS = 1_000_000


# --- batches -------------------------------------------------------------------------------------


def test_a_batch_is_n_consecutive_records(engine: Engine) -> None:
    collector, stats = run(engine, capture(segments(10)), batch=4)
    assert collector.shapes == [(0, [4]), (0, [4]), (0, [2])]
    assert stats.engine.batches == 3
    assert stats.engine.packets_in == 10


def test_64_records_are_a_batch_where_nothing_is_said(engine: Engine) -> None:
    collector, _ = run(engine, capture(segments(130, size=10)))
    assert payloads(collector.packets) == [64, 64, 2]


def test_a_batch_counts_the_records_of_all_interfaces_and_each_has_its_own_engine(
    engine: Engine,
) -> None:
    ours, theirs = segments(4), segments(4, sport=7)
    order = [(ours[0], 1), (theirs[0], 0), (ours[1], 1), (ours[2], 1), (theirs[1], 0)]
    order += [(theirs[2], 0), (ours[3], 1), (theirs[3], 0)]
    content = capture([Shot(data, 0, number) for data, number in order], [RAW, RAW])
    collector, stats = run(engine, content, batch=5)
    # Interface 1 had the first record of the first batch, interface 0 that of the second.
    assert collector.shapes == [(1, [3]), (0, [2]), (0, [2]), (1, [1])]
    assert stats.engine.packets_in == 8


def test_the_same_flow_on_two_interfaces_is_not_merged_across_them(engine: Engine) -> None:
    shots = [Shot(data, 0, number % 2) for number, data in enumerate(segments(4))]
    collector, _ = run(engine, capture(shots, [RAW, RAW]))
    assert payloads(collector.packets) == [1, 1, 1, 1]


def test_each_interface_has_the_link_layer_of_the_file(engine: Engine) -> None:
    packets = segments(2)
    shots = [Shot(packet, 0, 0) for packet in packets]
    shots += [Shot(ethernet(packet), 0, 1) for packet in packets]
    shots += [Shot(sll2(packet), 0, 2) for packet in packets]
    shots += [Shot(null(packet), 0, 3) for packet in packets]
    collector, _ = run(engine, capture(shots, [12, ETHERNET, 276, 0]))
    assert payloads(collector.packets) == [2, 2, 2, 2]
    assert [packet.link for packet in collector.packets] == ["ip", "ethernet", "sll2", "null"]


def test_a_cooked_capture_keeps_the_devices_apart_by_the_index_in_the_link_header(
    engine: Engine,
) -> None:
    packets = segments(4)
    cooked = [sll2(packet, ifindex=2 + number % 2) for number, packet in enumerate(packets)]
    collector, _ = run(engine, capture(cooked, [276]))
    assert payloads(collector.packets) == [1, 1, 1, 1]


def test_timestamps_and_wire_lengths_reach_the_packets(engine: Engine) -> None:
    whole = segments(2)
    cut = Shot(udp4(bytes(500))[:60], 30, 0, 528)
    content = capture([Shot(whole[0], 10), Shot(whole[1], 20), cut])
    collector, stats = run(engine, content)
    assert [packet.timestamps() for packet in collector.packets] == [(10, 20), (30,)]
    assert collector.packets[1].wire_length == 528
    assert collector.packets[1].verdict == Verdict.TRUNCATED
    assert stats.truncated == 1


def test_a_wire_length_beyond_what_an_engine_takes_is_no_error(engine: Engine) -> None:
    packet = segments(1)[0]
    content = section() + interface(RAW) + enhanced(packet, original=2**32 - 1) * 2
    collector, stats = run(engine, content)
    assert [packet.verdict for packet in collector.packets] == [Verdict.TRUNCATED] * 2
    assert stats.truncated == 2


def test_more_interfaces_than_engines_lose_nothing(engine: Engine) -> None:
    module = engine.module("dispatchers.capture")
    count = module.MAX_ENGINES + 10
    packets = segments(2)
    shots = [Shot(packet, 0, number) for packet in packets for number in range(count)]
    content = capture(shots, [RAW] * count)
    collector = Collector()
    with module.CaptureDispatcher(io.BytesIO(content), collector, batch=2 * count) as dispatcher:
        while not dispatcher.exhausted:
            dispatcher.dispatch_once()
            assert len(dispatcher.engines) <= module.MAX_ENGINES
        assert dispatcher.stats.engine.packets_in == 2 * count
    assert sum(payloads(collector.packets)) == 2 * count


# --- windows -------------------------------------------------------------------------------------


def windows(engine: Engine, times: list[int], window_ns: int, **options: Any) -> list[int]:
    """Inputs in each flush, when a flow's segments come at these times."""
    packets = segments(len(times))
    content = capture([Shot(packet, time) for packet, time in zip(packets, times, strict=True)])
    collector, _ = run(engine, content, window_ns=window_ns, **options)
    return [sum(payloads(flush)) for flush in collector.flushes]


def test_a_window_takes_what_is_earlier_than_its_first_packet_and_its_length(
    engine: Engine,
) -> None:
    assert windows(engine, [100, 150, 199, 200, 299, 300], 100) == [3, 2, 1]


def test_a_window_opens_anew_at_the_packet_that_closed_the_last_one(engine: Engine) -> None:
    assert windows(engine, [0, 99, 150, 249, 250], 100) == [2, 2, 1]


def test_equal_timestamps_are_in_one_window(engine: Engine) -> None:
    assert windows(engine, [5, 5, 5, 6], 1) == [3, 1]


def test_a_backward_timestamp_closes_the_window(engine: Engine) -> None:
    assert windows(engine, [100, 150, 149, 160, 99], 100) == [2, 2, 1]


def test_a_window_before_1970_is_one_too(engine: Engine) -> None:
    packets = segments(3)
    clock = interface(RAW, resolution=9, offset=-1)  # time 0 is 1 s before 1970
    blocks = [enhanced(packets[number], units=units) for number, units in enumerate((0, 99, 100))]
    collector, _ = run(engine, section() + clock + b"".join(blocks), window_ns=100)
    assert [sum(payloads(flush)) for flush in collector.flushes] == [2, 1]
    assert collector.packets[0].timestamp_ns == -1_000_000_000


def test_the_capacity_bounds_a_window_which_is_then_flushed_in_pieces(engine: Engine) -> None:
    config = GroConfig(capacity=3)
    assert windows(engine, [0, 1, 2, 3, 4, 99, 100, 101], 100, config=config) == [3, 3, 2]
    assert windows(engine, [0, 1, 2, 100], 100, config=config) == [3, 1]


def test_windows_are_of_each_interface(engine: Engine) -> None:
    ours, theirs = segments(3), segments(3, sport=7)
    shots = [Shot(ours[0], 0, 0), Shot(theirs[0], 60, 1), Shot(ours[1], 90, 0)]
    shots += [Shot(ours[2], 100, 0), Shot(theirs[1], 150, 1), Shot(theirs[2], 160, 1)]
    collector, _ = run(engine, capture(shots, [RAW, RAW]), window_ns=100)
    assert collector.shapes == [(0, [2]), (1, [2]), (0, [1]), (1, [1])]


def test_a_window_does_not_stay_open_over_more_than_a_span_of_the_file(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = engine.module("dispatchers.capture")
    monkeypatch.setattr(module, "MAX_SPAN_RECORDS", 5)
    waiting, busy = segments(2), segments(9, sport=7)
    shots = [Shot(waiting[0], 0, 0)] + [Shot(packet, 0, 1) for packet in busy]
    content = capture([*shots, Shot(waiting[1], 0, 0)], [RAW, RAW])
    collector, _ = run(engine, content, window_ns=100)
    assert collector.shapes == [(0, [1]), (1, [9]), (0, [1])]


def test_held_from_is_the_earliest_record_that_waits(engine: Engine) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    ours, theirs = segments(3), segments(2, sport=7)
    shots = [Shot(ours[0], 0, 0), Shot(theirs[0], 50, 1), Shot(ours[1], 100, 0)]
    shots += [Shot(theirs[1], 150, 1)]
    content = io.BytesIO(capture(shots, [RAW, RAW]))
    held: list[int | None] = []
    with make(content, lambda packets: None, window_ns=100) as dispatcher:
        assert dispatcher.held_from is None
        while dispatcher.dispatch_once():
            held.append(dispatcher.held_from)
    assert held == [2, 3, None]


# --- the contract --------------------------------------------------------------------------------


def test_a_path_a_stream_and_an_open_reader_give_the_same(engine: Engine, tmp_path: Path) -> None:
    content = capture(segments(5))
    path = tmp_path / "some.pcapng"
    path.write_bytes(content)
    make = engine.module("dispatchers").CaptureDispatcher
    for source in (path, str(path), io.BytesIO(content), open_capture(path)):
        collector = Collector()
        with make(source, collector) as dispatcher:
            assert dispatcher.run() == 5
            assert dispatcher.exhausted
            assert dispatcher.dispatch_once() == 0
        assert payloads(collector.packets) == [5]


def test_it_is_a_dispatcher_with_an_engine(engine: Engine) -> None:
    module = engine.module("dispatchers")
    content = io.BytesIO(capture(segments(5)))
    dispatcher = module.CaptureDispatcher(content, lambda packets: None, batch=2)
    assert isinstance(dispatcher, module.Dispatcher)
    with pytest.raises(EngineStateError, match="no packet"):
        dispatcher.gro  # noqa: B018
    assert dispatcher.dispatch_once() == 2
    assert dispatcher.gro is dispatcher.engines[0]
    assert isinstance(dispatcher.gro, engine.GroDispatcher)
    assert dispatcher.gro.stats.packets_in == 2
    assert dispatcher.gro.config.link == "ip"
    dispatcher.close()
    dispatcher.close()
    assert dispatcher.closed
    assert dispatcher.stats.engine.packets_in == 2
    with pytest.raises(EngineStateError, match="closed"):
        dispatcher.dispatch_once()


def test_stop_ends_run_after_the_batch_at_hand_and_run_goes_on_after_it(engine: Engine) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    dispatcher: Any = None
    dispatcher = make(io.BytesIO(capture(segments(6))), lambda packets: dispatcher.stop(), batch=2)
    with dispatcher:
        assert [dispatcher.run() for _ in range(4)] == [2, 2, 2, 0]


def test_stop_works_from_another_thread(engine: Engine) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    running, stopped = threading.Event(), threading.Event()

    def hook(packets: list[Any]) -> None:
        running.set()
        stopped.wait(10)

    def stop_it() -> None:
        running.wait(10)
        dispatcher.stop()
        stopped.set()

    with make(io.BytesIO(capture(segments(100))), hook, batch=1) as dispatcher:
        thread = threading.Thread(target=stop_it)
        thread.start()
        assert dispatcher.run() == 1
        thread.join()


@pytest.mark.parametrize("options", [{"batch": 2}, {"window_ns": 10}])
def test_a_hook_that_raises_loses_no_later_packet(engine: Engine, options: dict[str, int]) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    ours, theirs = segments(4), segments(4, sport=7)
    shots = []
    for number in range(4):
        shots += [Shot(ours[number], number * 10, 0), Shot(theirs[number], number * 10, 1)]
    seen: list[int] = []

    def hook(packets: list[Any]) -> None:
        seen.append(sum(payloads(packets)))
        if len(seen) == 1:
            raise ValueError("the hook's own")

    with make(io.BytesIO(capture(shots, [RAW, RAW])), hook, **options) as dispatcher:
        with pytest.raises(ValueError, match="the hook's own"):
            dispatcher.run()
        dispatcher.run()
    assert sum(seen) == 8


def test_what_a_hook_left_of_a_batch_is_not_filled_up(engine: Engine) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    packets = segments(8)
    shots = [Shot(packet, 0, 1 if number else 0) for number, packet in enumerate(packets)]
    seen: list[int] = []

    def hook(delivered: list[Any]) -> None:
        seen.append(sum(payloads(delivered)))
        if len(seen) == 1:
            raise ValueError

    with make(io.BytesIO(capture(shots, [RAW, RAW])), hook, batch=4) as dispatcher:
        with pytest.raises(ValueError, match=r"^$"):
            dispatcher.run()
        dispatcher.run()
    assert seen == [1, 3, 4]


@pytest.mark.parametrize("options", [{"batch": 64}, {"window_ns": MS}])
def test_damage_is_raised_after_what_came_before_it_was_delivered(
    engine: Engine, options: dict[str, int]
) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    content = capture(segments(3)) + b"\x06\0\0\0\x01\0\0\0" + bytes(40)
    collector = Collector()
    with make(io.BytesIO(content), collector, **options) as dispatcher:
        with pytest.raises(CaptureFormatError):
            dispatcher.run()
        assert payloads(collector.packets) == [3]
        assert dispatcher.exhausted
        assert dispatcher.dispatch_once() == 0


def test_a_file_that_is_cut_is_delivered_up_to_there(engine: Engine) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    collector = Collector()
    with make(io.BytesIO(capture(segments(3))[:-30]), collector) as dispatcher:
        assert dispatcher.run() == 2
        assert dispatcher.reader.truncated
        assert len(dispatcher.reader.warnings) == 1
    assert payloads(collector.packets) == [2]


def test_what_cannot_be_opened_is_a_capture_error(engine: Engine, tmp_path: Path) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    with pytest.raises(CaptureError, match="nowhere"):
        make(tmp_path / "nowhere", lambda packets: None)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": 65_537}, "batch"),
        ({"batch": True}, "batch"),
        ({"batch": 1.0}, "batch"),
        ({"window_ns": 0}, "window_ns"),
        ({"window_ns": 2**63}, "window_ns"),
        ({"batch": 1, "window_ns": 1}, "window_ns"),
        ({"mtu": 67}, "mtu"),
        ({"mtu": 65_536}, "mtu"),
    ],
)
def test_a_parameter_out_of_range_is_named(
    engine: Engine, options: dict[str, Any], field: str
) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    with pytest.raises(ConfigError) as caught:
        make(io.BytesIO(capture([])), lambda packets: None, **options)
    assert caught.value.field == field


def test_the_observer_sees_each_record_before_it_is_dispatched(engine: Engine) -> None:
    events: list[int | str] = []
    run_options: dict[str, Any] = {
        "batch": 2,
        "observer": lambda record, found: events.append(record.number),
    }
    make = engine.module("dispatchers").CaptureDispatcher
    content = io.BytesIO(capture(segments(3)))
    with make(content, lambda packets: events.append("flush"), **run_options) as dispatcher:
        dispatcher.run()
    assert events == [1, 2, "flush", 3, "flush"]


def test_scrub_overwrites_the_input_and_spares_what_was_detached(engine: Engine) -> None:
    make = engine.module("dispatchers").CaptureDispatcher
    packets = [*segments(2), tcp4(b"", flags=SYN)]
    after: list[bytes] = []
    borrowed: list[bytes] = []

    def hook(delivered: list[Any]) -> None:
        delivered[0].detach()
        dispatcher.scrub()
        after.append(bytes(delivered[0]))
        borrowed.append(bytes(delivered[1]))

    with make(io.BytesIO(capture(packets)), hook, scrubbable=True) as dispatcher:
        with pytest.raises(EngineStateError):
            dispatcher.scrub()
        dispatcher.run()
    assert after[0].endswith(packets[1][40:])
    assert borrowed == [b"\xa5" * len(packets[2])]


# --- odd captures --------------------------------------------------------------------------------


def odd_captures() -> Iterator[tuple[str, bytes, int]]:
    yield "no packets", capture([]), 0
    yield "empty packets", capture([b"", b""]), 2
    yield "one byte", capture([b"E"], [ETHERNET]), 1
    yield "pcap", pcap_header(link=RAW) + b"".join(map(pcap_record, segments(3))), 3
    yield "92 kB", capture([bytes(92_442)], [ETHERNET]), 1


@pytest.mark.parametrize(("content", "count"), [odd[1:] for odd in odd_captures()])
@pytest.mark.parametrize("options", [{"batch": 1}, {"batch": 64}, {"window_ns": MS}])
def test_odd_captures_are_taken(
    engine: Engine, content: bytes, count: int, options: dict[str, int]
) -> None:
    collector, stats = run(engine, content, **options)
    assert sum(payloads(collector.packets)) == count
    assert stats.engine.packets_in == count


# --- memory --------------------------------------------------------------------------------------


def test_a_batch_ends_early_when_its_records_have_more_than_a_span_of_bytes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.module("dispatchers.capture"), "MAX_SPAN_BYTES", 420)
    collector, stats = run(engine, capture(segments(7)), batch=64)  # of 140 bytes each
    assert payloads(collector.packets) == [3, 3, 1]
    assert stats.engine.packets_in == 7


def test_a_window_of_one_interface_ends_early_when_it_has_more_than_a_span_of_bytes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.module("dispatchers.capture"), "MAX_SPAN_BYTES", 420)
    assert windows(engine, [0] * 7, 100) == [3, 3, 1]


def test_many_interfaces_have_no_engines_of_the_full_capacity(engine: Engine) -> None:
    module = engine.module("dispatchers.capture")
    content = capture([Shot(segments(1)[0], 0, number) for number in range(9)], [RAW] * 9)
    with module.CaptureDispatcher(io.BytesIO(content), Collector(), batch=65536) as dispatcher:
        dispatcher.run()
        capacities = [gro.config.capacity for gro in dispatcher.engines.values()]
    assert capacities == [65536] + [module.FIRST_CAPACITY] * 8


@pytest.mark.parametrize("scrubbable", [False, True])
def test_an_engine_grows_with_its_share_and_a_share_stays_one_flush(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, scrubbable: bool
) -> None:
    monkeypatch.setattr(engine.module("dispatchers.capture"), "FIRST_CAPACITY", 2)
    packets = [*segments(9, partial=True), *segments(9, sport=7), *segments(1, sport=8)]
    shots = [Shot(b"first", 0, 0), *[Shot(each, 5, 1) for each in packets]]
    content = capture([*shots, *shots], [RAW, RAW])
    collector, stats = run(engine, content, batch=20, scrubbable=scrubbable)
    assert collector.shapes == [(0, [1]), (1, [9, 9, 1])] * 2
    assert [packet.timestamps() for packet in collector.packets[1:4]] == [
        (5,) * 9,
        (5,) * 9,
        (5,),
    ]
    assert bytes(collector.packets[3]) == packets[-1]
    assert stats.partial_checksums == 18
    assert stats.engine.packets_in == 40
    assert stats.engine.batches == 4


def test_an_engine_that_grew_has_the_switches_of_the_former_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = engine.module("dispatchers.capture")
    monkeypatch.setattr(module, "FIRST_CAPACITY", 2)
    collector = Collector()
    quiet, busy = segments(1, sport=7), segments(5)
    shots = [Shot(quiet[0], 0, 0), Shot(busy[0], 0, 1), Shot(quiet[0], 0, 0)]
    content = capture([*shots, *[Shot(each, 0, 1) for each in busy]], [RAW, RAW])
    with module.CaptureDispatcher(io.BytesIO(content), collector, batch=8) as dispatcher:
        monkeypatch.setattr(dispatcher, "_batch", 2)
        dispatcher.dispatch_once()
        former = dispatcher.engines[1]
        former.enabled = False
        former.never_merge = bool
        monkeypatch.setattr(dispatcher, "_batch", 8)
        dispatcher.dispatch_once()
        assert dispatcher.engines[1] is not former
        assert dispatcher.engines[1].config.capacity == 8
        assert dispatcher.engines[1].never_merge is bool
    assert {packet.verdict for packet in collector.flushes[-1]} == {Verdict.DISABLED}


def test_engines_that_grew_are_given_up_for_others_once_they_are_idle(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = engine.module("dispatchers.capture")
    monkeypatch.setattr(module, "FIRST_CAPACITY", 2)
    monkeypatch.setattr(module, "MAX_TOTAL_CAPACITY", 40)
    collector = Collector()
    shots = [Shot(each, 0, number) for number in range(6) for each in segments(16)]
    content = capture(shots, [RAW] * 6)
    with module.CaptureDispatcher(io.BytesIO(content), collector, batch=16) as dispatcher:
        while not dispatcher.exhausted:
            dispatcher.dispatch_once()
            capacities = [gro.config.capacity for gro in dispatcher.engines.values()]
            assert sum(capacities) <= 40
        assert dispatcher.stats.engine.packets_in == 96
    assert collector.shapes == [(number, [16]) for number in range(6)]
