"""replay(): the report of a capture, and the file that it writes."""

import io
import json
import struct
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from netstack_gro.capture import Record, records
from netstack_gro.errors import ConfigError
from netstack_gro.verdicts import CloseReason, Verdict
from tests.builders import PSH, SYN, ethernet, tcp4, udp4
from tests.capture_files import (
    block,
    enhanced,
    interface,
    obsolete,
    option,
    pcap_header,
    pcap_record,
    reader_of,
    records_of,
    section,
    simple,
)
from tests.captures import ETHERNET, RAW, Shot, capture, segments
from tests.engines import Engine
from tests.requirements import require

MS = 1_000_000


def replay(engine: Engine, content: bytes, **options: Any) -> Any:
    module = engine.module("replay")
    return module.replay(io.BytesIO(content), module.ReplayOptions(**{"verify": True, **options}))


def rewritten(engine: Engine, *contents: bytes, **options: Any) -> bytes:
    """What ``-o`` would write for these captures."""
    module = engine.module("replay")
    stream = io.BytesIO()
    sink = engine.module("hooks").CaptureFileSink(stream)
    for content in contents:
        report = module.replay(
            io.BytesIO(content), module.ReplayOptions(**{"verify": True, **options}), sink=sink
        )
        assert report.verified, report.faults
    return stream.getvalue()


# --- the report ----------------------------------------------------------------------------------

MIXTURE = [
    *segments(5),
    tcp4(b"", flags=SYN),
    *[udp4(bytes(100), ident=number) for number in range(4)],
    tcp4(b"last", sport=9, flags=PSH),
]


def test_the_report_says_what_happened(engine: Engine) -> None:
    report = replay(engine, capture(MIXTURE))
    assert report.packets_in == 11
    assert report.packets_out == 4
    assert report.super_packets == 2
    assert report.segments == 9
    assert report.largest_segments == 5
    assert report.largest_bytes == 540
    assert report.bytes_in == sum(map(len, MIXTURE))
    assert report.bytes_out == 540 + 40 + 428 + 44
    assert report.verdicts == {"merged": 9, "tcp_syn": 1, "opened": 1}
    assert report.closed == {"passed": 1, "psh": 1, "batch_end": 1}
    assert report.link_types == [RAW]
    assert report.interfaces == [{"name": "if0", "link_type": RAW, "packets": 11}]
    assert (report.batch, report.window_ns) == (64, None)
    assert report.verified is True
    assert report.engine == engine.name
    assert (report.error, report.warnings, report.faults) == (None, [], [])


def test_counts_in_a_report_add_up(engine: Engine) -> None:
    report = replay(engine, capture(MIXTURE * 3), batch=7)
    assert sum(report.verdicts.values()) == report.packets_in
    assert report.packets_in - report.segments + report.super_packets == report.packets_out
    assert report.verdicts["merged"] == report.segments
    assert set(report.verdicts) <= {verdict.name.lower() for verdict in Verdict}
    assert set(report.closed) <= {reason.name.lower() for reason in CloseReason}
    assert 0 not in {*report.verdicts.values(), *report.closed.values()}


def test_udp_can_be_left_out(engine: Engine) -> None:
    report = replay(engine, capture(MIXTURE), udp=False)
    assert report.verdicts["protocol_off"] == 4
    assert report.super_packets == 1


def test_without_verify_nothing_is_claimed(engine: Engine) -> None:
    assert replay(engine, capture(MIXTURE), verify=False).verified is None


def test_windows_are_reported_as_such(engine: Engine) -> None:
    report = replay(engine, capture(MIXTURE), window_ns=MS)
    assert (report.batch, report.window_ns) == (None, MS)
    assert report.packets_out == 4


def test_offloads_are_counted(engine: Engine) -> None:
    packets = [
        *segments(3, partial=True),
        udp4(b"x", header_checksum=0),
        udp4(bytes(20_000)),
        udp4(bytes(2_000)),
    ]
    report = replay(engine, capture(packets))
    assert report.checksum_offload == {"transport": 3, "ip_header": 1}
    assert report.already_aggregated == 1
    assert replay(engine, capture(packets), mtu=1500).already_aggregated == 2
    cut = replay(engine, capture([Shot(udp4(bytes(99))[:50], 0, 0, 127)] * 2))
    assert cut.truncated == 2
    assert cut.verdicts == {"truncated": 2}


