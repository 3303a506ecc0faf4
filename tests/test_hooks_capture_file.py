"""CaptureFileSink: what an engine delivers, as a capture that others can read."""

import io
from itertools import pairwise
from pathlib import Path
from typing import Any

import dpkt  # type: ignore[import-untyped]
import pytest
from scapy.utils import RawPcapNgReader

from netstack_gro.config import ChecksumState, GroConfig, Limits
from netstack_gro.hook import Sink
from tests.builders import DOT1Q, ethernet, sll2, tcp4, udp4
from tests.capture_files import reader_of, records_of
from tests.captures import ETHERNET, frames, segments
from tests.engines import Engine

MOMENT = 1573830016_444223380


def sink_of(engine: Engine, stream: Any, **options: Any) -> Any:
    return engine.module("hooks").CaptureFileSink(stream, **options)


def written(engine: Engine, packets: list[bytes], **options: Any) -> bytes:
    """What the sink writes for one batch, a microsecond between packets."""
    stream = io.BytesIO()
    config = GroConfig(udp=True, **options)
    with engine.GroDispatcher(sink_of(engine, stream), config) as gro:
        for number, packet in enumerate(packets):
            gro.enqueue(packet, timestamp_ns=MOMENT + 1000 * number)
    return stream.getvalue()


def test_it_is_a_sink_that_takes_udp_and_asks_for_complete_checksums(engine: Engine) -> None:
    sink = sink_of(engine, io.BytesIO())
    assert isinstance(sink, Sink)
    assert sink.limits.udp
    assert sink.limits.delivered_checksums == "complete"


def test_a_super_packet_is_one_record_at_the_time_of_its_first_segment(engine: Engine) -> None:
    (record,) = records_of(written(engine, segments(3)))
    assert record.timestamp_ns == MOMENT
    assert len(record.data) == 340
    assert record.wire_length == 340


def test_the_comment_names_the_times_of_the_others(engine: Engine) -> None:
    (record,) = records_of(written(engine, segments(3)))
    start, times_of_others = record.comments[0].rsplit(" at ")
    assert start == "GRO: 3 packets of 100 bytes of payload, others"
    assert times_of_others == "1573830016.444224380 1573830016.444225380"
    times = engine.module("hooks.capture_file").segment_times(record.comments)
    assert times == (MOMENT + 1000, MOMENT + 2000)


def test_a_packet_alone_has_no_comment(engine: Engine) -> None:
    (record,) = records_of(written(engine, segments(1)))
    assert record.comments == ()
    assert record.data == segments(1)[0]


def test_as_many_segments_as_there_can_be_are_named_in_several_comments(engine: Engine) -> None:
    count = 6000
    content = written(engine, segments(count, size=1), capacity=count)
    (record,) = records_of(content)
    assert len(record.comments) == 3
    times = engine.module("hooks.capture_file").segment_times(record.comments)
    assert len(times) == count - 1
    assert {later - earlier for earlier, later in pairwise(times)} == {1000}


def test_times_before_1970_are_written_as_0_and_read_back_exactly_in_comments(
    engine: Engine,
) -> None:
    stream = io.BytesIO()
    sink = sink_of(engine, stream)
    with engine.GroDispatcher(sink) as gro:
        for number, packet in enumerate(segments(3)):
            gro.enqueue(packet, timestamp_ns=-1_500_000_001 + number)
    (record,) = records_of(stream.getvalue())
    assert record.timestamp_ns == 0
    assert sink.clamped == 1
    times = engine.module("hooks.capture_file").segment_times(record.comments)
    assert times == (-1_500_000_000, -1_499_999_999)


def test_scapy_and_dpkt_read_it_and_find_complete_checksums(engine: Engine) -> None:
    packets = frames([*segments(5), *[udp4(bytes([number]) * 99) for number in range(4)]])
    content = written(engine, packets, link="ethernet", delivered_checksums="partial")
    read: list[Any] = list(RawPcapNgReader(io.BytesIO(content)))  # type: ignore[arg-type]
    assert [about.linktype for _, about in read] == [ETHERNET] * 2
    layers = [dpkt.ethernet.Ethernet(frame).data for frame, _ in read]
    assert [len(layer) for layer in layers] == [540, 424]
    for layer in layers:
        segment = bytes(layer.data)
        pseudo = layer.src + layer.dst + len(segment).to_bytes(4, "big") + bytes((0, 0, 0, layer.p))
        assert dpkt.in_cksum(pseudo + segment) == 0
        assert dpkt.in_cksum(bytes(layer)[:20]) == 0


