"""Packet: what it says of itself, and its bytes in every form."""

import array
from collections.abc import Callable
from typing import Any

import pytest

from netstack_gro.config import ChecksumState, GroConfig, IpIdMode
from netstack_gro.verdicts import CloseReason, Verdict
from netstack_gro.virtio import DATA_VALID, GSO_ECN, NEEDS_CSUM, GsoType, VirtioHeader
from tests import builders as b
from tests.builders import LINKS, TrafficPacket, ethernet, tcp4, tcp6, udp4, udp6
from tests.engines import Engine
from tests.flushes import batch_of, merged, numbers
from tests.packet_kinds import BODY, KINDS, SUPER, stream, within_hook
from tests.traffic import generate


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[list[bytes | TrafficPacket], dict[str, Any]]:
    return KINDS[request.param]


# --- what it says --------------------------------------------------------------------------------


def test_a_super_packet_says_what_it_is_made_of(engine: Engine) -> None:
    packets = [
        TrafficPacket(packet, timestamp_ns=100 + place, interface=4, vlan=0x6003, vlan_tpid=0x88A8)
        for place, packet in enumerate(stream(tcp4, 3))
    ]
    (said,) = within_hook(engine, packets, numbers)
    said.pop("repr")
    said.pop("fits")
    assert said == {
        "packets": 3,
        "gso_type": GsoType.TCPV4,
        "gso_size": 100,
        "gso_segs": 3,
        "ip_id_mode": IpIdMode.INCREMENT,
        "checksum": ChecksumState.VERIFIED,
        "verdict": Verdict.MERGED,
        "closed_by": CloseReason.SHORT,
        "timestamp_ns": 100,
        "interface": 4,
        "vlan": 0x6003,
        "vlan_tpid": 0x88A8,
        "link": "ip",
        "wire_length": 310,
        "length": 310,
        "timestamps": (100, 101, 102),
        "virtio": VirtioHeader(0, GsoType.TCPV4, 40, 100, 20, 16),
    }


def test_a_packet_passed_through_says_that_it_is_nothing_special(engine: Engine) -> None:
    said, _ = within_hook(engine, [tcp4(b""), b"y"], numbers)
    said.pop("repr")
    said.pop("fits")
    assert said == {
        "packets": 1,
        "gso_type": GsoType.NONE,
        "gso_size": 0,
        "gso_segs": 1,
        "ip_id_mode": IpIdMode.NONE,
        "checksum": ChecksumState.UNKNOWN,
        "verdict": Verdict.TCP_NO_PAYLOAD,
        "closed_by": CloseReason.NOT_HELD,
        "timestamp_ns": 0,
        "interface": 0,
        "vlan": None,
        "vlan_tpid": 0,
        "link": "ip",
        "wire_length": 40,
        "length": 40,
        "timestamps": (0,),
        "virtio": VirtioHeader(),
    }


def test_attributes_are_of_the_published_types(
    engine: Engine, kind: tuple[Any, dict[str, Any]]
) -> None:
    types = {
        "gso_type": GsoType,
        "ip_id_mode": IpIdMode,
        "checksum": ChecksumState,
        "verdict": Verdict,
        "closed_by": CloseReason,
        "virtio": VirtioHeader,
        "timestamps": tuple,
        "packets": int,
        "gso_size": int,
        "gso_segs": int,
        "wire_length": int,
        "timestamp_ns": int,
        "vlan_tpid": int,
    }
    packets, how = kind
    for said in within_hook(engine, packets, numbers, **how):
        assert {name: type(said[name]) for name in types} == types
        assert said["timestamp_ns"] == said["timestamps"][0]
        assert len(said["timestamps"]) == said["packets"]
        assert "Packet" in said["repr"]


@pytest.mark.parametrize("link", LINKS)
def test_a_packet_knows_its_link(engine: Engine, link: str) -> None:
    packet = b.FRAMES[link](tcp6(b"x") if link == "ipv6" else tcp4(b"x"))
    assert within_hook(engine, [packet], lambda p: p.link, link=link) == [link]


OFFSETS = {"ethernet": 14, "null": 4, "loop": 4, "sll": 16, "sll2": 20}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("build", [tcp4, tcp6, udp4, udp6])
def test_a_vnet_header_counts_from_the_link_header_on(
    engine: Engine, link: str, build: Callable[..., bytes]
) -> None:
    version = 6 if build in (tcp6, udp6) else 4
    if link in ("ipv4", "ipv6") and link != f"ipv{version}":
        return
    frames = [b.FRAMES[link](packet) for packet in stream(build, 3)]
    (given,) = merged(engine, frames, link=link, udp=True, delivered_checksums="partial").given
    tcp = build in (tcp4, tcp6)
    transport = OFFSETS.get(link, 0) + (20 if version == 4 else 40)
    assert given.virtio == VirtioHeader(
        NEEDS_CSUM,
        (GsoType.TCPV4 if version == 4 else GsoType.TCPV6) if tcp else GsoType.UDP_L4,
        transport + (20 if tcp else 8),
        100,
        transport,
        16 if tcp else 6,
    )
    assert given.segments == frames


