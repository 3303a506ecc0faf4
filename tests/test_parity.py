"""The compiled and the interpreted engine are one: packet for packet, misuse for misuse."""

import os
import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netstack_gro.config import GroConfig, IpIdMode
from netstack_gro.virtio import NEEDS_CSUM, VirtioHeader
from tests.builders import tcp4, tcp6, udp4
from tests.engines import Engine
from tests.invariants import FEEDS, Recorder, cases, feed
from tests.traffic import LINKS, TrafficPacket, generate

pytestmark = pytest.mark.slow  # as a whole

SEED = int(os.environ.get("NETSTACK_GRO_TEST_SEED", "1"))
PACKETS = int(os.environ.get("NETSTACK_GRO_TEST_PACKETS", "100000"))
CONFIGS: tuple[dict[str, Any], ...] = (
    {"udp": True},
    {"udp": True, "received_checksums": "trust"},
    {"udp": True, "delivered_checksums": "partial"},
    {"udp": True, "received_checksums": "trust", "delivered_checksums": "partial"},
    {"udp": True, "capacity": 5, "fixed_ip_ids": "df"},
    {"udp": True, "max_size": 1500, "max_frame": 1514, "max_tcp_segments": 17},
    {"udp": True, "tcp": False, "max_udp_segments": 2, "fixed_ip_ids": "refuse"},
    {},
)

Both = tuple[Engine, Engine]