def test_json_is_one_line_with_every_field(engine: Engine) -> None:
    report = replay(engine, capture(MIXTURE))
    line = report.to_json()
    assert "\n" not in line
    assert line.isascii()
    assert set(json.loads(line)) == {field.name for field in fields(report)}


def test_the_two_engines_report_the_same(both_engines: tuple[Engine, Engine]) -> None:
    lines = []
    for engine in both_engines:
        report = replay(engine, capture(MIXTURE * 20), batch=16)
        assert report.engine == engine.name
        report.engine = ""
        lines.append(report.to_json())
    assert lines[0] == lines[1]


def test_what_cannot_be_opened_is_an_error_in_the_report(engine: Engine, tmp_path: Path) -> None:
    module = engine.module("replay")
    report = module.replay(tmp_path / "nowhere")
    assert "nowhere" in report.error
    assert report.file == str(tmp_path / "nowhere")
    assert report.verified is None
    assert "neither pcap nor pcapng" in replay(engine, b"not a capture").error


def test_a_file_cut_in_a_record_is_replayed_up_to_there_with_a_warning(engine: Engine) -> None:
    report = replay(engine, capture(segments(5))[:-20])
    assert report.packets_in == 4
    assert report.error is None
    assert report.verified is True
    assert len(report.warnings) == 1
    assert "ends within a record" in report.warnings[0]


@pytest.mark.parametrize("options", [{"batch": 2}, {"window_ns": MS}, {}])
def test_a_damaged_file_is_replayed_up_to_there_with_an_error(
    engine: Engine, options: dict[str, int]
) -> None:
    content = capture(segments(5)) + b"\x06\0\0\0\x0d\0\0\0" + bytes(40)
    report = replay(engine, content, **options)
    assert report.packets_in == 5
    assert "block length 13" in report.error
    assert report.verified is True


def test_options_out_of_range_raise(engine: Engine) -> None:
    with pytest.raises(ConfigError):
        replay(engine, capture([]), batch=0)
    with pytest.raises(ConfigError):
        replay(engine, capture([]), mtu=1)


