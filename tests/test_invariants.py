"""The invariants of the engine, each as a property, and all of them over a million packets.

That misuse is caught (the ninth) is in `test_gro_misuse`.
"""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from netstack_gro.config import ChecksumState, GroConfig, Limits
from netstack_gro.errors import GsoError, PinnedError
from netstack_gro.stats import Stats
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import GsoType, VirtioHeader
from tests.builders import tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.invariants import (
    FEEDS,
    Delivered,
    Recorder,
    Tally,
    cases,
    check,
    check_conservation,
    check_losslessness,
    check_order,
    feed,
)
from tests.traffic import LINKS, TrafficPacket, batches, generate

SEED = int(os.environ.get("NETSTACK_GRO_TEST_SEED", "1"))
PACKETS = int(os.environ.get("NETSTACK_GRO_TEST_PACKETS", "1000000"))

MIXES: dict[str, list[dict[str, Any]]] = {
    "verify": [
        {},
        {"delivered_checksums": "partial"},
        {"capacity": 8, "fixed_ip_ids": "df"},
        {"tcp": False, "max_udp_segments": 128},
    ],
    "trust": [
        {"received_checksums": "trust"},
        {"received_checksums": "trust", "delivered_checksums": "partial", "capacity": 32},
        {"max_size": 1500, "max_frame": 1514, "max_tcp_segments": 17, "max_udp_segments": 2},
        {"udp": False, "fixed_ip_ids": "refuse", "max_size": 20000},
    ],
}
CHUNKS = [(link, mix) for link in LINKS for mix in MIXES]

Case = tuple[Sequence[TrafficPacket], GroConfig]


def stream(start: int, *sizes: int) -> list[bytes]:
    """Segments of those sizes, which merge but for the last ones."""
    packets = []
    for number, size in enumerate(sizes):
        at = start + sum(sizes[:number])
        packets.append(tcp4(bytes(size), seq=at, ident=number))
    return packets


