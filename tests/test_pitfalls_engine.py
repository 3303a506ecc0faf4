"""Faults of other engines' structure, flushing and ordering, each as a regression test.

=====================================================  =============================================
fault reported                                         test
=====================================================  =============================================
flush delivers one held packet a bucket                a_flush_delivers_every_flow_...
the handshake's final ACK is held                      the_final_ack_of_a_handshake_...
a timer flushes, an idle engine burns CPU              nothing_runs_while_the_engine_is_idle
MSS taken from the interface's MTU                     a_flow_s_own_segment_size_...
recycled entries alias one another                     entries_that_are_used_again_...
DF required for merging                                segments_without_df_merge
close racing dispatch releases a packet twice          closing_and_flushing_in_any_order_...
flushed youngest first                                 flows_are_delivered_in_the_order_...
held without bound under load                          no_packet_outlives_its_batch_under_load
a PSH or FIN packet overtakes older data               a_segment_with_psh_or_fin_...
flags written into the tail's payload                  gathered_flags_are_written_in_the_head_...
a third packet chained after the wrong element         segments_that_do_not_merge_...
a change of ECN treated as another flow                a_change_of_the_ecn_mark_...
refused packets queued on a side chain                 a_refused_packet_comes_between_...
the merge routine crashes; switching off loses data    noise_never_raises, switching_off_...
a peer that did not accept large packets gets them     a_consumer_that_takes_no_large_packets_...
frames for other stations count as the same flow       frames_for_another_station_...
cooked captures of several interfaces                  the_interface_of_a_cooked_header_...
RAW taken to be IPv4                                   a_raw_link_holds_either_version
padding, trailer, FCS enter the payload                surplus_bytes_stay_with_their_frame
IP length 0 means empty                                a_packet_of_ip_length_0_...
captured before checksums were filled in               checksums_that_the_sender_left_...
UDP GRO reaches a consumer that did not ask            a_consumer_that_did_not_ask_for_udp_...
more than 64 datagrams in one                          no_more_than_64_datagrams_...
a longer datagram appended to a train                  a_tiny_first_datagram_...
a control message cut short hands a train on as one    a_read_that_was_cut_off_...
=====================================================  =============================================
"""

import random
import sys
import threading
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, GroConfig, Limits
from netstack_gro.errors import EngineStateError
from tests import builders as b
from tests.builders import TrafficPacket, ethernet, fix_checksums, sll2, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import Recorder, RecordingSink, assert_sound, batch_of, merged

BODY = bytes(range(256)) * 8


def segments(count: int, size: int = 100, **fields: Any) -> list[bytes]:
    return [
        tcp4(BODY[place : place + size], seq=1 + size * place, ident=place, **fields)
        for place in range(count)
    ]


@pytest.mark.parametrize("flows", [2, 8, 9, 64, 256])
def test_a_flush_delivers_every_flow_whatever_bucket_it_hashed_to(
    engine: Engine, flows: int
) -> None:
    hook = Recorder(cut=False)
    gro = engine.GroDispatcher(hook, GroConfig(capacity=flows))
    packets = [tcp4(b"data", sport=1000 + port, dport=2000 - port % 1000) for port in range(flows)]
    for packet in packets:
        gro.enqueue(packet)
    assert gro.flush() == flows
    assert hook.data == packets
    assert (gro.pending, gro.flush()) == (0, 0)
    assert len(hook.flushes) == 1


def test_the_final_ack_of_a_handshake_is_not_held(engine: Engine) -> None:
    ack = tcp4(b"")
    hook = merged(engine, [*segments(2), ack, tcp4(b"", sport=2)])
    assert hook.counts == [2, 1, 1]
    assert hook.verdicts[1:] == ["TCP_NO_PAYLOAD"] * 2
    assert merged(engine, [ack]).data == [ack]


def test_nothing_runs_while_the_engine_is_idle(engine: Engine) -> None:
    threads = threading.active_count()
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    gro.enqueue(tcp4(b"x"))
    assert threading.active_count() == threads
    assert hook.flushes == []
    gro.flush()
    gro.dispatch([tcp4(b"lone")])
    assert hook.verdicts == ["OPENED", "ALONE"]
    assert gro.pending == 0