@pytest.mark.parametrize(
    ("virtio", "given"),
    [
        (VirtioHeader(), VirtioHeader()),
        (VirtioHeader(DATA_VALID), VirtioHeader()),
        (VirtioHeader(NEEDS_CSUM, 0, 0, 0, 20, 16), VirtioHeader(NEEDS_CSUM, 0, 0, 0, 20, 16)),
        (
            VirtioHeader(NEEDS_CSUM, GsoType.TCPV4 | GSO_ECN, 999, 100, 20, 16),
            VirtioHeader(NEEDS_CSUM, GsoType.TCPV4 | GSO_ECN, 40, 100, 20, 16),
        ),
        (
            VirtioHeader(DATA_VALID, GsoType.TCPV4, 0, 100),
            VirtioHeader(0, GsoType.TCPV4, 40, 100, 20, 16),
        ),
        (VirtioHeader(0, GsoType.UDP_L4, 0, 100), VirtioHeader()),
    ],
)
@pytest.mark.parametrize("company", [0, 1], ids=["alone", "in company"])
def test_a_vnet_header_that_came_in_goes_out_mended(
    engine: Engine, virtio: VirtioHeader, given: VirtioHeader, company: int
) -> None:
    """DATA_VALID is never produced, a wrong hdr_len is put right, one that does not fit is gone."""
    packet = TrafficPacket(tcp4(BODY, partial=virtio.needs_csum), virtio=virtio)
    hook = merged(engine, [packet, *[b"y"] * company], delivered_checksums="partial")
    assert hook.given[0].virtio == given
    assert hook.given[0].data == packet.data


def test_the_other_numbers_of_a_super_packet_that_came_as_one(engine: Engine) -> None:
    for ecn in (0, GSO_ECN):
        virtio = VirtioHeader(NEEDS_CSUM, GsoType.TCPV4 | ecn, 40, 100, 20, 16)
        packet = TrafficPacket(tcp4(BODY, partial=True), virtio=virtio)
        (given, _) = merged(engine, [packet, b"y"]).given
        assert given.verdict is Verdict.ALREADY_AGGREGATED
        assert (given.packets, given.gso_type, given.gso_size) == (1, GsoType.TCPV4, 100)
        assert (given.gso_segs, given.ip_id_mode) == (11, IpIdMode.INCREMENT)
        assert len(given.segments) == 11


def test_a_super_packet_of_unknown_size_says_so(engine: Engine) -> None:
    for build, family in ((tcp4, GsoType.TCPV4), (tcp6, GsoType.TCPV6), (udp6, GsoType.UDP_L4)):
        packet = TrafficPacket(build(BODY), aggregated=True)
        given, _ = merged(engine, [packet, b"y"]).given
        assert given.verdict is Verdict.ALREADY_AGGREGATED
        assert (given.gso_type, given.gso_size, given.gso_segs) == (family, 0, 0)
        assert (given.virtio, given.segments) == (VirtioHeader(), [packet.data])


@pytest.mark.parametrize(
    ("packets", "how", "largest"),
    [
        (stream(tcp4, 3), {}, 140),
        (stream(udp6, 3), {"udp": True}, 148),
        ([ethernet(packet) for packet in stream(tcp4, 3)], {"link": "ethernet"}, 140),
        ([tcp4(b"")], {}, 40),
        ([b"\xff" * 33], {}, 33),
        ([TrafficPacket(tcp4(BODY, partial=True), virtio=SUPER)], {}, 140),
        ([TrafficPacket(tcp4(BODY), aggregated=True)], {}, 1064),
        ([ethernet(tcp4(b"x")) + bytes(5)], {"link": "ethernet"}, 41),
    ],
)
def test_a_packet_fits_when_each_wire_packet_s_ip_bytes_do(
    engine: Engine, packets: Any, how: dict[str, Any], largest: int
) -> None:
    seen = within_hook(engine, packets, lambda p: (p.fits(largest), p.fits(largest - 1)), **how)
    assert seen == [(True, False)]


# --- bytes ---------------------------------------------------------------------------------------


def test_all_forms_of_the_bytes_agree(engine: Engine, kind: tuple[Any, dict[str, Any]]) -> None:
    packets, how = kind

    def forms(packet: Any) -> None:
        data = bytes(packet)
        assert len(packet) == len(data)
        pieces = packet.buffers()
        assert b"".join(pieces) == data
        assert all(type(piece) is memoryview and piece.readonly for piece in pieces)
        room = bytearray(b"?" * (len(data) + 7))
        assert packet.copy_into(room, 3) == len(data)
        assert room == b"???" + data + b"????"
        assert packet.copy_into(memoryview(room)[: len(data)]) == len(data)
        header = packet.header
        assert data.startswith(bytes(header))
        assert b"".join(packet.buffers()) == bytes(packet) == data

    assert within_hook(engine, packets, forms, **how)


