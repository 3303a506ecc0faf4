"""Verifier: silent on what is right, and able to see each kind of fault."""

import io
import time
from collections.abc import Callable
from typing import Any

import pytest

from netstack_gro.capture import Record
from netstack_gro.config import ChecksumState, GroConfig, Link
from netstack_gro.virtio import VirtioHeader
from tests.builders import SYN, ethernet, ipv4, loop, null, sll2, tcp4, tcp6, udp4
from tests.captures import RAW, Shot, capture, segments
from tests.engines import Engine


class Fake:
    """A delivered packet of which a test may say anything."""

    def __init__(self, packet: Any, **changed: Any) -> None:
        self._packet = packet
        self._changed = changed

    def __bytes__(self) -> bytes:
        return bytes(self._changed.get("data", bytes(self._packet)))

    def __getattr__(self, name: str) -> Any:
        return self._changed[name] if name in self._changed else getattr(self._packet, name)

    def virtio_header(self) -> VirtioHeader:
        header: VirtioHeader = self._changed.get("header", self._packet.virtio_header())
        return header


Change = Callable[[list[Any]], list[Any]]


def faults(
    engine: Engine,
    packets: list[bytes],
    change: Change = list,
    *,
    link: Link = "ip",
) -> list[str]:
    """What the verifier says of one batch, when ``change`` was done to what the engine gave."""
    module = engine.module("dispatchers.offloads")
    verifier = engine.module("verify").Verifier()
    recogniser = module.Recogniser(link, 0, module.MssTable())
    records = []
    for number, data in enumerate(packets, 1):
        found = module.Offload(recogniser.examine(data, len(data)))
        record = Record(data, 0, len(data), 0, (), number)
        verifier.expect(record, found, link)
        records.append(record)
    delivered: list[Any] = []

    def hook(flush: list[Any]) -> None:
        delivered.extend(packet.detach() for packet in flush)

    config = GroConfig(udp=True, link=link)
    with engine.GroDispatcher(hook, config) as gro:
        gro.dispatch(packets)
    verifier.deliver(change(delivered))
    verifier.finish()
    assert verifier.ok == (not verifier.faults)
    return [str(fault) for fault in verifier.faults]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


MIXTURE = [
    *segments(3),
    tcp4(b"", flags=SYN, dport=443),
    *[udp4(bytes([number]) * 50) for number in range(4)],
    ipv4(bytes(64), protocol=17, mf=True),
    tcp6(b"six"),
    b"\x45",
    *segments(3, seq=301, ident=4),
]


def test_what_the_engine_delivers_is_right(engine: Engine) -> None:
    assert faults(engine, MIXTURE) == []
    assert faults(engine, [ethernet(packet) for packet in MIXTURE], link="ethernet") == []
    assert faults(engine, [sll2(packet) for packet in MIXTURE], link="sll2") == []


def test_equal_packets_are_told_apart_by_their_number(engine: Engine) -> None:
    repeated = segments(2) * 3
    assert faults(engine, repeated) == []


# --- each kind of fault --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "record", "field"),
    [
        (1, 1, "byte 1 (IPv4 TOS)"),
        (8, 3, "byte 8 (IPv4 TTL)"),
        (5, 2, "byte 5 (IPv4 ID)"),
        (35, 1, "byte 35 (TCP window)"),
        (27, 1, "byte 27 (TCP sequence number)"),
        (40, 1, "byte 40 (payload)"),
        (139, 1, "byte 139 (payload)"),
        (140, 2, "byte 40 (payload)"),
        (339, 3, "byte 139 (payload)"),
    ],
)
def test_a_flipped_bit_of_a_super_packet_is_found_with_record_and_field(
    engine: Engine, at: int, record: int, field: str
) -> None:
    found = faults(
        engine,
        segments(3),
        lambda packets: [Fake(packets[0], data=flipped(bytes(packets[0]), at))],
    )
    assert any(fault.startswith(f"record {record}: ") and field in fault for fault in found)


