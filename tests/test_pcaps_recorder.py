"""The recorder of `pcaps/`: its own count of a frame, its faults, and that it leaves no trace."""

import dataclasses
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether

from pcaps.recorder import facts
from pcaps.recorder.cable import Faults, Marking, Tagging, Untagging
from pcaps.recorder.dissect import dissect
from tests.requirements import lacks_root, lacks_tun, require

pytestmark = pytest.mark.engineless

if TYPE_CHECKING:
    from pcaps.recorder.scenarios import Scenario

ETHERNET = 1
MACS: dict[str, Any] = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}


def data_segment(number: int, *, tos: int = 0, version: int = 4) -> bytes:
    network = (
        IP(src="192.0.2.1", dst="192.0.2.2", tos=tos)
        if version == 4
        else IPv6(src="2001:db8::1", dst="2001:db8::2", tc=tos)
    )
    return bytes(Ether(**MACS) / network / TCP(flags="A", seq=number * 100) / (b"x" * 100))


@pytest.mark.parametrize("version", [4, 6])
def test_a_frame_made_by_scapy_is_taken_apart_as_it_was_made(version: int) -> None:
    layers = dissect(ETHERNET, data_segment(7, tos=2, version=version))
    assert (layers.version, layers.protocol, layers.ecn) == (version, "tcp", 2)
    assert (layers.sequence, layers.payload_length, layers.checksum) == (700, 100, "complete")


@pytest.mark.parametrize("version", [4, 6])
def test_damaged_absent_and_pending_checksums_are_told_apart(version: int) -> None:
    whole = bytearray(data_segment(1, version=version))
    at = len(whole) - 100 - 4
    whole[at] ^= 1
    assert dissect(ETHERNET, bytes(whole)).checksum == "bad"
    addresses = whole[26:34] if version == 4 else whole[22:54]
    pseudo = sum(struct.unpack(f"!{len(addresses) // 2}H", addresses)) + 6 + 120
    while pseudo >> 16:
        pseudo = (pseudo & 0xFFFF) + (pseudo >> 16)
    struct.pack_into("!H", whole, at, pseudo)
    assert dissect(ETHERNET, bytes(whole)).checksum == "partial"
    datagram = bytes(Ether(**MACS) / IP() / UDP(chksum=0) / b"x")
    assert dissect(ETHERNET, datagram).checksum == "none"


def test_a_run_ends_at_a_gap_a_longer_segment_a_shorter_one_and_psh() -> None:
    def run(*segments: tuple[int, int, str]) -> int:
        frames = [
            bytes(
                Ether(**MACS)
                / IP(src="192.0.2.1", dst="192.0.2.2")
                / TCP(flags=flags, seq=sequence)
                / (b"x" * size)
            )
            for sequence, size, flags in segments
        ]
        return facts.count((0, ETHERNET, frame) for frame in frames)["longest_run"]

    assert run((0, 100, "A"), (100, 100, "A"), (200, 50, "A")) == 3
    assert run((0, 100, "A"), (101, 100, "A")) == 1
    assert run((0, 100, "A"), (100, 101, "A")) == 1
    assert run((0, 100, "A"), (100, 50, "A"), (150, 50, "A")) == 2
    assert run((0, 100, "PA"), (100, 100, "A"), (200, 100, "PA")) == 2


def test_late_and_repeated_segments_are_counted_apart() -> None:
    frames = [data_segment(number) for number in (0, 2, 1, 2, 3)]
    counts = facts.count((0, ETHERNET, frame) for frame in frames)
    assert (counts["late"], counts["repeated"], counts["data"]) == (1, 1, 5)


def test_a_broken_promise_names_the_fact_and_what_was_found() -> None:
    facts.check({"ce": 3}, [facts.at_least("ce", 3), facts.exactly("rst", 0)])
    with pytest.raises(facts.BrokenPromiseError, match=r"ce >= 4, found 3"):
        facts.check({"ce": 3}, [facts.at_least("ce", 4)])
    with pytest.raises(facts.BrokenPromiseError, match=r"0 <= late <= 0, found 1"):
        facts.check({"late": 1}, [facts.exactly("late", 0)])


def test_faults_lose_only_what_they_count_as_dropped_and_add_only_duplicates() -> None:
    frames = [data_segment(number) for number in range(600)]
    faults = Faults(1, drop=0.1, swap=0.1, duplicate=0.1)
    out = [carried for frame in frames for carried in faults.carry(frame)]
    out += faults.idle()
    counts = faults.counts()
    assert min(counts.values()) > 30
    assert len(out) == len(frames) - counts["dropped"] + counts["duplicated"]
    assert len(set(out)) == len(frames) - counts["dropped"]
    places = {frame: place for place, frame in enumerate(frames)}
    order = [places[frame] for frame in out]
    assert order != sorted(order)
    # A swapped frame falls back by three at the most.
    assert all(
        number > max(order[max(0, at - 50) : at], default=0) - 6 for at, number in enumerate(order)
    )


def test_faults_spare_frames_without_tcp_payload() -> None:
    faults = Faults(1, drop=1.0)
    acknowledgement = bytes(Ether(**MACS) / IP() / TCP(flags="A"))
    assert list(faults.carry(acknowledgement)) == [acknowledgement]
    assert list(faults.carry(data_segment(0))) == []


@pytest.mark.parametrize("version", [4, 6])
def test_a_mark_sets_congestion_experienced_and_leaves_valid_checksums(version: int) -> None:
    marking = Marking(1, mark=1.0)
    (marked,) = marking.carry(data_segment(0, tos=2, version=version))
    assert marked == data_segment(0, tos=3, version=version)
    (spared,) = marking.carry(data_segment(1, version=version))
    assert spared == data_segment(1, version=version)
    assert marking.marked == 1


def test_tags_go_in_as_scapy_writes_them_and_out_again() -> None:
    frame = data_segment(0)
    (tagged,) = Tagging((0x88A8, 100), (0x8100, 5)).carry(frame)
    expected = Ether(**MACS, type=0x88A8) / Dot1Q(vlan=100, type=0x8100) / Dot1Q(vlan=5)
    assert tagged == bytes(expected / Ether(frame).payload)
    assert list(Untagging(2).carry(tagged)) == [frame]


# --- with the kernel -----------------------------------------------------------------------------


def one(file: str) -> "Scenario":
    """Needs pyroute2, so not before the test has asked for root."""
    from pcaps.recorder.scenarios import SCENARIOS

    return next(scenario for scenario in SCENARIOS if scenario.file == file)


def namespaces() -> set[str]:
    folder = Path("/var/run/netns")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_a_recording_holds_what_it_promises_and_leaves_no_namespace_behind() -> None:
    require(lacks_root())
    before = namespaces()
    recording = one("tcp-request-response.pcap").record()
    assert recording.facts()["data"] >= 240
    assert namespaces() == before


def test_a_recording_through_tun_devices_begins_with_an_ip_header() -> None:
    require(lacks_tun())
    recording = one("tun-raw-ip.pcap").record()
    assert {frame.data[0] >> 4 for _interface, frame in recording.frames} == {4, 6}


def test_a_recording_that_breaks_its_promise_raises_and_leaves_no_namespace_behind() -> None:
    require(lacks_root())
    before = namespaces()
    scenario = one("tcp-request-response.pcap")
    broken = dataclasses.replace(scenario, promises=(facts.at_least("ce", 1),))
    with pytest.raises(facts.BrokenPromiseError, match="ce >= 1, found 0"):
        broken.record()
    assert namespaces() == before
