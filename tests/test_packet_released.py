"""What is left of a packet after its hook returned, and what misuse of one gets."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from tests.builders import TrafficPacket, tcp4, tcp6
from tests.engines import Engine
from tests.flushes import NUMBERS, batch_of, numbers
from tests.packet_kinds import BODY, KINDS, SUPER, stream, within_hook


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[list[bytes | TrafficPacket], dict[str, Any]]:
    return KINDS[request.param]


# --- after the hook ------------------------------------------------------------------------------

BYTE_ACCESS: dict[str, Callable[[Any], Any]] = {
    "bytes": bytes,
    "buffers": lambda packet: packet.buffers(),
    "copy_into": lambda packet: packet.copy_into(bytearray(9999)),
    "segments": lambda packet: packet.segments(),
    "detach": lambda packet: packet.detach(),
    "header": lambda packet: packet.header,
}


def test_a_released_packet_keeps_its_numbers_and_nothing_else(
    engine: Engine, kind: tuple[Any, dict[str, Any]]
) -> None:
    packets, how = kind
    kept: list[tuple[Any, dict[str, Any]]] = []
    gro = engine.GroDispatcher(
        lambda given: kept.extend((packet, numbers(packet)) for packet in given), GroConfig(**how)
    )
    batch = batch_of(engine, packets)
    gro.dispatch(batch)
    for again in range(2):
        for packet, said in kept:
            assert numbers(packet) == said
            for access in BYTE_ACCESS.values():
                with pytest.raises(ValueError, match="released"):
                    access(packet)
        if not again:
            first = list(kept)
            gro.dispatch([b"other", b"packets", *stream(tcp4, 5, sport=2)])
            kept[:] = first


def test_a_packet_that_was_not_asked_anything_answers_after_the_hook_too(engine: Engine) -> None:
    kept: list[Any] = []
    asked: list[dict[str, Any]] = []
    aggregate = TrafficPacket(tcp4(BODY, partial=True), virtio=SUPER)
    packets: list[bytes | TrafficPacket] = [*stream(tcp4, 3), tcp6(b"x"), aggregate]
    batch = batch_of(engine, packets)
    engine.GroDispatcher(lambda given: asked.extend(map(numbers, given))).dispatch(batch)
    gro = engine.GroDispatcher(kept.extend)
    gro.dispatch(batch)
    batch.clear()
    gro.dispatch([b"1", b"2", b"3"])
    assert [numbers(packet) for packet in kept[:3]] == asked


def test_a_released_packet_is_another_object_than_any_later_one(engine: Engine) -> None:
    kept: list[Any] = []
    gro = engine.GroDispatcher(kept.extend)
    for _ in range(5):
        gro.dispatch(stream(tcp4, 3))
    assert len({id(packet) for packet in kept}) == 5


def test_packets_are_released_when_the_hook_raises_too(engine: Engine) -> None:
    kept: list[Any] = []

    def hook(given: list[Any]) -> None:
        kept.extend(given)
        raise OSError

    with pytest.raises(OSError):
        engine.GroDispatcher(hook).dispatch(stream(tcp4, 3))
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])
    assert (kept[0].packets, len(kept[0])) == (3, 310)


def test_segments_that_were_begun_in_the_hook_can_be_finished_later(engine: Engine) -> None:
    packets = stream(tcp4, 3)
    slab = bytearray(b"".join(packets))
    batch = engine.Batch(slab)
    for place, packet in enumerate(packets):
        batch.add(140 * place, len(packet))
    begun: list[Any] = []
    engine.GroDispatcher(lambda given: begun.append(given[0].segments())).dispatch(batch)
    slab[:] = bytes(len(slab))
    assert list(begun[0]) == packets


# --- detach --------------------------------------------------------------------------------------


def test_a_detached_packet_keeps_bytes_and_numbers(
    engine: Engine, kind: tuple[Any, dict[str, Any]]
) -> None:
    packets, how = kind
    kept: list[tuple[Any, ...]] = []

    def hook(given: list[Any]) -> None:
        for packet in given:
            data, said, cut = bytes(packet), numbers(packet), list(packet.segments())
            header = bytes(packet.header)
            assert packet.detach() is packet
            assert bytes(packet) == data
            kept.append((packet, data, said, cut, header))

    gro = engine.GroDispatcher(hook, GroConfig(**how))
    gro.dispatch(batch_of(engine, packets))
    first = list(kept)
    gro.dispatch([b"other", *stream(tcp4, 4, sport=3)])
    for packet, data, said, cut, header in first:
        assert numbers(packet) == said
        assert bytes(packet) == data
        assert list(packet.segments()) == cut
        (piece,) = packet.buffers()
        assert (bytes(piece), piece.readonly) == (data, True)
        assert bytes(packet.header) == header
        room = bytearray(len(data) + 1)
        assert packet.copy_into(room, 1) == len(data)
        assert room[1:] == data
        assert packet.detach() is packet


def test_a_detached_packet_has_a_header_of_its_own_to_write(engine: Engine) -> None:
    kept: list[Any] = []
    engine.GroDispatcher(lambda given: kept.append(given[0].detach())).dispatch(stream(tcp4, 3))
    (packet,) = kept
    packet.header[8] = 7
    assert bytes(packet)[8] == 7
    assert [part[8] for part in packet.segments()] == [7, 7, 7]


# --- misuse --------------------------------------------------------------------------------------


def test_packets_are_made_by_engines_only(engine: Engine) -> None:
    with pytest.raises(TypeError, match="cannot create"):
        engine.Packet()
    with pytest.raises(TypeError):
        engine.Packet(b"data")


def test_packets_are_not_pickled_or_copied(engine: Engine) -> None:
    def act(packet: Any) -> None:
        for make in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="pickle 'Packet'"):
                make(packet)

    assert within_hook(engine, stream(tcp4, 3), act) == [None]


def test_attributes_are_read_only_and_none_can_be_added(engine: Engine) -> None:
    def act(packet: Any) -> None:
        for name in (*NUMBERS, "header", "colour"):
            with pytest.raises(AttributeError):
                setattr(packet, name, 1)

    within_hook(engine, stream(tcp4, 3), act)


def test_a_packet_is_told_from_others_by_identity(engine: Engine) -> None:
    def hook(given: list[Any]) -> None:
        assert given[0] != given[1]
        assert len({given[0], given[1], given[0]}) == 2

    engine.GroDispatcher(hook).dispatch([b"same", b"same"])


def test_arguments_of_segments_are_checked(engine: Engine) -> None:
    def act(packet: Any) -> None:
        with pytest.raises(TypeError):
            packet.segments("partial")
        with pytest.raises(ValueError, match="checksums"):
            packet.segments(checksums="none")
        with pytest.raises(engine.GsoError, match="max_segments"):
            packet.segments(max_segments=2)
        assert len(list(packet.segments(max_segments=3))) == 3

    within_hook(engine, stream(tcp4, 3), act)