def test_a_flipped_bit_of_a_lone_packet_is_named_to_the_byte(engine: Engine) -> None:
    packet = udp4(b"hello")
    found = faults(engine, [packet], lambda packets: [Fake(packets[0], data=flipped(packet, 30))])
    assert found == ["record 1: byte 30 (payload) is 0x6d, in the file 0x6c"]


def test_a_flipped_port_makes_one_packet_too_many_and_one_too_few(engine: Engine) -> None:
    packet = udp4(b"hello")
    found = faults(engine, [packet], lambda packets: [Fake(packets[0], data=flipped(packet, 20))])
    assert len(found) == 2
    assert found[0].startswith("a packet: is not in the file: 33 bytes, 45 00")
    assert found[1] == "record 1: was not delivered"


def test_a_wrong_checksum_of_the_super_packet_itself_is_found(engine: Engine) -> None:
    # Cutting computes the pieces' checksums anew, so they would not tell.
    for at, name in ((36, "transport"), (10, "IPv4 header")):
        found = faults(
            engine,
            segments(3),
            lambda packets, at=at: [Fake(packets[0], data=flipped(bytes(packets[0]), at))],  # type: ignore[misc]
        )
        assert found == [f"record 1: its super-packet has a wrong {name} checksum"]


def test_swapped_packets_of_a_flow_are_found(engine: Engine) -> None:
    packets = segments(1) + segments(1, seq=5000)
    found = faults(engine, packets, lambda delivered: delivered[::-1])
    assert "record 1: was delivered after record 2 of its flow" in found


def test_swapped_packets_of_two_flows_are_found(engine: Engine) -> None:
    packets = segments(1) + segments(1, sport=7)
    found = faults(engine, packets, lambda delivered: delivered[::-1])
    assert found == ["record 1: was delivered after record 2"]


def test_swapped_packets_without_a_flow_are_found(engine: Engine) -> None:
    packets = [b"E", ipv4(b"x", protocol=1)]
    found = faults(engine, packets, lambda delivered: delivered[::-1])
    assert found == ["record 1: was delivered after record 2"]


def test_a_lost_packet_is_found(engine: Engine) -> None:
    packets = segments(1) + segments(2, seq=5000) + segments(1, seq=9000)
    for lost, numbers in ((0, [1]), (1, [2, 3]), (2, [4])):
        found = faults(
            engine,
            packets,
            lambda delivered, lost=lost: delivered[:lost] + delivered[lost + 1 :],  # type: ignore[misc]
        )
        assert found == [f"record {number}: was not delivered" for number in numbers]


def test_a_batch_that_is_never_delivered_is_found(engine: Engine) -> None:
    found = faults(engine, segments(2), lambda delivered: [])
    assert found == ["record 1: was not delivered", "record 2: was not delivered"]


def test_a_packet_held_back_to_the_next_flush_is_found(engine: Engine) -> None:
    verifier = engine.module("verify").Verifier()
    offload = engine.module("dispatchers.offloads").Offload
    packets = [tcp4(b"one", dport=1), tcp4(b"two", dport=2)]
    delivered: list[Any] = []
    with engine.GroDispatcher(lambda flush: delivered.extend(p.detach() for p in flush)) as gro:
        gro.dispatch(packets)
    for number, packet in enumerate(packets, 1):
        verifier.expect(Record(packet, 0, len(packet), 0, (), number), offload(0), "ip")
    verifier.deliver(delivered[:1])
    assert [str(fault) for fault in verifier.faults] == ["record 2: was not delivered"]


def test_a_packet_delivered_twice_is_found(engine: Engine) -> None:
    packets = segments(1) + segments(1, seq=5000)
    found = faults(engine, packets, lambda delivered: [delivered[0], *delivered])
    assert found == ["record 1: was delivered twice"]
    found = faults(engine, segments(3), lambda delivered: delivered * 2)
    assert found == [f"record {number}: was delivered twice" for number in (1, 2, 3)]


def test_a_wrong_boundary_is_found(engine: Engine) -> None:
    def change(delivered: list[Any]) -> list[Any]:
        header = delivered[0].virtio_header()
        wrong = VirtioHeader(
            header.flags, header.gso_type, header.hdr_len, 99, header.csum_start, header.csum_offset
        )
        return [Fake(delivered[0], header=wrong)]

    found = faults(engine, segments(3), change)
    assert found[0].startswith("record 1: 139 bytes, in the file 140; byte 3 (IPv4 total length)")
    assert any("cut into 4 packets, but it counts 3" in fault for fault in found)