def test_a_flow_s_own_segment_size_decides_not_the_mtu(engine: Engine) -> None:
    (given,) = merged(engine, segments(3, 1000)).given
    assert (len(given.data), given.gso_size, given.packets) == (3040, 1000, 3)


def test_entries_that_are_used_again_hold_their_own_packets(engine: Engine) -> None:
    random_ = random.Random(1)
    hook = Recorder()
    gro = engine.GroDispatcher(hook, GroConfig(capacity=9))
    sent = []
    for _ in range(40):
        ports = random_.sample(range(50), random_.randrange(1, 10))
        batch = [tcp4(random_.randbytes(20), sport=port) for port in ports]
        sent += batch
        gro.dispatch(batch)
    assert hook.data == sent


def test_segments_without_df_merge(engine: Engine) -> None:
    packets = segments(2, df=False)
    hook = merged(engine, packets)
    assert hook.counts == [2]
    assert hook.given[0].segments == packets


@pytest.mark.parametrize("order", ["close flush", "flush close"])
def test_closing_and_flushing_in_any_order_delivers_each_packet_once(
    engine: Engine, order: str
) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    packet = bytearray(tcp4(b"held"))
    references = sys.getrefcount(packet)
    gro.enqueue(packet)
    for name in order.split() * 2:
        getattr(gro, name)()
    assert hook.counts == [1]
    assert sys.getrefcount(packet) == references
    packet.clear()
    with pytest.raises(EngineStateError):
        gro.enqueue(b"")


def test_flows_are_delivered_in_the_order_in_which_they_began(engine: Engine) -> None:
    a, c = segments(2), segments(2, sport=2)
    hook = merged(engine, [a[0], c[0], a[1], c[1]])
    assert [packet.segments for packet in hook.given] == [a, c]


@pytest.mark.parametrize("way", ["enqueue", "list"])
def test_no_packet_outlives_its_batch_under_load(engine: Engine, way: str) -> None:
    hook = Recorder(cut=False)
    gro = engine.GroDispatcher(hook, GroConfig(capacity=8))
    packets = segments(80)
    if way == "enqueue":
        for number, packet in enumerate(packets, 1):
            gro.enqueue(packet)
            assert gro.pending <= 8
            assert sum(hook.counts) == (number - 1) // 8 * 8
        gro.flush()
    else:
        gro.dispatch(packets)
    assert hook.counts == [8] * 10


@pytest.mark.parametrize("flag", [b.PSH, b.FIN, b.PSH | b.FIN])
def test_a_segment_with_psh_or_fin_does_not_overtake_older_data(engine: Engine, flag: int) -> None:
    first, _ = segments(2)
    last = tcp4(BODY[:100], seq=101, ident=1, flags=b.ACK | flag)
    (given,) = merged(engine, [first, last]).given
    assert given.segments == [first, last]
    assert given.data[33] == b.ACK | flag


def test_gathered_flags_are_written_in_the_head_s_header_only(engine: Engine) -> None:
    packets = [tcp4(bytes(100)), tcp4(bytes(100), seq=101, ident=1, flags=b.ACK | b.PSH | b.FIN)]
    slab = bytearray(b"".join(packets))
    batch = engine.Batch(slab)
    batch.add(0, 140)
    batch.add(140, 140)
    hook = Recorder()
    engine.GroDispatcher(hook).dispatch(batch)
    assert hook.data[0][40:] == bytes(200)
    assert hook.data[0][33] == b.ACK | b.PSH | b.FIN
    assert slab == b"".join(packets)


@pytest.mark.parametrize(
    "changes",
    [
        [{"tcp_options": bytes((1, 1, 1, place))} for place in range(4)],
        [{"seq": 1 + 1000 * place} for place in range(4)],
        [{"window": place} for place in range(4)],
        [{"ident": 7 * place} for place in range(4)],
    ],
)
def test_segments_that_do_not_merge_come_out_as_they_came_in(
    engine: Engine, changes: list[dict[str, Any]]
) -> None:
    packets = [
        tcp4(BODY[:100], **{"seq": 1 + 100 * place, "ident": place} | change)
        for place, change in enumerate(changes)
    ]
    assert merged(engine, packets).data == packets