def test_partial_input_is_written_complete(engine: Engine) -> None:
    stream = io.BytesIO()
    with engine.GroDispatcher(sink_of(engine, stream)) as gro:
        for packet in [*segments(2, partial=True), tcp4(b"x", dport=9, partial=True)]:
            gro.enqueue(packet, checksum=ChecksumState.PARTIAL)
    first, second = records_of(stream.getvalue())
    assert len(first.data) == 240
    assert second.data == tcp4(b"x", dport=9)


@pytest.mark.parametrize(
    ("link", "wrap", "link_type"),
    [("ip", bytes, 101), ("ethernet", ethernet, 1), ("sll2", sll2, 276)],
)
def test_the_link_type_is_the_packets_own_unless_it_was_said(
    engine: Engine, link: str, wrap: Any, link_type: int
) -> None:
    content = written(engine, [wrap(packet) for packet in segments(2)], link=link)
    with reader_of(content) as reader:
        list(reader)
        assert [each.link_type for each in reader.interfaces] == [link_type]


def test_interfaces_are_those_that_packets_came_from(engine: Engine) -> None:
    stream = io.BytesIO()
    sink = sink_of(engine, stream)
    sink.add_interface(7, 12, name="eth7")
    with engine.GroDispatcher(sink) as gro:
        for number in (7, 3, 7):
            gro.enqueue(tcp4(b"x", dport=number), interface=number)
    with reader_of(stream.getvalue()) as reader:
        assert [record.interface for record in reader] == [0, 1, 0]
        described = [(each.link_type, each.name) for each in reader.interfaces]
    assert described == [(12, "eth7"), (101, None)]


def test_numbers_can_come_to_mean_other_interfaces(engine: Engine) -> None:
    stream = io.BytesIO()
    sink = sink_of(engine, stream)
    with engine.GroDispatcher(sink) as gro:
        gro.dispatch([tcp4(b"x")])
        sink.forget_interfaces()
        gro.dispatch([tcp4(b"x")])
    assert [record.interface for record in records_of(stream.getvalue())] == [0, 1]
    assert sink.packets == 2


def test_a_cut_packet_keeps_its_wire_length(engine: Engine) -> None:
    stream = io.BytesIO()
    with engine.GroDispatcher(sink_of(engine, stream)) as gro:
        gro.enqueue(tcp4(bytes(500))[:60], wire_length=540)
    (record,) = records_of(stream.getvalue())
    assert (len(record.data), record.wire_length) == (60, 540)


def test_its_limits_can_be_narrowed(engine: Engine) -> None:
    stream = io.BytesIO()
    sink = sink_of(engine, stream, limits=Limits(udp=False))
    with engine.GroDispatcher(sink, GroConfig(udp=True)) as gro:
        gro.dispatch([udp4(bytes(9)), udp4(bytes(9))])
        sink.limits = Limits(udp=True)
        gro.dispatch([udp4(bytes(9)), udp4(bytes(9))])
    assert len(records_of(stream.getvalue())) == 3


def test_an_error_of_the_stream_reaches_the_caller(engine: Engine, tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 100:
                raise OSError(28, "No space left on device")
            return super().write(data)

    with (
        pytest.raises(OSError, match="No space"),
        engine.GroDispatcher(sink_of(engine, Full())) as gro,
    ):
        gro.dispatch(segments(2))
        gro.dispatch(segments(2))


def test_a_tag_that_is_metadata_does_not_get_into_the_frame(engine: Engine) -> None:
    stream = io.BytesIO()
    with engine.GroDispatcher(sink_of(engine, stream), GroConfig(link="ethernet")) as gro:
        for frame in frames(segments(2)):
            gro.enqueue(frame, vlan=5, vlan_tpid=DOT1Q)
    (record,) = records_of(stream.getvalue())
    assert record.data[12:14] == b"\x08\x00"


@pytest.mark.parametrize("character", ["a", "\xff", "\ufffd", "\U0001f600"])
def test_a_name_that_no_option_can_hold_is_clipped_between_two_characters(
    engine: Engine, character: str
) -> None:
    stream = io.BytesIO()
    sink = sink_of(engine, stream)
    count = 65535 // len(character.encode())
    sink.add_interface(0, 101, name=character * 65535)
    sink.add_interface(1, 101, name=character * count)
    with reader_of(stream.getvalue()) as reader:
        list(reader)
        assert [each.name for each in reader.interfaces] == [character * count] * 2