def test_a_wrong_count_of_inputs_is_found(engine: Engine) -> None:
    found = faults(engine, segments(3), lambda delivered: [Fake(delivered[0], packets=4)])
    assert found == ["record 1: cut into 3 packets, but it counts 4"]


def test_a_wrong_id_mode_is_found(engine: Engine) -> None:
    fixed = engine.IpIdMode.FIXED
    found = faults(engine, segments(2), lambda delivered: [Fake(delivered[0], ip_id_mode=fixed)])
    assert found[0].startswith("record 2: byte 5 (IPv4 ID) is 0x01, in the file 0x02; ")


def test_a_super_packet_that_cannot_be_cut_is_found(engine: Engine) -> None:
    def change(delivered: list[Any]) -> list[Any]:
        return [Fake(delivered[0], header=VirtioHeader(gso_type=1, gso_size=0))]

    found = faults(engine, segments(2), change)
    assert found[0].startswith("record 1: its super-packet cannot be cut: ")


def test_a_merge_across_a_fragment_is_found(engine: Engine) -> None:
    fragment = ipv4(bytes(64), protocol=6, fragment_offset=100)
    first, second = segments(2)
    merged: list[Any] = []
    with engine.GroDispatcher(lambda flush: merged.extend(p.detach() for p in flush)) as gro:
        gro.dispatch([first, second])
    found = faults(engine, [first, fragment, second], lambda delivered: [merged[0], delivered[1]])
    assert found == ["record 1: merged with record 3 across record 2, a fragment"]


# --- checksums that were to be filled in ---------------------------------------------------------


def replayed(engine: Engine, packets: list[bytes], change: Change = list) -> list[str]:
    """What the verifier says of a capture that goes through the dispatcher."""
    verifier = engine.module("verify").Verifier()

    def hook(flush: list[Any]) -> None:
        for packet in flush:
            packet.detach()
        dispatcher.scrub()
        verifier.deliver(change(flush))

    make = engine.module("dispatchers").CaptureDispatcher
    with make(
        io.BytesIO(capture(packets)),
        hook,
        observer=lambda record, found: verifier.expect(record, found, "ip"),
        scrubbable=True,
    ) as dispatcher:
        dispatcher.run()
    verifier.finish()
    return [str(fault) for fault in verifier.faults]


EARLY = [
    *segments(3, partial=True),
    *segments(2, sport=7, header_checksum=0),
    *segments(2, sport=8, header_checksum=0, partial=True),
    udp4(b"lone", partial=True),
    tcp6(b"lone", partial=True),
    tcp4(b"lone", flags=SYN, header_checksum=0),
    tcp4(bytes(2000), partial=True, total_length=0),
]


def test_what_the_recogniser_did_is_undone_before_the_comparison(engine: Engine) -> None:
    assert replayed(engine, EARLY) == []


@pytest.mark.parametrize("place", range(7))
def test_a_flipped_payload_behind_a_partial_checksum_is_found(engine: Engine, place: int) -> None:
    def change(delivered: list[Any]) -> list[Any]:
        assert len(delivered) == 7
        data = bytes(delivered[place])
        delivered[place] = Fake(delivered[place], data=flipped(data, len(data) - 1))
        return delivered

    assert replayed(engine, EARLY, change)


def test_a_checksum_that_was_not_filled_in_is_found(engine: Engine) -> None:
    for packet in (udp4(b"lone", partial=True), tcp4(b"lone", header_checksum=0)):
        found = replayed(
            engine,
            [packet, tcp4(b"", flags=SYN)],
            lambda delivered, packet=packet: [  # type: ignore[misc]
                Fake(delivered[0], data=packet),
                delivered[1],
            ],
        )
        assert packet[9] == 6 or "(UDP checksum)" in found[0]