def test_a_fault_of_the_engine_would_be_reported(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = engine.module("verify")
    expect = verify.Verifier.expect

    def altered(self: Any, record: Record, found: Any, link: str) -> None:
        if record.number == 3:
            record = record._replace(data=record.data[:-1] + b"!")
        expect(self, record, found, link)

    monkeypatch.setattr(verify.Verifier, "expect", altered)
    report = replay(engine, capture(segments(5)))
    assert report.verified is False
    assert report.faults[0].startswith("record 3: ")
    assert "byte 139 (payload)" in report.faults[0]


def test_progress_is_told_of(engine: Engine) -> None:
    module = engine.module("replay")
    seen: list[int] = []
    options = module.ReplayOptions(batch=1)
    content = io.BytesIO(capture(segments(200)))
    module.replay(content, options, progress=lambda reader: seen.append(reader.bytes_read))
    assert len(seen) == 3


def test_every_verdict_and_reason_is_explained(engine: Engine) -> None:
    explain = engine.module("explain")
    assert set(explain.VERDICTS) == set(Verdict)
    assert set(explain.CLOSE_REASONS) == set(CloseReason) - {CloseReason.NOT_HELD}


# --- the file that is written --------------------------------------------------------------------


def test_what_the_hook_received_is_written(engine: Engine) -> None:
    shots = [Shot(packet, 1000 * number) for number, packet in enumerate(MIXTURE)]
    records = records_of(rewritten(engine, capture(shots)))
    assert [len(record.data) for record in records] == [540, 40, 428, 44]
    assert [record.timestamp_ns for record in records] == [0, 5000, 6000, 10_000]


def test_a_written_file_can_be_replayed_again(engine: Engine) -> None:
    # All single packets: the second time there is nothing to merge, and nothing to complain of.
    content = rewritten(engine, capture([udp4(b"x", dport=number) for number in range(9)]))
    again = rewritten(engine, content)
    assert [record.data for record in records_of(again)] == [
        record.data for record in records_of(content)
    ]


@pytest.mark.parametrize("engine_option", [{"batch": 5}, {"batch": 64}, {"window_ns": 35}])
def test_packets_of_several_interfaces_are_in_the_files_order(
    engine: Engine, engine_option: dict[str, int]
) -> None:
    shots = []
    for number in range(60):
        # Runs of equal flows on three interfaces, by turns; the payload carries the number.
        interface = number * 7 % 3
        payload = number.to_bytes(2, "big") * 20
        packet = tcp4(payload, seq=1 + number // 3 * 40, ident=number // 3, sport=7)
        shots.append(Shot(packet, 10 * number, interface))
    records = records_of(rewritten(engine, capture(shots, [RAW] * 3), **engine_option))
    firsts = [int.from_bytes(record.data[40:42], "big") for record in records]
    assert firsts == sorted(firsts)
    assert len(records) < 60
    assert sum((len(record.data) - 40) // 40 for record in records) == 60
    assert {record.interface for record in records} == {0, 1, 2}


def test_what_waits_behind_an_open_window_is_written_after_it(engine: Engine) -> None:
    quiet, busy = segments(2, sport=7), segments(8)
    shots = [Shot(quiet[0], 0, 0)]
    shots += [Shot(packet, 10 * number, 1) for number, packet in enumerate(busy)]
    shots.append(Shot(quiet[1], 19, 0))
    records = records_of(rewritten(engine, capture(shots, [RAW, RAW]), window_ns=20))
    assert [record.interface for record in records] == [0, 1, 1, 1, 1]
    assert [record.timestamp_ns for record in records] == [0, 0, 20, 40, 60]
    assert len(records[0].data) == 240


def test_order_is_exact_where_flows_and_times_are_alike(engine: Engine) -> None:
    """Without times, and with fragments and repeated packets, only counting finds the places."""
    one, two = segments(4), segments(4, sport=7)
    fragment = tcp4(bytes(24), mf=True)
    order = [one[0], two[0], fragment, one[1], one[1], two[1], b"E", one[2], two[2], one[3]]
    shots = []
    for number, packet in enumerate(order):
        shots += [Shot(packet, 0, number % 2), Shot(packet, 0, (number + 1) % 2)]
    report_records = records_of(rewritten(engine, capture(shots, [RAW, RAW]), batch=20))
    starts: list[int] = []
    waiting = [(shot.data, shot.interface) for shot in shots]
    for record in report_records:
        place = next(
            at
            for at, (data, interface) in enumerate(waiting)
            if interface == record.interface
            and (
                data == record.data
                or (data[40:] == record.data[40:140] and data[20:24] == record.data[20:24])
            )
        )
        starts.append(place)
        waiting[place] = (b"", -1)
    assert starts == sorted(starts)


def test_the_files_interfaces_are_those_of_each_capture_in_turn(engine: Engine) -> None:
    first = capture([Shot(ethernet(tcp4(b"a")), 0, 1), Shot(tcp4(b"b"), 0, 0)], [12, ETHERNET])
    second = capture([Shot(tcp4(b"c"))], [228])
    with reader_of(rewritten(engine, first, second)) as reader:
        assert [record.interface for record in reader] == [0, 1, 2]
        described = [(each.name, each.link_type) for each in reader.interfaces]
    assert described == [("if1", ETHERNET), ("if0", 12), ("if0", 228)]


def test_a_pcap_file_is_written_with_its_link_type(engine: Engine) -> None:
    content = pcap_header(link=14) + b"".join(map(pcap_record, segments(3)))
    with reader_of(rewritten(engine, content)) as reader:
        (record,) = reader
        assert reader.interfaces[0].link_type == 14
    assert len(record.data) == 340


def test_times_before_1970_are_written_as_0_with_a_warning(engine: Engine) -> None:
    from tests.capture_files import enhanced, interface, section

    content = section() + interface(RAW, offset=-10) + enhanced(tcp4(b"x"), units=1)
    module = engine.module("replay")
    sink = engine.module("hooks").CaptureFileSink(io.BytesIO())
    report = module.replay(io.BytesIO(content), sink=sink)
    assert report.warnings == ["1 packets from before 1970 were written with time 0"]


def test_an_output_that_fails_is_an_output_error(engine: Engine) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 200:
                raise OSError(28, "No space left on device")
            return super().write(data)

    module = engine.module("replay")
    sink = engine.module("hooks").CaptureFileSink(Full())
    with pytest.raises(module.OutputError, match="No space left") as caught:
        module.replay(io.BytesIO(capture(segments(9))), module.ReplayOptions(batch=2), sink=sink)
    assert caught.value.errno == 28


# --- for people ----------------------------------------------------------------------------------


def test_the_plain_table_names_and_explains_what_was_not_merged(engine: Engine) -> None:
    text = engine.module("commands.replay_tables").plain(replay(engine, capture(MIXTURE)))
    assert "11 packets" in text
    assert "9 packets into 2 super-packets: 4.5 in each, at most 5" in text
    assert "tcp_syn" in text
    assert "opens a connection" in text
    assert "verified   yes" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_report_of_nothing_is_printed_too(engine: Engine) -> None:
    text = engine.module("commands.replay_tables").plain(replay(engine, capture([], [])))
    assert "no interface" in text
    assert "0 packets, 0 bytes" in text


@pytest.mark.parametrize(
    ("name", "shown"),
    [("\x1b[31mred", "\\x1b[31mred"), ("a\nb", "a\\nb"), ("\udcff", "\\udcff"), ("größe", "größe")],
)
def test_a_name_cannot_command_the_terminal(engine: Engine, name: str, shown: str) -> None:
    assert engine.module("commands.terminal").printable(name) == shown


def test_rich_tables_say_the_same(engine: Engine) -> None:
    require(None if find_spec("rich") else "needs rich (dependency group test)")
    report = replay(engine, capture(MIXTURE))
    report.file = "[bold]not markup[/bold]"
    stream = io.StringIO()
    engine.module("commands.replay_rich").show(report, stream)
    text = stream.getvalue()
    assert "[bold]not markup[/bold]" in text
    for word in ("tcp_syn", "opens a connection", "4.5 in each", "batch_end"):
        assert word in text


def test_a_progress_bar_comes_and_goes(engine: Engine) -> None:
    require(None if find_spec("rich") else "needs rich (dependency group test)")
    stream = io.StringIO()
    bar = engine.module("commands.replay_rich").Bar(stream, "[x] some\x1b", 100)
    bar.update(50)
    bar.close()


def test_an_interface_name_that_grows_when_it_is_decoded_can_be_written(engine: Engine) -> None:
    described = block(1, struct.pack("<HHI", RAW, 0, 0) + option(2, b"\xff" * 65535))
    content = rewritten(engine, section() + described + enhanced(segments(1)[0]))
    with reader_of(content) as reader:
        assert [record.data for record in reader] == segments(1)
        assert [each.name for each in reader.interfaces] == ["\ufffd" * 21845]


@pytest.mark.parametrize("kind", ["pcap", "enhanced", "simple", "obsolete"])
def test_the_longest_record_that_is_read_can_be_written_and_read_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    spare = records.MAX_BLOCK_LENGTH - records.MAX_RECORD_LENGTH
    assert spare >= 1 << 20
    for module in ("pcap", "pcapng", "writer"):
        monkeypatch.setattr(f"netstack_gro.capture.{module}.MAX_RECORD_LENGTH", 1_000_000)
    for module in ("pcapng", "writer"):
        monkeypatch.setattr(f"netstack_gro.capture.{module}.MAX_BLOCK_LENGTH", 1_000_000 + spare)

    def content(size: int) -> bytes:
        if kind == "pcap":
            return pcap_header(link=RAW) + pcap_record(bytes(size))
        make = {"enhanced": enhanced, "simple": simple, "obsolete": obsolete}[kind]
        return section() + interface(RAW) + make(bytes(size))

    once = rewritten(engine, content(1_000_000))
    assert [len(record.data) for record in records_of(once)] == [1_000_000]
    assert records_of(rewritten(engine, once)) == records_of(once)
    report = replay(engine, content(1_000_001))
    assert report.error is not None
    assert "captured length 1000001 is over" in report.error
