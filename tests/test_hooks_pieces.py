"""A super-packet in two pieces: each is what it would be on its own, and both are all of it."""

from dataclasses import replace
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.hooks.pieces import head_and_rest
from tests import builders as b
from tests.builders import FRAMES, LINKS, ethernet, tcp4, tcp6, udp4
from tests.engines import Engine
from tests.flushes import assert_sound

BUILDS = {4: tcp4, 6: tcp6}
CWR, PSH = 0x80, 0x08


def stream(
    version: int, sizes: list[int], seq: int = 1, ident: int = 65533, **fields: Any
) -> list[bytes]:
    packets = []
    for number, size in enumerate(sizes):
        own = {"ident": (ident + number) & 0xFFFF} if version == 4 else {}
        payload = bytes((number + at) % 251 for at in range(size))
        packets.append(BUILDS[version](payload, seq=seq, **own))
        seq = (seq + size) % (1 << 32)
    return packets


def pieces_of(
    engine: Engine, packets: list[bytes], **config: Any
) -> list[tuple[list[bytes], Any, int]]:
    found: list[tuple[list[bytes], Any, int]] = []

    def hook(delivered: list[Any]) -> None:
        found.extend(
            (head_and_rest(packet), packet.virtio_header(), packet.ip_id_mode)
            for packet in delivered
        )

    engine.GroDispatcher(hook, GroConfig(**config)).dispatch(packets)
    return found


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("sizes", [[100, 100], [100, 7], [100, 100, 100], [1448] * 44 + [3]])
@pytest.mark.parametrize("seq", [1, 0xFFFFFFA0])
def test_cut_again_the_two_are_what_was_sent(
    engine: Engine, version: int, sizes: list[int], seq: int
) -> None:
    sent = stream(version, sizes, seq)
    [(pieces, header, mode)] = pieces_of(engine, sent)
    assert len(pieces) == 2
    assert pieces[0] == sent[0]
    rest = replace(header, flags=0)
    again = list(engine.segment(pieces[1], rest, mode, link="ip"))
    assert [pieces[0], *again] == sent


@pytest.mark.parametrize("version", [4, 6])
def test_the_rest_is_what_merging_the_others_gives(engine: Engine, version: int) -> None:
    sent = stream(version, [200] * 5)
    [(pieces, _header, _mode)] = pieces_of(engine, sent)
    whole: list[bytes] = []
    engine.GroDispatcher(lambda packets: whole.extend(map(bytes, packets))).dispatch(sent[1:])
    assert pieces[1:] == whole
    assert_sound(pieces)


def test_ids_that_stay_equal_stay_equal(engine: Engine) -> None:
    sent = [tcp4(bytes(100), seq=1 + 100 * n, ident=9) for n in range(3)]
    [(pieces, header, mode)] = pieces_of(engine, sent)
    assert pieces[1][4:6] == b"\0\x09"
    assert list(engine.segment(pieces[1], replace(header, flags=0), mode, link="ip")) == sent[1:]


def test_psh_ends_the_rest(engine: Engine) -> None:
    sent = stream(4, [100, 100])
    sent.append(tcp4(bytes(100), seq=201, ident=65535, flags=b.ACK | PSH))
    [(pieces, _header, _mode)] = pieces_of(engine, sent)
    assert [piece[33] & PSH for piece in pieces] == [0, PSH]


@pytest.mark.parametrize("link", [name for name in LINKS if name not in {"ipv4", "ipv6"}])
def test_link_headers_stand_before_both(engine: Engine, link: str) -> None:
    sent = [FRAMES[link](packet) for packet in stream(4, [100] * 4)]
    [(pieces, header, mode)] = pieces_of(engine, sent, link=link)
    again = list(engine.segment(pieces[1], replace(header, flags=0), mode, link=link))
    assert [pieces[0], *again] == sent


def test_tags_stand_before_both(engine: Engine) -> None:
    sent = [ethernet(packet, tags=((0x88A8, 5), (0x8100, 6))) for packet in stream(6, [100] * 4)]
    [(pieces, header, mode)] = pieces_of(engine, sent, link="ethernet")
    again = list(engine.segment(pieces[1], replace(header, flags=0), mode, link="ethernet"))
    assert [pieces[0], *again] == sent


def test_checksums_are_complete_though_the_packet_has_none(engine: Engine) -> None:
    sent = stream(4, [100] * 3)
    [(pieces, _header, _mode)] = pieces_of(engine, sent, delivered_checksums="partial")
    assert_sound(pieces)


def test_what_is_not_a_tcp_super_packet_is_one_piece(engine: Engine) -> None:
    lone = stream(4, [100])
    acknowledgements = [tcp4(b"", ack=n) for n in range(2)]
    datagrams = [udp4(bytes(100), ident=n) for n in range(3)]
    for sent, config in ((lone, {}), (acknowledgements, {}), (datagrams, {"udp": True})):
        whole: list[bytes] = []
        options: dict[str, Any] = config
        engine.GroDispatcher(
            lambda packets, whole=whole: whole.extend(map(bytes, packets)), GroConfig(**options)
        ).dispatch(sent)
        assert [pieces for pieces, _, _ in pieces_of(engine, sent, **options)] == [
            [data] for data in whole
        ]