@pytest.mark.parametrize("build", [tcp4, tcp6])
def test_a_change_of_the_ecn_mark_is_delivered_in_its_place(engine: Engine, build: Any) -> None:
    packets = [
        build(
            BODY[:100], seq=1 + 100 * place, tos=tos, **({"ident": place} if build is tcp4 else {})
        )
        for place, tos in enumerate((2, 3, 2))
    ]
    hook = merged(engine, packets)
    assert hook.data == packets
    assert hook.reasons == ["TOS", "TOS", "BATCH_END"]


def test_a_refused_packet_comes_between_what_was_held_and_what_follows(engine: Engine) -> None:
    packets = segments(5)
    packets[2] = tcp4(BODY[:100], seq=201, ident=2, flags=b.ACK | b.URG, urgent=5)
    hook = merged(engine, packets)
    assert hook.counts == [2, 1, 2]
    assert hook.verdicts[1] == "TCP_URG"
    assert [part for packet in hook.given for part in packet.segments] == packets


@pytest.mark.parametrize("link", b.LINKS)
def test_noise_never_raises(engine: Engine, link: str) -> None:
    random_ = random.Random(link)
    hook = Recorder()
    gro = engine.GroDispatcher(hook, GroConfig(link=link, udp=True))  # type: ignore[arg-type]
    seeds = [b.FRAMES[link](packet) for packet in (*segments(2), tcp6(BODY[:9]), udp6(b"xyz"))]
    sent = []
    for _ in range(60):
        batch = []
        for _ in range(random_.randrange(1, 12)):
            data = bytearray(random_.choice(seeds) if random_.random() < 0.8 else b"")
            data += random_.randbytes(random_.randrange(4)) if random_.random() < 0.3 else b""
            for _ in range(random_.randrange(4)):
                if data:
                    data[random_.randrange(len(data))] = random_.randrange(256)
            batch.append(bytes(data[: random_.randrange(len(data) + 1) or None]))
        sent += batch
        assert gro.dispatch(batch) == len(batch)
    assert sorted(part for packet in hook.given for part in packet.segments) == sorted(sent)


