"""Checksum states: what is verified and when, what is trusted, and what is delivered."""

from collections.abc import Callable
from typing import Any

import dpkt.ip
import dpkt.ip6
import pytest

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.virtio import DATA_VALID, NEEDS_CSUM, VirtioHeader
from tests import builders as b
from tests.builders import TrafficPacket, ethernet, fix_checksums, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import Recorder, assert_sound, batch_of, merged
from tests.packet_kinds import BODY, stream

UNKNOWN, VERIFIED, PARTIAL = (ChecksumState[name] for name in ("UNKNOWN", "VERIFIED", "PARTIAL"))
BUILDS = [tcp4, tcp6, udp4, udp6]
Build = Callable[..., bytes]


def field(packet: bytes) -> int:
    """The transport checksum of a packet without options or extension headers."""
    protocol, at = (packet[9], 20) if packet[0] >> 4 == 4 else (packet[6], 40)
    at += 16 if protocol == b.TCP else 6
    return int.from_bytes(packet[at : at + 2], "big")


def pseudo(packet: bytes) -> int:
    """The pseudo-header sum of such a packet."""
    if packet[0] >> 4 == 4:
        return b.pseudo_sum(packet[12:16], packet[16:20], packet[9], len(packet) - 20)
    return b.pseudo_sum(packet[8:24], packet[24:40], packet[6], len(packet) - 40)


def valid_to_dpkt(packet: bytes) -> bool:
    """Whether dpkt computes the same transport checksum."""
    layers = dpkt.ip.IP(packet) if packet[0] >> 4 == 4 else dpkt.ip6.IP6(packet)
    layers.data.sum = 0
    if packet[0] >> 4 == 4:
        layers.sum = 0  # dpkt computes the inner checksum of IPv4 only together with its own
    return bytes(layers) == packet


# --- received ------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS)
def test_a_wrong_checksum_passes_through_where_a_merge_is_at_stake(
    engine: Engine, build: Build
) -> None:
    packets = stream(build, 4, 100)
    packets[1] = packets[1][:-1] + bytes((packets[1][-1] ^ 1,))
    hook = merged(engine, packets, udp=True)
    assert hook.data[:2] == packets[:2]
    assert hook.verdicts == ["OPENED", "BAD_CHECKSUM", "MERGED"]
    assert hook.given[1].checksum is UNKNOWN
    assert [part for packet in hook.given for part in packet.segments] == packets


@pytest.mark.parametrize("build", BUILDS)
def test_a_head_with_a_wrong_checksum_is_passed_on_when_it_is_challenged(
    engine: Engine, build: Build
) -> None:
    packets = stream(build, 3, 100)
    packets[0] = packets[0][:-1] + bytes((packets[0][-1] ^ 1,))
    hook = merged(engine, packets, udp=True)
    assert hook.verdicts == ["BAD_CHECKSUM", "MERGED"]
    assert hook.reasons[0] == "NOT_HELD"
    assert [part for packet in hook.given for part in packet.segments] == packets


@pytest.mark.parametrize("build", BUILDS)
def test_a_packet_that_nobody_challenges_is_not_verified(engine: Engine, build: Build) -> None:
    right, wrong = build(BODY), build(BODY, checksum=0x1234, sport=2)
    hook = merged(engine, [right, wrong], udp=True)
    assert hook.verdicts == ["OPENED", "OPENED"]
    assert [packet.checksum for packet in hook.given] == [UNKNOWN, UNKNOWN]


def test_a_challenge_that_fails_for_another_reason_verifies_nothing(engine: Engine) -> None:
    hook = merged(engine, [tcp4(b"abc", checksum=1), tcp4(b"def", seq=99, ident=1, checksum=1)])
    assert hook.verdicts == ["OPENED", "OPENED"]
    assert [packet.checksum for packet in hook.given] == [UNKNOWN, UNKNOWN]


def test_a_head_that_was_verified_stays_so_when_its_challenger_was_bad(engine: Engine) -> None:
    hook = merged(engine, [tcp4(b"abc"), tcp4(b"def", seq=4, ident=1, checksum=1)])
    assert hook.verdicts == ["OPENED", "BAD_CHECKSUM"]
    assert [packet.checksum for packet in hook.given] == [VERIFIED, UNKNOWN]


@pytest.mark.parametrize("build", BUILDS)
def test_trust_takes_every_checksum_as_verified(engine: Engine, build: Build) -> None:
    packets = stream(build, 3, 100)
    wrong = [packet[:-1] + bytes((packet[-1] ^ 1,)) for packet in packets]
    hook = merged(engine, wrong, udp=True, received_checksums="trust")
    assert hook.counts == [3]
    assert hook.given[0].segments == [fix_checksums(packet) for packet in wrong]
    lone = merged(engine, [build(b"x"), b"y"], udp=True, received_checksums="trust")
    assert lone.given[0].checksum is VERIFIED


