"""Flows chosen to collide under weak hashes cost no more than others, and change no result."""

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable

import pytest

from netstack_gro import records
from netstack_gro.config import GroConfig
from tests.builders import ethernet, tcp4, tcp6, udp4
from tests.engines import Engine, load
from tests.invariants import Recorder

pytestmark = pytest.mark.slow  # as a whole

FLOWS = 1024  # as many as the default capacity has room for: the table is as full as it gets
PAYLOAD = bytes(10)
V4 = 0x0A000000
V6 = 0xFD << 120


def v4(number: int) -> bytes:
    return (V4 + number).to_bytes(4, "big")


def v6(number: int) -> bytes:
    return (V6 + number).to_bytes(16, "big")


def random_flow(rng: random.Random) -> bytes:
    return tcp4(
        PAYLOAD,
        source=rng.randbytes(4),
        destination=rng.randbytes(4),
        sport=rng.randrange(65536),
        dport=rng.randrange(65536),
    )


FLOODS: dict[str, Callable[[int], bytes]] = {
    "ports of equal sum": lambda i: tcp4(PAYLOAD, sport=1000 + i, dport=4000 - i),
    "ports of equal exclusive or": lambda i: tcp4(PAYLOAD, sport=1000 + i, dport=7000 ^ 1000 + i),
    "addresses of equal sum": lambda i: tcp4(PAYLOAD, source=v4(i), destination=v4(0xFFFF - i)),
    "addresses of equal exclusive or": lambda i: tcp4(PAYLOAD, source=v4(i), destination=v4(i)),
    "address against port": lambda i: tcp4(PAYLOAD, source=v4(i), sport=i, dport=i),
    "swept source ports": lambda i: tcp4(PAYLOAD, sport=i),
    "swept destination ports": lambda i: tcp4(PAYLOAD, dport=i),
    "same low bits of ports": lambda i: tcp4(PAYLOAD, sport=i % 64 << 10, dport=i // 64 << 10),
    "same low bits of addresses": lambda i: tcp4(PAYLOAD, source=v4(i << 14)),
    "swept addresses": lambda i: tcp4(PAYLOAD, source=v4(i)),
    "swept UDP ports": lambda i: udp4(PAYLOAD, sport=1000 + i, dport=30000 - i),
    "IPv6, high half swept": lambda i: tcp6(PAYLOAD, source=v6(i << 64)),
    "IPv6, halves of equal exclusive or": lambda i: tcp6(PAYLOAD, source=v6(i << 64 | i)),
    "IPv6, source against destination": lambda i: tcp6(
        PAYLOAD, source=v6(i << 32), destination=v6(i << 32)
    ),
    "IPv6, words swapped": lambda i: tcp6(
        PAYLOAD, source=v6(i << 64 | 1023 - i), destination=v6(1023 - i << 64 | i)
    ),
}
ETHERNET_FLOODS: dict[str, Callable[[int], bytes]] = {
    "MAC addresses": lambda i: ethernet(tcp4(PAYLOAD), source=i.to_bytes(6, "big")),
    "MAC addresses of equal exclusive or": lambda i: ethernet(
        tcp4(PAYLOAD), source=i.to_bytes(6, "big"), destination=i.to_bytes(6, "big")
    ),
    "VLAN IDs": lambda i: ethernet(tcp4(PAYLOAD), tags=[(0x88A8, i), (0x8100, 1023 - i)]),
}
ALL = [("ip", name, make) for name, make in FLOODS.items()] + [
    ("ethernet", name, make) for name, make in ETHERNET_FLOODS.items()
]
PARAMETERS = pytest.mark.parametrize(
    ("link", "make"), [pytest.param(link, make, id=name) for link, name, make in ALL]
)


def random_flows(link: str, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    packets = [random_flow(rng) for _ in range(FLOWS)]
    return [ethernet(packet) for packet in packets] if link == "ethernet" else packets


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Counts how often the interpreted engine looks at a bucket for one batch of packets."""
    interpreted = load("interpreted")
    count = itertools.count()
    plain = records.bucket_at

    def counted(buckets: list[records.Bucket], index: int) -> records.Bucket:
        next(count)
        return plain(buckets, index)

    monkeypatch.setattr(records, "bucket_at", counted)

    def run(
        link: str, packets: list[bytes], metadata: Callable[[int], dict[str, int]] = lambda i: {}
    ) -> int:
        gro = interpreted.GroDispatcher(
            lambda delivered: None, GroConfig(link=link, udp=True, capacity=FLOWS)
        )
        before = next(count)
        for number, packet in enumerate(packets):
            gro.enqueue(packet, **metadata(number))
        gro.flush()
        return next(count) - before - 1

    return run


@PARAMETERS
def test_chosen_flows_are_probed_for_at_most_twice_as_often_as_random_ones(
    link: str, make: Callable[[int], bytes], probes: Callable[..., int]
) -> None:
    chosen = [make(number) for number in range(FLOWS)]
    assert len(set(chosen)) == FLOWS
    # Each run has an engine of its own, hence a seed of its own.
    random_cost = sum(probes(link, random_flows(link, seed)) for seed in range(3))
    chosen_cost = sum(probes(link, chosen) for _ in range(3))
    assert 3 * FLOWS <= chosen_cost <= 2 * random_cost


@pytest.mark.parametrize(
    "metadata",
    [
        lambda i: {"interface": i},
        lambda i: {"interface": i << 22},
        lambda i: {"vlan": i},
        lambda i: {"vlan": i, "vlan_tpid": 4095 - i},
        lambda i: {"interface": i, "vlan": i},
    ],
    ids=["interfaces", "high bits of interfaces", "VLANs", "VLANs against TPIDs", "both alike"],
)
def test_metadata_sets_flows_apart_in_the_table_too(
    metadata: Callable[[int], dict[str, int]], probes: Callable[..., int]
) -> None:
    random_cost = sum(probes("ip", random_flows("ip", seed)) for seed in range(3))
    chosen_cost = sum(probes("ip", [tcp4(PAYLOAD)] * FLOWS, metadata) for _ in range(3))
    assert 3 * FLOWS <= chosen_cost <= 2 * random_cost


@PARAMETERS
def test_flows_that_were_chosen_to_collide_are_kept_apart_under_every_seed(
    engine: Engine, link: str, make: Callable[[int], bytes]
) -> None:
    packets = [make(number) for number in range(300)] * 2
    results = []
    for _ in range(3):
        recorder = Recorder()
        gro = engine.GroDispatcher(recorder, GroConfig(link=link, udp=True))
        gro.dispatch(packets)
        results.append(recorder.take())
    assert results[0] == results[1] == results[2]
    if not any(packet.packets > 1 for packet in results[0]):  # duplicates of TCP do not merge
        assert [packet.data for packet in results[0]] == packets
    else:
        assert [packet.packets for packet in results[0]] == [2] * 300


@PARAMETERS
def test_chosen_flows_take_at_most_twice_the_time_of_random_ones(
    engine: Engine, link: str, make: Callable[[int], bytes]
) -> None:
    # Of the interpreted engine the probes are counted, which is exact: a glance is enough here.
    rounds, repeats = (15, 5) if engine.name == "compiled" else (3, 1)
    sets = {"chosen": [make(number) for number in range(FLOWS)], "random": random_flows(link)}

    def measure() -> float:
        times: dict[str, list[float]] = {name: [] for name in sets}
        for _ in range(rounds):
            for name, packets in sets.items():
                gro = engine.GroDispatcher(lambda delivered: None, GroConfig(link=link, udp=True))
                batch = engine.Batch(capacity=FLOWS)
                for packet in packets:
                    batch.append(packet)
                gro.dispatch(batch)  # the packet objects exist from now on
                start = time.perf_counter()
                for _ in range(repeats):
                    gro.dispatch(batch)
                times[name].append(time.perf_counter() - start)
        return statistics.median(times["chosen"]) / statistics.median(times["random"])

    gc.disable()
    try:
        # An IPv6 or VLAN flow costs a little more to hash and compare than IPv4 without them.
        ratios = []
        for _ in range(5):
            ratios.append(measure())
            if ratios[-1] <= 2:
                break
    finally:
        gc.enable()
    assert min(ratios) <= 2


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 64, 1000, 1024])
def test_the_table_is_at_most_half_full_whatever_the_capacity(
    capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    plain = records.buckets

    def noted(count: int) -> list[records.Bucket]:
        made.append(count)
        return plain(count)

    monkeypatch.setattr(records, "buckets", noted)
    load("interpreted").GroDispatcher(lambda delivered: None, GroConfig(capacity=capacity))
    (places,) = made
    assert places >= 2 * capacity
    assert places.bit_count() == 1


def test_a_barrier_closes_all_heads_at_once(
    probes: Callable[..., int],
) -> None:
    flows = random_flows("ip")[: FLOWS // 2]
    fragment = tcp4(PAYLOAD, mf=True, df=False)
    assert probes("ip", [*flows, *[fragment] * (FLOWS // 2)]) < 4 * FLOWS


def test_every_engine_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    plain = records.bucket_at

    def noted(buckets: list[records.Bucket], index: int) -> records.Bucket:
        places.append(index)
        return plain(buckets, index)

    monkeypatch.setattr(records, "bucket_at", noted)
    packets = random_flows("ip")[:20]
    seen = set()
    for _ in range(5):
        load("interpreted").GroDispatcher(lambda delivered: None).dispatch(packets)
        seen.add(tuple(places))
        places.clear()
    assert len(seen) == 5


def test_the_table_is_emptied_also_when_its_generations_are_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interpreted = load("interpreted")
    monkeypatch.setattr(interpreted.module("table"), "GENERATIONS", 4)
    recorder = Recorder()
    gro = interpreted.GroDispatcher(recorder, GroConfig(capacity=16))
    packets = [tcp4(PAYLOAD, sport=port) for port in range(16)]
    for _ in range(20):
        gro.dispatch(packets)
    assert [packet.data for packet in recorder.take()] == packets * 20