def deliver(
    engine: Engine, packets: Sequence[TrafficPacket], config: GroConfig, way: str = "append"
) -> list[Delivered]:
    """What a new engine makes of one batch."""
    recorder = Recorder()
    feed(engine, engine.GroDispatcher(recorder, config), packets, way)
    return recorder.take()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "mix"), [pytest.param(*chunk, id="-".join(chunk)) for chunk in CHUNKS]
)
def test_all_invariants_hold_over_a_million_packets(engine: Engine, link: str, mix: str) -> None:
    seed = SEED * len(CHUNKS) + CHUNKS.index((link, mix))
    print(f"NETSTACK_GRO_TEST_SEED={SEED} NETSTACK_GRO_TEST_PACKETS={PACKETS}")
    rng = random.Random(seed)
    runs = []
    for fields in MIXES[mix]:
        config = GroConfig(**{"link": link, "udp": True} | fields)
        recorder = Recorder()
        runs.append((config, recorder, engine.GroDispatcher(recorder, config), Tally()))
    ways = list(FEEDS)
    for number, packets in enumerate(generate(seed, PACKETS // len(CHUNKS), link=link)):
        config, recorder, gro, tally = runs[int(rng.random() * len(runs))]
        way = ways[int(rng.random() * len(ways))]
        # A detached packet computes its attributes once: the cheaper way to read them all.
        recorder.detach = rng.random() < 0.8
        recorder.keep = rng.random() < 0.2
        try:
            feed(engine, gro, packets, way)
            flushes = len(recorder.flushes)
            delivered = recorder.take()
            recorder.check_released()
            tally.add(packets, delivered, flushes)
            check(packets, delivered, config, engine.segment)
        except Exception as error:
            error.add_note(f"batch {number} of seed {seed}, given by {way!r}, under {config}")
            raise
    for _, _, gro, tally in runs:
        tally.check(gro.stats)


# --- 1 to 3: conservation, losslessness, order ---------------------------------------------------


@given(case=cases(), way=st.sampled_from(sorted(FEEDS)))
def test_every_input_is_in_exactly_one_delivered_packet(
    engine: Engine, case: Case, way: str
) -> None:
    packets, config = case
    check_conservation(packets, deliver(engine, packets, config, way))


@settings(max_examples=200)
@given(case=cases(), way=st.sampled_from(sorted(FEEDS)))
def test_cutting_what_was_delivered_gives_back_the_inputs(
    engine: Engine, case: Case, way: str
) -> None:
    packets, config = case
    delivered = deliver(engine, packets, config, way)
    groups = check_conservation(packets, delivered)
    check_losslessness(packets, groups, delivered, config, engine.segment)


@pytest.mark.parametrize("build", [tcp4, tcp6, udp4, udp6])
def test_a_super_packet_whose_checksum_is_zero_has_the_zero_of_its_protocol(
    engine: Engine, build: Callable[..., bytes]
) -> None:
    config = GroConfig(udp=True)
    udp, v4 = build in (udp4, udp6), build in (tcp4, udp4)
    field = (20 if v4 else 40) + (6 if udp else 16)

    def merged_checksum(word: bytes) -> bytes:
        """That of two segments, the first of which begins with `word`."""
        inputs = []
        for at, payload in enumerate((word + bytes(98), bytes(100))):
            fields = ({} if udp else {"seq": 100 * at}) | ({"ident": at} if v4 else {})
            inputs.append(TrafficPacket(build(payload, **fields), timestamp_ns=at))
        delivered = deliver(engine, inputs, config)
        check(inputs, delivered, config, engine.segment)
        (packet,) = delivered
        return packet.data[field : field + 2]

    completes_the_sum = merged_checksum(bytes(2))
    assert merged_checksum(completes_the_sum) == (b"\xff\xff" if udp else b"\0\0")


@given(case=cases())
def test_a_packets_own_segments_are_those_of_the_public_function(
    engine: Engine, case: Case
) -> None:
    packets, config = case
    cut: list[tuple[list[bytes], list[bytes]]] = []

    def hook(delivered: list[Any]) -> None:
        for packet in delivered:
            arguments = (bytes(packet), packet.virtio_header(), packet.ip_id_mode)
            cut.append((list(packet.segments()), list(engine.segment(*arguments))))

    gro = engine.GroDispatcher(hook, config)
    for packet in packets:
        gro.enqueue(packet.data, **packet.keywords())
    gro.flush()
    assert cut
    assert all(own == public for own, public in cut)


@given(case=cases())
def test_pieces_copies_and_bytes_of_a_packet_are_the_same(engine: Engine, case: Case) -> None:
    packets, config = case

    def hook(delivered: list[Any]) -> None:
        for packet in delivered:
            data = bytes(packet)
            assert b"".join(packet.buffers()) == data
            assert all(piece.readonly for piece in packet.buffers())
            room = bytearray(b"\xee" * (len(data) + 6))
            assert packet.copy_into(room, 3) == len(data) == len(packet)
            assert room == b"\xee\xee\xee" + data + b"\xee\xee\xee"
            assert bytes(packet.detach()) == data
            assert b"".join(packet.buffers()) == data

    gro = engine.GroDispatcher(hook, config)
    for packet in packets:
        gro.enqueue(packet.data, **packet.keywords())
    gro.flush()


@given(case=cases(), way=st.sampled_from(sorted(FEEDS)))
def test_no_packet_overtakes_an_earlier_one_of_its_flow(
    engine: Engine, case: Case, way: str
) -> None:
    packets, config = case
    delivered = deliver(engine, packets, config, way)
    check_order(packets, check_conservation(packets, delivered), config.link)


# --- 4 and 5: batches ----------------------------------------------------------------------------


@given(case=cases(), cut=st.integers(0, 40))
def test_a_batch_is_delivered_as_if_there_had_been_none_before(
    engine: Engine, case: Case, cut: int
) -> None:
    packets, config = case
    parts = [part for part in (packets[:cut], packets[cut:]) if part]
    recorder = Recorder()
    gro = engine.GroDispatcher(recorder, config)
    for part in parts:
        feed(engine, gro, part, "append")
    assert recorder.take() == [packet for part in parts for packet in deliver(engine, part, config)]


def test_what_a_flush_does_not_fill_is_not_waited_for(engine: Engine) -> None:
    recorder = Recorder()
    gro = engine.GroDispatcher(recorder)
    first, second = stream(0, 100, 100)
    gro.dispatch([first])
    gro.dispatch([second])
    assert [packet.data for packet in recorder.take()] == [first, second]
    assert gro.flush() == 0
    assert recorder.flushes == []


@given(data=st.binary(max_size=200), link=st.sampled_from(LINKS))
@example(data=b"", link="ip")
def test_a_batch_of_one_is_delivered_before_it_is_looked_at(
    engine: Engine, data: bytes, link: str
) -> None:
    for way in ("batch", "iterable"):
        recorder = Recorder()
        gro = engine.GroDispatcher(recorder, GroConfig(link=link, udp=True))
        packets: Any = [data]
        if way == "batch":
            packets = engine.Batch(capacity=1)
            packets.append(data)
        assert gro.dispatch(packets) == 1
        (packet,) = recorder.take()
        assert packet.data == data
        assert packet.verdict is Verdict.ALONE
        assert packet.closed_by is CloseReason.NOT_HELD


# --- 6: what results do not depend on ------------------------------------------------------------


@given(case=cases())
def test_engines_of_different_hash_seeds_deliver_the_same(engine: Engine, case: Case) -> None:
    packets, config = case
    assert deliver(engine, packets, config) == deliver(engine, packets, config)


@given(case=cases(), way=st.sampled_from(sorted(FEEDS)))
def test_it_does_not_matter_how_a_batch_is_given_but_for_a_lone_packet(
    engine: Engine, case: Case, way: str
) -> None:
    packets, config = case

    def comparable(delivered: list[Delivered]) -> list[Delivered]:
        if config.capacity == 1 or len(packets) % config.capacity == 1:
            # The last piece of the batch was a batch of one, which `enqueue` does not know.
            unlooked = {"verdict": Verdict.ALONE, "closed_by": CloseReason.NOT_HELD}
            return [
                packet._replace(**unlooked) if packet.packets == 1 else packet
                for packet in delivered
            ]
        return delivered

    assert comparable(deliver(engine, packets, config, way)) == comparable(
        deliver(engine, packets, config)
    )


@given(packets=batches("ethernet"), kind=st.sampled_from((bytes, bytearray, memoryview)))
def test_an_iterable_is_a_batch_without_metadata(
    engine: Engine, packets: list[TrafficPacket], kind: Callable[[bytes], Any]
) -> None:
    config = GroConfig(link="ethernet", udp=True)
    plain = [TrafficPacket(packet.data, timestamp_ns=at) for at, packet in enumerate(packets)]
    recorder = Recorder()
    gro = engine.GroDispatcher(recorder, config)
    assert gro.dispatch(kind(packet.data) for packet in packets) == len(packets)
    assert [packet._replace(timestamps=(), timestamp_ns=0) for packet in recorder.take()] == [
        packet._replace(timestamps=(), timestamp_ns=0) for packet in deliver(engine, plain, config)
    ]


def test_cutting_is_lazy_and_bounded(engine: Engine) -> None:
    packet = tcp4(bytes(65000))
    header = VirtioHeader(0, GsoType.TCPV4, 40, 1, 20, 16)
    segments = engine.segment(packet, header)
    assert len(next(segments)) == 41
    assert len(next(segments)) == 41
    with pytest.raises(GsoError, match="65000 segments, more than max_segments"):
        engine.segment(packet, header, max_segments=64999)


# --- 7: no input raises --------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    packets=st.lists(st.binary(max_size=300), min_size=2, max_size=6), link=st.sampled_from(LINKS)
)
def test_any_bytes_whatever_are_passed_through(
    engine: Engine, packets: list[bytes], link: str
) -> None:
    given_packets = [TrafficPacket(data, timestamp_ns=at) for at, data in enumerate(packets)]
    config = GroConfig(link=link, udp=True)
    check(given_packets, deliver(engine, given_packets, config), config, engine.segment)


@given(case=cases(), noise=st.binary(max_size=80), data=st.data())
def test_damaged_packets_are_merged_or_passed_through(
    engine: Engine, case: Case, noise: bytes, data: st.DataObject
) -> None:
    packets, config = case
    damaged = []
    for packet in packets:
        at = data.draw(st.integers(0, len(packet.data)))
        body = packet.data[:at] + noise + packet.data[at + len(noise) :]
        damaged.append(replace(packet, data=body, wire_length=None))
    check(damaged, deliver(engine, damaged, config), config, engine.segment)


# --- 8: nobody's bytes change under them ---------------------------------------------------------


@given(case=cases(), detach=st.booleans())
def test_numbers_stay_readable_and_bytes_do_not(engine: Engine, case: Case, detach: bool) -> None:
    packets, config = case
    recorder = Recorder()
    recorder.keep, recorder.detach = True, detach
    gro = engine.GroDispatcher(recorder, config)
    feed(engine, gro, packets, "slab")
    recorder.keep = False
    feed(engine, gro, packets, "slab")  # uses all memory again
    recorder.check_released()


def test_every_way_to_the_bytes_of_a_released_packet_raises(engine: Engine) -> None:
    kept: list[Any] = []
    gro = engine.GroDispatcher(kept.extend)
    gro.dispatch([*stream(0, 100, 100), b"neither"])
    assert [packet.packets for packet in kept] == [2, 1]
    for packet in kept:
        for use in (
            bytes,
            lambda p: p.buffers(),
            lambda p: p.copy_into(bytearray(1000)),
            lambda p: p.segments(),
            lambda p: p.detach(),
            lambda p: p.header,
        ):
            with pytest.raises(ValueError, match="released"):
                use(packet)


def test_views_that_a_hook_kept_are_never_overwritten(engine: Engine) -> None:
    views: list[memoryview] = []
    expected: list[bytes] = []

    def hook(packets: list[Any]) -> None:
        for packet in packets:
            views.extend(packet.buffers())
            expected.extend(bytes(view) for view in packet.buffers())

    gro = engine.GroDispatcher(hook, GroConfig(max_slabs=3))
    for start in (0, 5000):
        gro.dispatch(stream(start, 100, 100, 100))
    assert views == expected
    assert gro.stats.pinned == 1
    gro.dispatch(stream(9000, 100, 100))
    with pytest.raises(PinnedError, match="detach"):
        gro.dispatch(stream(1, 100, 100))
    assert views == expected
    views.clear()
    gro.dispatch(stream(7, 100, 100))


def test_a_written_header_reaches_the_segments_and_no_input(engine: Engine) -> None:
    inputs = stream(0, 100, 100, 40)
    slab = bytearray(b"".join(inputs))
    before = bytes(slab)
    batch = engine.Batch(slab)
    at = 0
    for packet in inputs:
        batch.add(at, len(packet))
        at += len(packet)
    cut: list[bytes] = []

    def hook(packets: list[Any]) -> None:
        (packet,) = packets
        packet.header[8] = 63  # TTL
        cut.extend(packet.segments())

    engine.GroDispatcher(hook).dispatch(batch)
    assert slab == before
    assert cut == [
        tcp4(bytes(size), seq=at, ident=number, ttl=63)
        for number, (at, size) in enumerate(((0, 100), (100, 100), (200, 40)))
    ]


# --- 10: capability honesty ----------------------------------------------------------------------


class Sink(Recorder):
    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits


@given(
    packets=batches("ip"),
    limits=st.builds(
        Limits,
        tcp=st.booleans(),
        udp=st.booleans(),
        max_size=st.sampled_from((65535, 1500, 300)),
        max_tcp_segments=st.sampled_from((None, 1, 2)),
        max_udp_segments=st.sampled_from((1, 2, 64)),
        delivered_checksums=st.sampled_from(("complete", "partial")),
        fixed_ip_ids=st.sampled_from(("merge", "df", "refuse")),
    ),
)
def test_a_sinks_limits_are_read_at_every_batch(
    engine: Engine, packets: list[TrafficPacket], limits: Limits
) -> None:
    wide = GroConfig(udp=True, max_udp_segments=128, delivered_checksums="partial")
    sink = Sink(Limits(udp=True, max_udp_segments=128, delivered_checksums="partial"))
    gro = engine.GroDispatcher(sink, wide)
    for held in (sink.limits, limits, sink.limits):
        sink.limits = held
        feed(engine, gro, packets, "append")
        narrow = replace(wide, **{name: getattr(held, name) for name in held.__slots__})
        assert sink.take() == deliver(engine, packets, narrow)


def test_udp_is_not_merged_for_a_hook_that_did_not_ask(engine: Engine) -> None:
    recorder = Recorder()
    engine.GroDispatcher(recorder).dispatch([udp4(bytes(100), ident=number) for number in range(3)])
    assert [packet.verdict for packet in recorder.take()] == [Verdict.PROTOCOL_OFF] * 3


# --- statistics ----------------------------------------------------------------------------------


@given(case=cases(), way=st.sampled_from(sorted(FEEDS)))
def test_counters_say_what_came_in_and_out(engine: Engine, case: Case, way: str) -> None:
    packets, config = case
    recorder, tally = Recorder(), Tally()
    gro = engine.GroDispatcher(recorder, config)
    assert gro.stats == Stats()
    for _ in range(2):
        feed(engine, gro, packets, way)
        flushes = len(recorder.flushes)
        tally.add(packets, recorder.take(), flushes)
        tally.check(gro.stats)


@given(case=cases())
def test_switching_merging_off_loses_and_reorders_nothing(engine: Engine, case: Case) -> None:
    packets, config = case
    recorder = Recorder()
    gro = engine.GroDispatcher(recorder, config)
    for number, packet in enumerate(packets):
        gro.enabled = number % 5 != 3
        gro.enqueue(packet.data, **packet.keywords())
    gro.flush()
    delivered = recorder.take()
    check(packets, delivered, config, engine.segment)
    groups = check_conservation(packets, delivered)
    switched = {number for number in range(len(packets)) if number % 5 == 3}
    for group, packet in zip(groups, delivered, strict=True):
        assert (packet.verdict is Verdict.DISABLED) == bool(switched & set(group))
        # Switching closes what is open: no super-packet reaches across.
        assert group[0] // 5 == group[-1] // 5 or group[0] % 5 == 4 or len(group) == 1


def test_verified_is_said_only_of_what_somebody_verified(engine: Engine) -> None:
    def states(checksum: ChecksumState | None, *packets: bytes) -> list[ChecksumState]:
        recorder = Recorder()
        gro = engine.GroDispatcher(recorder)
        for packet in packets:
            gro.enqueue(packet, checksum=checksum)
        gro.flush()
        return [packet.checksum for packet in recorder.take()]

    good = stream(0, 100, 100)
    bad = [good[0], tcp4(bytes(100), seq=100, ident=1, checksum=0x1234)]
    unknown, verified = ChecksumState.UNKNOWN, ChecksumState.VERIFIED
    assert states(None, good[0]) == [unknown]
    assert states(None, *good) == [verified]
    assert states(None, *bad) == [verified, unknown]
    assert states(ChecksumState.PARTIAL, bad[1]) == [ChecksumState.PARTIAL]