@pytest.mark.parametrize(
    ("how", "meta", "merges"),
    [
        ("verify", {}, False),
        ("trust", {}, True),
        ("verify", {"checksum": VERIFIED}, True),
        ("verify", {"virtio": VirtioHeader(DATA_VALID)}, True),
        ("trust", {"checksum": UNKNOWN}, False),
        ("trust", {"checksum": VERIFIED}, True),
        ("trust", {"checksum": PARTIAL}, False),
        ("verify", {"checksum": PARTIAL}, False),
    ],
)
def test_a_packet_s_own_state_overrides_the_configuration(
    engine: Engine, how: str, meta: dict[str, Any], merges: bool
) -> None:
    wrong = [tcp4(b"abc", checksum=1), tcp4(b"def", seq=4, ident=1, checksum=1)]
    packets = [TrafficPacket(packet, **meta) for packet in wrong]
    hook = merged(engine, packets, received_checksums=how)
    assert hook.counts == ([2] if merges else [1, 1])


def test_packets_of_different_states_do_not_merge(engine: Engine) -> None:
    for first in ChecksumState:
        for second in ChecksumState:
            packets = [
                TrafficPacket(
                    tcp4(b"abc", seq=1 + 3 * place, ident=place, partial=state is PARTIAL),
                    checksum=state,
                )
                for place, state in enumerate((first, second))
            ]
            hook = merged(engine, packets)
            assert hook.counts == ([2] if first is second else [1, 1])
            assert hook.reasons[0] == ("BATCH_END" if first is second else "CHECKSUM_STATE")


def tuned(build: Build, wanted: int) -> bytes:
    """A packet whose canonical checksum is ``wanted``, by two bytes of its payload."""
    for value in range(65536):
        packet = build(value.to_bytes(2, "big") + b"body", ident=0)
        if field(packet) == wanted:
            return packet
    raise AssertionError("no payload has that sum")


def test_a_tcp_checksum_of_all_ones_is_not_canonical_and_passes(engine: Engine) -> None:
    right = tuned(tcp4, 0)
    other = right[:36] + b"\xff\xff" + right[38:]
    follower = tcp4(b"follow", seq=7, ident=1)
    assert merged(engine, [right, follower]).counts == [2]
    hook = merged(engine, [other, follower])
    assert hook.verdicts == ["BAD_CHECKSUM", "OPENED"]
    assert hook.data == [other, follower]


def test_a_udp_checksum_of_all_ones_is_the_canonical_form_of_zero(engine: Engine) -> None:
    right = tuned(udp4, 0xFFFF)
    follower = udp4(b"follow", ident=1)
    hook = merged(engine, [right, follower], udp=True)
    assert hook.counts == [2]
    assert hook.given[0].segments == [right, follower]


def test_the_ip_header_checksum_is_verified_under_trust_too(engine: Engine) -> None:
    packets = [tcp4(b"abc"), tcp4(b"def", seq=4, ident=1, header_checksum=0x1234)]
    hook = merged(engine, packets, received_checksums="trust")
    assert hook.verdicts == ["OPENED", "IP_CHECKSUM"]


@pytest.mark.parametrize("build", BUILDS)
def test_a_partial_checksum_must_be_the_pseudo_header_sum(engine: Engine, build: Build) -> None:
    def packets(*wrong: int) -> list[bytes | TrafficPacket]:
        return [
            TrafficPacket(
                build(
                    BODY[:100],
                    **({"seq": 1 + 100 * place} if build in (tcp4, tcp6) else {}),
                    **({"ident": place} if build in (tcp4, udp4) else {}),
                    **({"checksum": 0x1234} if place in wrong else {"partial": True}),
                ),
                checksum=PARTIAL,
            )
            for place in range(3)
        ]

    how: dict[str, Any] = {"udp": True, "delivered_checksums": "partial"}
    assert merged(engine, packets(), **how).counts == [3]
    assert merged(engine, packets(1), **how).verdicts == ["OPENED", "BAD_CHECKSUM", "OPENED"]
    assert merged(engine, packets(0), **how).verdicts == ["BAD_CHECKSUM", "MERGED"]