@pytest.mark.parametrize("count", [2, 3, 17])
def test_a_super_packet_is_a_header_and_a_piece_for_each_segment(
    engine: Engine, count: int
) -> None:
    (lengths,) = within_hook(
        engine, stream(tcp4, count), lambda packet: [len(piece) for piece in packet.buffers()]
    )
    assert lengths == [40] + [100] * (count - 1) + [70]


def test_a_lone_packet_is_one_piece_or_two_once_its_header_is_its_own(engine: Engine) -> None:
    def pieces(packet: Any) -> list[list[int]]:
        before = [len(piece) for piece in packet.buffers()]
        assert packet.header
        return [before, [len(piece) for piece in packet.buffers()]]

    assert within_hook(engine, [tcp4(b"abcde")], pieces) == [[[45], [40, 5]]]


def test_pieces_show_the_input_s_own_memory(engine: Engine) -> None:
    packets = stream(tcp4, 2)
    slab = bytearray(b"".join(packets))
    batch = engine.Batch(slab)
    batch.add(0, 140)
    batch.add(140, 110)
    seen = []

    def hook(given: list[Any]) -> None:
        header, first, second = given[0].buffers()
        slab[40] ^= 0xFF
        slab[249] ^= 0xFF
        seen.append((len(header), first[0], second[-1]))

    engine.GroDispatcher(hook).dispatch(batch)
    assert seen == [(40, packets[0][40] ^ 0xFF, packets[1][-1] ^ 0xFF)]


@pytest.mark.parametrize("offset", [-1, 1, 310, 1 << 70])
def test_a_copy_that_does_not_fit_is_refused_and_changes_nothing(
    engine: Engine, offset: int
) -> None:
    room = bytearray(310)

    def act(packet: Any) -> None:
        with pytest.raises(ValueError, match="310 bytes at offset"):
            packet.copy_into(room, offset)
        with pytest.raises(ValueError, match="309"):
            packet.copy_into(bytearray(309))
        assert room == bytes(310)
        assert packet.copy_into(room, 0) == packet.copy_into(room, offset=0) == 310

    within_hook(engine, stream(tcp4, 3), act)


@pytest.mark.parametrize(
    "wrong",
    [
        bytes(999),
        memoryview(bytes(999)),
        memoryview(bytearray(999)).toreadonly(),
        memoryview(bytearray(999))[::2],
        "text",
        None,
    ],
)
def test_a_copy_goes_to_writable_contiguous_memory_only(engine: Engine, wrong: Any) -> None:
    def act(packet: Any) -> None:
        with pytest.raises(TypeError):
            packet.copy_into(wrong)

    within_hook(engine, stream(tcp4, 3), act)


def test_a_copy_counts_bytes_whatever_the_buffer_holds(engine: Engine) -> None:
    room = array.array("I", [0]) * 100

    def act(packet: Any) -> None:
        assert packet.copy_into(room, 90) == 310
        assert room.tobytes() == bytes(90) + bytes(packet)
        with pytest.raises(ValueError, match="offset"):
            packet.copy_into(room, 91)

    within_hook(engine, stream(tcp4, 3), act)


def test_a_copy_never_leaves_its_buffer_whatever_the_offset_pretends(engine: Engine) -> None:
    class Boaster(int):
        """A large number that passes for a small one."""

        def __ge__(self, other: int) -> bool:
            return True

        def __le__(self, other: int) -> bool:
            return True

    room = bytearray(1000)

    def act(packet: Any) -> None:
        with pytest.raises((TypeError, ValueError, IndexError)):
            packet.copy_into(memoryview(room)[:310], Boaster(100))
        assert room == bytes(1000)

    within_hook(engine, stream(tcp4, 3), act)


@pytest.mark.parametrize("link", LINKS)
def test_cutting_what_was_delivered_never_raises_whatever_came_in(
    engine: Engine, link: str
) -> None:
    failures: list[tuple[Any, ...]] = []

    def hook(given: list[Any]) -> None:
        for packet in given:
            try:
                count = len(list(packet.segments()))
            except ValueError as error:
                failures.append((packet.verdict.name, packet.virtio_header(), str(error)))
            else:
                assert count == packet.gso_segs or packet.gso_segs == 0

    for delivered in ("complete", "partial"):
        how: dict[str, Any] = {"link": link, "udp": True, "delivered_checksums": delivered}
        gro = engine.GroDispatcher(hook, GroConfig(**how))
        for batch in generate(5, 1000, link=link, fault_rate=0.4):
            gro.dispatch(batch_of(engine, batch))
    assert failures == []