def test_faults_are_described_up_to_a_limit(engine: Engine) -> None:
    limit = engine.module("verify").FAULT_LIMIT
    found = faults(engine, segments(2 * limit, seq=1), lambda delivered: [])
    assert len(found) == limit


def test_the_last_packets_of_other_interfaces_are_expected_apart(engine: Engine) -> None:
    verifier = engine.module("verify").Verifier()
    make = engine.module("dispatchers").CaptureDispatcher
    shots = [Shot(packet, 0, number % 2) for number, packet in enumerate(segments(4))]

    def hook(flush: list[Any]) -> None:
        for packet in flush:
            packet.detach()
        if flush[0].interface == 0:
            verifier.deliver(flush)

    with make(
        io.BytesIO(capture(shots, [RAW, RAW])),
        hook,
        observer=lambda record, found: verifier.expect(record, found, "ip"),
    ) as dispatcher:
        dispatcher.run()
    assert verifier.ok
    verifier.finish()
    assert [fault.record for fault in verifier.faults] == [2, 4]


def test_a_partial_checksum_that_a_packet_says_was_left_is_no_fault(engine: Engine) -> None:
    packet = udp4(b"lone", partial=True)
    for state, wrong in ((ChecksumState.PARTIAL, False), (ChecksumState.VERIFIED, True)):
        found = replayed(
            engine,
            [packet, tcp4(b"", flags=SYN)],
            lambda delivered, state=state: [  # type: ignore[misc]
                Fake(delivered[0], data=packet, checksum=state, header=VirtioHeader()),
                delivered[1],
            ],
        )
        assert bool(found) == wrong


def test_a_partial_checksum_behind_a_header_checksum_of_0xffff_is_no_fault(
    engine: Engine,
) -> None:
    packets = (udp4(b"lone", partial=True, ident=ident) for ident in range(65536))
    right = next(packet for packet in packets if packet[10:12] == b"\0\0")
    wrong = right[:10] + b"\xff\xff" + right[12:]
    assert replayed(engine, [wrong, *segments(2), right]) == []


def test_a_loopback_family_in_the_wrong_byte_order_is_no_fault(engine: Engine) -> None:
    # Not IP to the engine: were it IP to the verifier, these fragments would be barriers.
    packets = [null(packet) for packet in segments(3)]
    fragments = [null(ipv4(bytes(64), protocol=6, mf=True))]
    assert faults(engine, packets + fragments, link="loop") == []
    wrong = null(ipv4(bytes(64), protocol=6, mf=True))
    mixed = [loop(packet) for packet in segments(2)]
    assert faults(engine, [mixed[0], wrong, mixed[1]], link="loop") == []


def test_fragments_before_and_after_a_super_packet_are_not_across_it(engine: Engine) -> None:
    fragment = ipv4(bytes(64), protocol=6, mf=True)
    other = ipv4(bytes(64), protocol=6, mf=True, source="192.0.2.77")
    first, second = segments(2)
    assert faults(engine, [fragment, first, other, second, fragment]) == []


def test_many_fragments_are_checked_in_time_that_grows_with_their_number(engine: Engine) -> None:
    module = engine.module("verify")
    offload = engine.module("dispatchers.offloads").Offload
    (template,) = delivered_by(engine, [udp4(b"x")])

    def seconds(make: Callable[[int], bytes]) -> float:
        packets = [make(number) for number in range(6000)]
        verifier = module.Verifier()
        for number, data in enumerate(packets, 1):
            verifier.expect(Record(data, 0, len(data), 0, (), number), offload(0), "ip")
        start = time.process_time()
        verifier.deliver([Fake(template, data=data) for data in packets])
        assert verifier.ok, verifier.faults
        return time.process_time() - start

    whole = seconds(lambda number: ipv4(b"12345678", protocol=1, ident=number))
    fragments = seconds(lambda number: ipv4(b"12345678", protocol=6, ident=number, mf=True))
    assert fragments < 5 * whole


def delivered_by(engine: Engine, packets: list[bytes]) -> list[Any]:
    delivered: list[Any] = []
    with engine.GroDispatcher(
        lambda flush: delivered.extend(packet.detach() for packet in flush)
    ) as gro:
        gro.dispatch(packets)
    return delivered