# --- delivered -----------------------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("received", [UNKNOWN, VERIFIED, PARTIAL])
@pytest.mark.parametrize("size", [99, 100, 1, 7])
def test_a_super_packet_has_the_checksum_that_was_asked_for(
    engine: Engine, build: Build, received: ChecksumState, size: int
) -> None:
    packets: list[bytes | TrafficPacket] = []
    for place in range(5):
        own: dict[str, Any] = {"seq": 1 + size * place} if build in (tcp4, tcp6) else {}
        own |= {"ident": place} if build in (tcp4, udp4) else {}
        data = build(BODY[place : place + size], partial=received is PARTIAL, **own)
        packets.append(TrafficPacket(data, checksum=received))
    complete = merged(engine, packets, udp=True).given
    partial = merged(engine, packets, udp=True, delivered_checksums="partial").given
    assert [packet.packets for packet in (*complete, *partial)] == [5, 5]
    assert_sound([complete[0].data])
    assert valid_to_dpkt(complete[0].data)
    assert (complete[0].checksum, partial[0].checksum) == (VERIFIED, PARTIAL)
    assert field(partial[0].data) == pseudo(partial[0].data)
    assert not complete[0].virtio.needs_csum
    assert partial[0].virtio.needs_csum
    whole = partial[0].virtio
    asked = VirtioHeader(NEEDS_CSUM, 0, 0, 0, whole.csum_start, whole.csum_offset)
    assert engine.complete_checksum(partial[0].data, asked) == complete[0].data


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("company", [0, 1], ids=["alone", "in company"])
def test_a_lone_partial_packet_is_completed_when_complete_is_asked(
    engine: Engine, build: Build, company: int
) -> None:
    data = build(BODY[:333], partial=True)
    start = 20 if build in (tcp4, udp4) else 40
    virtio = VirtioHeader(NEEDS_CSUM, 0, 0, 0, start, 16 if build in (tcp4, tcp6) else 6)
    for meta in ({"checksum": PARTIAL}, {"virtio": virtio}):
        slab = bytearray(data)
        hook = Recorder()
        batch = engine.Batch(slab)
        batch.add(0, len(slab), **meta)
        for _ in range(company):
            batch.append(b"other")
        engine.GroDispatcher(hook).dispatch(batch)
        assert hook.data[0] == fix_checksums(data)
        assert_sound(hook.data[:1])
        assert hook.given[0].checksum is VERIFIED
        assert hook.given[0].virtio == VirtioHeader()
        assert slab == data
        kept = merged(
            engine,
            [TrafficPacket(data, **meta), *[b"other"] * company],
            delivered_checksums="partial",
        ).given[0]
        assert (kept.data, kept.checksum, kept.virtio) == (data, PARTIAL, virtio)


@pytest.mark.parametrize("company", [0, 1], ids=["alone", "in company"])
@pytest.mark.parametrize(
    "virtio",
    [
        VirtioHeader(NEEDS_CSUM, 0, 0, 0, 30, 16),
        VirtioHeader(NEEDS_CSUM, 0, 0, 0, 20, 6),
        VirtioHeader(NEEDS_CSUM, 0, 0, 0, 9999, 16),
        VirtioHeader(NEEDS_CSUM, 5, 0, 3, 20, 16),
    ],
)
def test_a_packet_that_its_vnet_header_does_not_describe_is_not_completed(
    engine: Engine, virtio: VirtioHeader, company: int
) -> None:
    """Delivered unmodified: what the header says cannot be believed."""
    for body, verdict in ((b"payload", "BAD_VNET_HEADER"), (b"", "TCP_NO_PAYLOAD")):
        data = tcp4(body, partial=True)
        hook = merged(engine, [TrafficPacket(data, virtio=virtio), *[b"other"] * company])
        assert hook.data[0] == data
        assert hook.verdicts[0] == (verdict if company else "ALONE")
        assert hook.given[0].checksum is PARTIAL


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xff" * 40,
        tcp4(BODY, partial=True)[:200],
        tcp4(BODY, partial=True, mf=True),
        b.ipv4(bytes(30), protocol=1),
    ],
    ids=["empty", "noise", "cut off", "fragment", "icmp"],
)
def test_a_partial_packet_that_cannot_be_completed_stays_as_it_is(
    engine: Engine, packet: bytes
) -> None:
    for company in (0, 1):
        meta = TrafficPacket(packet, checksum=PARTIAL)
        hook = merged(engine, [meta, *[b"other"] * company])
        assert hook.data[0] == packet
        assert hook.given[0].checksum is PARTIAL


def test_padding_behind_a_partial_packet_is_not_summed(engine: Engine) -> None:
    frame = ethernet(udp4(b"x", partial=True)) + b"pad!"
    hook = merged(engine, [TrafficPacket(frame, checksum=PARTIAL), b"y"], link="ethernet")
    assert hook.data[0][-4:] == b"pad!"
    assert_sound([hook.data[0][:-4]], "ethernet")


def test_a_lone_packet_with_a_complete_checksum_is_never_touched(engine: Engine) -> None:
    for state in (None, UNKNOWN, VERIFIED):
        for delivered in ("complete", "partial"):
            data = tcp4(b"x", checksum=0x1234)
            packet = TrafficPacket(data, checksum=state)
            hook = merged(engine, [packet, b"y"], delivered_checksums=delivered)
            assert hook.data[0] == data


def test_segments_of_a_partial_super_packet_are_complete_unless_asked(engine: Engine) -> None:
    packets = stream(tcp4, 3)
    cut: list[list[bytes]] = []
    gro = engine.GroDispatcher(
        lambda given: cut.append(list(given[0].segments(checksums="partial"))),
        GroConfig(delivered_checksums="partial"),
    )
    gro.dispatch(batch_of(engine, packets))
    assert [field(part) for part in cut[0]] == [pseudo(part) for part in packets]
    assert [fix_checksums(part) for part in cut[0]] == packets