def test_switching_off_in_the_middle_of_a_batch_loses_and_reorders_nothing(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    packets = segments(6)
    for place, packet in enumerate(packets):
        if place == 3:
            gro.enabled = False
        gro.enqueue(packet)
    gro.flush()
    assert hook.counts == [3, 1, 1, 1]
    assert [part for packet in hook.given for part in packet.segments] == packets


def test_a_consumer_that_takes_no_large_packets_gets_none(engine: Engine) -> None:
    sink = RecordingSink(Limits(tcp=False))
    packets = segments(4)
    assert merged(engine, packets, sink).data == packets
    small = RecordingSink(Limits(max_size=300))
    assert max(len(data) for data in merged(engine, packets, small).data) <= 300
    big = b"".join(BODY[:1000] for _ in range(10))
    aggregate = TrafficPacket(
        tcp4(big), virtio=engine.VirtioHeader(0, engine.GsoType.TCPV4, 40, 1000, 20, 16)
    )
    hook = merged(engine, [aggregate, b"y"], RecordingSink(Limits(tcp=False)))
    assert hook.given[0].gso_segs == len(hook.given[0].segments) == 10
    assert_sound(hook.given[0].segments)


def test_frames_for_another_station_are_another_flow(engine: Engine) -> None:
    here = [ethernet(packet) for packet in segments(2)]
    there = [ethernet(packet, destination=bytes(6)) for packet in segments(2)]
    from_elsewhere = [ethernet(packet, source=bytes(6)) for packet in segments(2)]
    mixed = [here[0], there[0], from_elsewhere[0], here[1], there[1], from_elsewhere[1]]
    hook = merged(engine, mixed, link="ethernet")
    assert [packet.segments for packet in hook.given] == [here, there, from_elsewhere]


def test_the_interface_of_a_cooked_header_is_part_of_the_flow(engine: Engine) -> None:
    one, two = ([sll2(packet, ifindex=index) for packet in segments(2)] for index in (1, 2))
    hook = merged(engine, [one[0], two[0], one[1], two[1]], link="sll2")
    assert [packet.segments for packet in hook.given] == [one, two]


def test_a_raw_link_holds_either_version(engine: Engine) -> None:
    four = segments(2)
    six = [tcp6(BODY[:100], seq=1 + 100 * place) for place in range(2)]
    hook = merged(engine, [four[0], six[0], four[1], six[1]], link="ip")
    assert [packet.segments for packet in hook.given] == [four, six]
    assert merged(engine, [*four, *six], link="ipv4").verdicts == [
        "MERGED",
        "IP_VERSION",
        "IP_VERSION",
    ]


@pytest.mark.parametrize("surplus", [1, 4, 6, 12])
def test_surplus_bytes_stay_with_their_frame(engine: Engine, surplus: int) -> None:
    frames = [ethernet(packet) + b"\xee" * surplus for packet in segments(3)]
    hook = merged(engine, frames, link="ethernet")
    assert hook.data == frames
    assert hook.verdicts == ["TRAILING_BYTES"] * 3


def test_a_padded_ack_of_60_bytes_is_no_data(engine: Engine) -> None:
    ack = ethernet(tcp4(b"")).ljust(60, b"\0")
    one = ethernet(tcp4(b"1", ident=1)).ljust(60, b"\0")
    follower = ethernet(tcp4(BODY[:100], seq=2, ident=2))
    hook = merged(engine, [ack, one, follower], link="ethernet")
    assert hook.data == [ack, one, follower]


def test_a_packet_of_ip_length_0_is_passed_on_whole(engine: Engine) -> None:
    before, after = segments(2)
    captured = tcp4(BODY[:1521], seq=101, ident=1, total_length=0, header_checksum=0)
    hook = merged(engine, [before, captured, after])
    assert hook.data == [before, captured, after]
    assert hook.verdicts[1] == "IP_LENGTH_ZERO"


def test_checksums_that_the_sender_left_to_the_nic_merge_as_partial(engine: Engine) -> None:
    ours = [
        TrafficPacket(
            tcp4(BODY[:100], seq=1 + 100 * place, ident=place, partial=True),
            checksum=ChecksumState.PARTIAL,
        )
        for place in range(3)
    ]
    theirs = segments(3, sport=2)
    hook = merged(engine, [*ours, *theirs])
    assert hook.counts == [3, 3]
    assert hook.given[0].segments == [fix_checksums(packet.data) for packet in ours]
    assert hook.given[1].segments == theirs
    unmarked = merged(engine, [packet.data for packet in ours])
    assert unmarked.counts == [1, 1, 1]


def test_a_consumer_that_did_not_ask_for_udp_super_packets_gets_datagrams(engine: Engine) -> None:
    train = [udp4(BODY[:size], ident=place) for place, size in enumerate((1000, 1000, 500))]
    assert merged(engine, train).data == train
    sink = RecordingSink(Limits(udp=False))
    assert merged(engine, train, sink, udp=True).data == train
    asked = merged(engine, train, udp=True)
    assert asked.given[0].segments == train


def test_no_more_than_64_datagrams_unless_the_consumer_allows_128(engine: Engine) -> None:
    train = [udp4(BODY[:100], ident=place) for place in range(129)]
    assert merged(engine, train, udp=True).counts == [64, 64, 1]
    assert merged(engine, train, udp=True, max_udp_segments=128).counts == [128, 1]


def test_a_tiny_first_datagram_does_not_set_the_size_of_the_rest(engine: Engine) -> None:
    train = [udp4(BODY[:size], ident=place) for place, size in enumerate((100, 1200, 1200))]
    hook = merged(engine, train, udp=True)
    assert [packet.segments for packet in hook.given] == [train[:1], train[1:]]


def test_a_read_that_was_cut_off_is_never_merged(engine: Engine) -> None:
    packets: list[bytes | TrafficPacket] = list(segments(3))
    whole = packets[1]
    assert isinstance(whole, bytes)
    packets[1] = TrafficPacket(whole, wire_length=len(whole) + 1)
    hook = merged(engine, packets)
    assert hook.verdicts == ["OPENED", "TRUNCATED", "OPENED"]
    assert hook.reasons[0] == "PASSED"


def test_batches_are_independent_of_one_another(engine: Engine) -> None:
    hook = Recorder()
    gro = engine.GroDispatcher(hook)
    for packet in segments(3):
        gro.dispatch(batch_of(engine, [packet, tcp4(b"x", sport=9)]))
    assert hook.counts == [1] * 6