class Described(Recorder):
    """A recorder that also notes texts, pieces and segments."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[object] = []

    def __call__(self, packets: list[Any]) -> None:
        for packet in packets:
            self.texts += (repr(packet), packet.fits(1280), packet.fits(len(packet)), packet.link)
            self.texts.append([bytes(piece) for piece in packet.buffers()])
            self.texts.append(list(packet.segments(checksums="partial")))
        super().__call__(packets)
        for packet in packets:
            self.texts.append(bytes(packet.header))
            if packet.header:
                packet.header[-1] ^= 0xFF
                self.texts += (bytes(packet), list(packet.segments()))
            packet.detach()
            self.texts.append(repr(packet))


def outcome(use: Callable[[], object]) -> tuple[object, ...]:
    """What came of it: the value, or the type, text and notes of the error."""
    try:
        value = use()
    except Exception as error:
        return type(error), str(error), getattr(error, "__notes__", None)
    return (value,)


@pytest.mark.parametrize("link", LINKS)
def test_both_engines_deliver_the_same_over_seeded_traffic(both_engines: Both, link: str) -> None:
    seed = SEED * len(LINKS) + LINKS.index(link)
    print(f"NETSTACK_GRO_TEST_SEED={SEED} NETSTACK_GRO_TEST_PACKETS={PACKETS}")
    rng = random.Random(seed)
    runs = []
    for fields in CONFIGS:
        config = GroConfig(**{"link": link} | fields)
        pair = []
        for engine in both_engines:
            recorder = Recorder()
            pair.append((engine, recorder, engine.GroDispatcher(recorder, config)))
        runs.append(pair)
    ways = sorted(FEEDS)
    for number, packets in enumerate(generate(seed, PACKETS // len(LINKS), link=link)):
        pair = rng.choice(runs)
        way = rng.choice(ways)
        detach = rng.random() < 0.8
        flushes = []
        for engine, recorder, gro in pair:
            recorder.detach = detach
            feed(engine, gro, packets, way)
            flushes.append(recorder.flushes.copy())
            recorder.flushes.clear()
        assert flushes[0] == flushes[1], f"batch {number} of seed {seed}, given by {way}"
    for pair in runs:
        assert pair[0][2].stats == pair[1][2].stats


@settings(max_examples=150)
@given(case=cases(), way=st.sampled_from(sorted(FEEDS)))
def test_both_engines_say_the_same_of_what_they_deliver(
    both_engines: Both, case: tuple[list[TrafficPacket], GroConfig], way: str
) -> None:
    packets, config = case
    results = []
    for engine in both_engines:
        recorder = Described()
        gro = engine.GroDispatcher(recorder, config)
        feed(engine, gro, packets, way)
        results.append((recorder.flushes, recorder.texts, gro.stats))
    assert results[0] == results[1]


HEADERS = st.builds(
    VirtioHeader,
    flags=st.sampled_from((0, 1, 2, 3)),
    gso_type=st.sampled_from((0, 1, 4, 5, 0x81, 0x84)) | st.integers(0, 255),
    hdr_len=st.just(0) | st.integers(0, 65535),
    gso_size=st.sampled_from((0, 1, 7, 50, 100, 1448, 65535)) | st.integers(0, 65535),
    csum_start=st.sampled_from((20, 40, 34, 54, 24, 44, 36, 56, 60)) | st.integers(0, 65535),
    csum_offset=st.sampled_from((16, 6)) | st.integers(0, 65535),
)


@settings(max_examples=300)
@given(
    case=cases(),
    header=HEADERS,
    mode=st.sampled_from(IpIdMode),
    link=st.none() | st.sampled_from(LINKS),
    checksums=st.sampled_from(("complete", "partial")),
    max_segments=st.sampled_from((1, 2, 100, 65535)),
)
def test_both_engines_cut_and_complete_or_refuse_alike(
    both_engines: Both,
    case: tuple[list[TrafficPacket], GroConfig],
    header: VirtioHeader,
    mode: IpIdMode,
    link: str | None,
    checksums: str,
    max_segments: int,
) -> None:
    keywords: dict[str, Any] = {"link": link, "checksums": checksums, "max_segments": max_segments}
    for packet in case[0][:8]:
        results = []
        for engine in both_engines:
            cut = outcome(
                lambda: list(engine.segment(packet.data, header, mode, **keywords))  # noqa: B023
            )
            completed = outcome(lambda: engine.complete_checksum(packet.data, header))  # noqa: B023
            results.append((cut, completed))
        assert results[0] == results[1]


def test_both_engines_cut_every_traffic_packet_alike_by_headers_that_fit(
    both_engines: Both,
) -> None:
    # Sizes and types that do fit, which drawn ones seldom do.
    cuts = 0
    for link in LINKS:
        for packet in chain.from_iterable(generate(SEED, 300, link=link, sizes=(100, 536, 7))):
            for start in (20, 40, 34, 54, 38, 58, 24, 44, 36, 56, 60):
                for gso, offset in ((1, 16), (4, 16), (5, 6)):
                    header = VirtioHeader(NEEDS_CSUM, gso, 0, 33, start, offset)
                    results = [
                        outcome(lambda: list(engine.segment(packet.data, header)))  # noqa: B023
                        for engine in both_engines
                    ]
                    assert results[0] == results[1]
                    cuts += len(results[0]) == 1
    assert cuts > 300


# --- misuse --------------------------------------------------------------------------------------


def engine_of(engine: Engine, hook: Any = None, **fields: Any) -> Any:
    return engine.GroDispatcher(hook or (lambda packets: None), GroConfig(**fields))


def packet_of(engine: Engine, use: Callable[[Any], object], *, live: bool = True) -> object:
    """What a use of a delivered packet gives, within the hook or behind it."""
    results: list[object] = []
    kept: list[Any] = []

    def hook(packets: list[Any]) -> None:
        kept.extend(packets)
        if live:
            results.append(outcome(lambda: use(packets[0])))

    engine_of(engine, hook).dispatch([tcp4(bytes(9)), tcp4(bytes(9), seq=10, ident=1)])
    return results[0] if live else use(kept[0])


def filled(engine: Engine) -> Any:
    batch = engine.Batch(bytearray(100), capacity=2)
    batch.add(0, 50)
    return batch


def overfilled(engine: Engine) -> None:
    batch = filled(engine)
    batch.add(0, 1)
    batch.add(0, 1)


def entered(engine: Engine, name: str, *arguments: Any) -> object:
    results: list[object] = []

    def hook(packets: list[Any]) -> None:
        results.append(outcome(lambda: getattr(gro, name)(*arguments)))

    gro = engine_of(engine, hook)
    gro.dispatch([b"x"])
    return results


def closed(engine: Engine) -> Any:
    gro = engine_of(engine)
    gro.close()
    return gro


def failing(count: int) -> Any:
    yield from [b"x"] * count
    raise OSError("the iterable broke")


def settled(engine: Engine, name: str, value: object) -> None:
    setattr(engine_of(engine), name, value)


class BadSink:
    def __call__(self, packets: list[Any]) -> None: ...

    @property
    def limits(self) -> Any:
        return {"tcp": False}


class RaisingSink(BadSink):
    @property
    def limits(self) -> Any:
        raise OSError("no limits now")


def claim(flow: Any) -> bool:
    raise OSError(f"asked about {flow}")


def asked(engine: Engine) -> object:
    gro = engine_of(engine)
    gro.never_merge = claim
    return gro.dispatch([tcp4(b"x"), tcp4(b"y")])


HEADER = VirtioHeader(NEEDS_CSUM, 1, 0, 3, 20, 16)

MISUSES: dict[str, Callable[[Engine], object]] = {
    "a hook that cannot be called": lambda e: e.GroDispatcher(3),
    "no configuration": lambda e: e.GroDispatcher(print, {"udp": True}),
    "an engine made twice": lambda e: engine_of(e).__init__(print),
    "a batch made twice": lambda e: e.Batch().__init__(),
    "an engine never initialised": lambda e: e.GroDispatcher.__new__(e.GroDispatcher).flush(),
    "a packet of one's own": lambda e: e.Packet(),
    "dispatching nothing": lambda e: engine_of(e).dispatch(None),
    "dispatching a number": lambda e: engine_of(e).dispatch(3),
    "dispatching bytes": lambda e: engine_of(e).dispatch(b"abc"),
    "dispatching text": lambda e: engine_of(e).dispatch("abc"),
    "a batch that holds None": lambda e: engine_of(e).dispatch([b"x", None, b"y"]),
    "an iterable that breaks at once": lambda e: engine_of(e).dispatch(failing(0)),
    "an iterable that breaks later": lambda e: engine_of(e, capacity=2).dispatch(failing(5)),
    "a batch with gaps": lambda e: engine_of(e).dispatch([memoryview(bytes(9))[::2]]),
    "an interval of words": lambda e: engine_of(e).dispatch([memoryview(bytes(8)).cast("H")]),
    "enqueueing a number": lambda e: engine_of(e).enqueue(7),
    "enqueueing text": lambda e: engine_of(e).enqueue("x"),
    "a closed engine, dispatch": lambda e: closed(e).dispatch([b"x"]),
    "a closed engine, enqueue": lambda e: closed(e).enqueue(b"x"),
    "a closed engine, flush": lambda e: closed(e).flush(),
    "a closed engine, close": lambda e: closed(e).close(),
    "a closed engine, entered": lambda e: closed(e).__enter__().pending,
    "dispatch within the hook": lambda e: entered(e, "dispatch", [b"x"]),
    "enqueue within the hook": lambda e: entered(e, "enqueue", b"x"),
    "flush within the hook": lambda e: entered(e, "flush"),
    "close within the hook": lambda e: entered(e, "close"),
    "enabled that is no bool": lambda e: settled(e, "enabled", 1),
    "a predicate that cannot be called": lambda e: settled(e, "never_merge", 1),
    "a predicate that raises": asked,
    "limits that are none": lambda e: e.GroDispatcher(BadSink()).dispatch([b"x"]),
    "limits that raise": lambda e: e.GroDispatcher(RaisingSink()).dispatch([b"x", b"y"]),
    "a capacity of 0": lambda e: e.Batch(capacity=0),
    "a capacity of 65,537": lambda e: e.Batch(capacity=65537),
    "a capacity of one half": lambda e: e.Batch(capacity=0.5),
    "a capacity of True": lambda e: e.Batch(capacity=True),
    "max_slabs of 0": lambda e: e.Batch(max_slabs=0),
    "a slab of text": lambda e: e.Batch("slab"),
    "a slab with gaps": lambda e: e.Batch(memoryview(bytes(9))[::3]),
    "a range without a slab": lambda e: e.Batch().add(0, 1),
    "a range beyond the slab": lambda e: filled(e).add(60, 41),
    "a range before the slab": lambda e: filled(e).add(-1, 1),
    "a negative length": lambda e: filled(e).add(5, -1),
    "a huge offset": lambda e: filled(e).add(2**70, 1),
    "an offset of text": lambda e: filled(e).add("0", 1),
    "a full batch": overfilled,
    "a wire length below the length": lambda e: filled(e).add(0, 10, wire_length=9),
    "a wire length of text": lambda e: filled(e).add(0, 10, wire_length="9"),
    "a time of 2**63": lambda e: filled(e).add(0, 10, timestamp_ns=2**63),
    "a time that is a float": lambda e: filled(e).add(0, 10, timestamp_ns=1.5),
    "a negative interface": lambda e: filled(e).append(b"x", interface=-1),
    "an interface of 2**32": lambda e: engine_of(e).enqueue(b"x", interface=2**32),
    "a checksum state that is a number": lambda e: engine_of(e).enqueue(b"x", checksum=2),
    "a VLAN tag of 17 bits": lambda e: engine_of(e).enqueue(b"x", vlan=65536),
    "a TPID of 0": lambda e: engine_of(e).enqueue(b"x", vlan=1, vlan_tpid=0),
    "a vnet header of bytes": lambda e: engine_of(e).enqueue(b"x", virtio=bytes(10)),
    "aggregated that is no bool": lambda e: engine_of(e).enqueue(b"x", aggregated=1),
    "a foreign thing to cut": lambda e: e.segment(3, HEADER),
    "a foreign header": lambda e: e.segment(tcp4(), bytes(10)),
    "a foreign ID mode": lambda e: e.segment(tcp4(), HEADER, 7),
    "an ID mode of text": lambda e: e.segment(tcp4(), HEADER, "fixed"),
    "foreign checksums": lambda e: e.segment(tcp4(), HEADER, checksums="both"),
    "a foreign link": lambda e: e.segment(tcp4(), HEADER, link="token ring"),
    "max_segments of text": lambda e: e.segment(tcp4(bytes(9)), HEADER, max_segments="9"),
    "too many segments": lambda e: e.segment(tcp4(bytes(9)), HEADER, max_segments=2),
    "cutting the wrong family": lambda e: e.segment(tcp6(bytes(9)), HEADER),
    "cutting the wrong protocol": lambda e: e.segment(udp4(bytes(9)), HEADER),
    "cutting nothing": lambda e: e.segment(b"", HEADER),
    "completing a number": lambda e: e.complete_checksum(3, HEADER),
    "completing by bytes": lambda e: e.complete_checksum(tcp4(), bytes(10)),
    "completing nothing": lambda e: e.complete_checksum(b"", HEADER),
    "a packet into nothing": lambda e: packet_of(e, lambda p: p.copy_into(bytearray(9))),
    "a packet into bytes": lambda e: packet_of(e, lambda p: p.copy_into(bytes(999))),
    "a packet into text": lambda e: packet_of(e, lambda p: p.copy_into("x")),
    "a packet beyond the end": lambda e: packet_of(
        e, lambda p: p.copy_into(bytearray(len(p) + 3), 4)
    ),
    "a packet before the start": lambda e: packet_of(e, lambda p: p.copy_into(bytearray(999), -1)),
    "a packet at no offset": lambda e: packet_of(e, lambda p: p.copy_into(bytearray(999), "1")),
    "segments of no kind": lambda e: packet_of(e, lambda p: list(p.segments(checksums="no"))),
    "segments beyond a limit": lambda e: packet_of(e, lambda p: list(p.segments(max_segments=1))),
    "a packet that fits text": lambda e: packet_of(e, lambda p: p.fits("1500")),
    "bytes of a released packet": lambda e: packet_of(e, bytes, live=False),
    "pieces of a released packet": lambda e: packet_of(e, lambda p: p.buffers(), live=False),
    "header of a released packet": lambda e: packet_of(e, lambda p: p.header, live=False),
    "detaching a released packet": lambda e: packet_of(e, lambda p: p.detach(), live=False),
    "segments of a released packet": lambda e: packet_of(e, lambda p: p.segments(), live=False),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_ends_the_same_in_both_engines(both_engines: Both, misuse: str) -> None:
    compiled, interpreted = (
        outcome(lambda: MISUSES[misuse](engine))  # noqa: B023
        for engine in both_engines
    )
    assert compiled == interpreted


WRONG_CALLS: dict[str, Callable[[Engine], object]] = {
    "dispatch of nothing": lambda e: engine_of(e).dispatch(),
    "dispatch of two": lambda e: engine_of(e).dispatch([], []),
    "enqueue by position": lambda e: engine_of(e).enqueue(b"x", 3),
    "an unknown keyword": lambda e: engine_of(e).enqueue(b"x", mark=3),
    "flush of something": lambda e: engine_of(e).flush(1),
    "add of one number": lambda e: filled(e).add(1),
    "a batch by positions": lambda e: e.Batch(None, 3),
    "an engine without a hook": lambda e: e.GroDispatcher(),
    "segment without a header": lambda e: e.segment(b"x"),
    "segment by positions": lambda e: e.segment(b"x", HEADER, IpIdMode.FIXED, "ip"),
    "writing pending": lambda e: settled(e, "pending", 3),
    "writing stats": lambda e: settled(e, "stats", None),
    "an attribute of one's own": lambda e: settled(e, "mark", 3),
    "writing a batch's slab": lambda e: setattr(e.Batch(), "slab", b""),
    "the length of an engine": lambda e: len(engine_of(e)),
    "an index of a batch": lambda e: filled(e)[0],
}


@pytest.mark.parametrize("call", WRONG_CALLS)
def test_a_wrong_call_raises_the_same_type_in_both_engines(both_engines: Both, call: str) -> None:
    # The words are the interpreter's own, and differ between functions of C and of Python.
    kinds = [outcome(lambda: WRONG_CALLS[call](engine))[0] for engine in both_engines]  # noqa: B023
    assert kinds[0] is kinds[1]
    assert issubclass(kinds[0], (TypeError, AttributeError))  # type: ignore[arg-type]
