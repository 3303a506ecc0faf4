"""The engine against the running kernel's GRO: the same packets, no unexplained difference."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from tests.builders import (
    DESTINATION,
    DOT1Q,
    HOP_BY_HOP,
    ROUTING,
    TCP,
    UDP,
    ethernet,
    tcp4,
    tcp6,
    udp4,
    udp6,
)
from tests.kernel_model import Delivered, Difference, Model, explain
from tests.kernel_oracle import UDP_PORTS, KernelOracle, OracleError, availability
from tests.oracle_traffic import PADDING, random_sequence, zero_checksum
from tests.requirements import require
from tests.vectors import payload_size

pytestmark = pytest.mark.slow  # as a whole

SEQUENCES = 2500
SEED_VARIABLE = "NETSTACK_GRO_ORACLE_SEED"


@dataclass(frozen=True)
class Exchange:
    """Random sequences by seed, and what the kernel delivered for each."""

    first_seed: int
    sequences: list[list[bytes]]
    kernel: list[list[Delivered]]

    def __iter__(self) -> Iterator[tuple[int, list[bytes], list[Delivered]]]:
        seeds = range(self.first_seed, self.first_seed + len(self.sequences))
        return zip(seeds, self.sequences, self.kernel, strict=True)


@pytest.fixture(scope="module")
def oracle() -> Iterator[KernelOracle]:
    require(availability())
    with KernelOracle() as oracle:
        yield oracle


@pytest.fixture(scope="module")
def first_seed() -> int:
    """A new seed for each run; the environment variable repeats an old one."""
    return int(os.environ.get(SEED_VARIABLE) or SystemRandom().getrandbits(40))


@pytest.fixture(scope="module")
def exchange(oracle: KernelOracle, first_seed: int) -> Exchange:
    sequences = [random_sequence(first_seed + number) for number in range(SEQUENCES)]
    return Exchange(first_seed, sequences, ask(oracle, sequences))


@pytest.fixture(autouse=True)
def seeds_shown(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the seeds of this run, whether it passes or not."""
    if "first_seed" in request.fixturenames:
        seed = request.getfixturevalue("first_seed")
        with capsys.disabled():
            print(f"\n{SEED_VARIABLE}={seed} (and the {SEQUENCES - 1} after it)")


def ask(oracle: KernelOracle, sequences: Sequence[Sequence[bytes]]) -> list[list[Delivered]]:
    return [
        [Delivered.of(packet.data, packet.virtio) for packet in delivered]
        for delivered in oracle.run(sequences)
    ]


def merge(
    engine: Any, sequences: Iterable[Sequence[bytes]], **settings: Any
) -> Iterator[list[Delivered]]:
    """What this engine, set up as the kernel is, delivers for each sequence as one batch."""
    delivered: list[Delivered] = []

    def hook(batch: list[Any]) -> None:
        delivered.extend(
            Delivered.of(bytes(packet), packet.virtio_header())
            if packet.packets > 1
            else Delivered(bytes(packet))
            for packet in batch
        )

    config = engine.GroConfig(udp=True, delivered_checksums="partial", **settings)
    with engine.GroDispatcher(hook, config) as gro:
        for packets in sequences:
            assert gro.dispatch(list(packets)) == len(packets)
            yield delivered.copy()
            delivered.clear()


def report(seed: int, sequence: Sequence[bytes], **sides: Sequence[Delivered]) -> str:
    """What to look at first: the seed, and the first packet that is not as predicted."""
    model = Model(sequence)
    lines = [f"seed {seed}: {len(sequence)} packets"]
    predictions = {
        "kernel": (model.kernel(), model.groups()),
        "ours": (model.ours(), sorted(model.groups(Difference))),
    }
    for name, delivered in sides.items():
        expected, groups = predictions[name]
        for place, (got, wanted) in enumerate(zip(delivered, expected, strict=False)):
            if got != wanted:
                lines.append(f"{name}, delivered packet {place}: {len(got.data)} bytes {got[1:]}")
                lines.append(f"  instead of {len(wanted.data)} bytes {wanted[1:]}: {groups}")
                lines.append(f"  {got.data[:96].hex()}\n  {wanted.data[:96].hex()}")
                break
        lines.append(f"{name}: {len(delivered)} packets delivered, {len(expected)} predicted")
    return "\n".join(lines)


# --- random sequences --------------------------------------------------------------------------


def test_every_difference_between_engine_and_kernel_is_intended(
    engine: Any, exchange: Exchange
) -> None:
    explanations: dict[str, int] = {}
    merged = merge(engine, exchange.sequences)
    for (seed, sequence, kernel), ours in zip(exchange, merged, strict=True):
        explanation = explain(sequence, kernel, ours)
        assert explanation is not None, report(seed, sequence, kernel=kernel, ours=ours)
        explanations[explanation] = explanations.get(explanation, 0) + 1
    assert explanations[""] > SEQUENCES // 3  # most are the same without any explanation


def test_the_kernel_does_what_the_model_predicts(exchange: Exchange) -> None:
    for seed, sequence, kernel in exchange:
        assert kernel == Model(sequence).kernel(), report(seed, sequence, kernel=kernel)


def test_the_engine_does_what_the_model_predicts_without_the_kernel(
    engine: Any, first_seed: int
) -> None:
    seeds = range(first_seed, first_seed + SEQUENCES)
    sequences = [random_sequence(seed) for seed in seeds]
    merged = merge(engine, sequences)
    for seed, sequence, ours in zip(seeds, sequences, merged, strict=True):
        assert ours == Model(sequence).ours(), report(seed, sequence, ours=ours)


def test_the_random_sequences_reach_every_kind_of_merge_and_difference() -> None:
    merged: set[int] = set()
    missing = set(Difference) - {Difference.EVICTION}  # they keep to 8 flows
    for seed in range(SEQUENCES):
        model = Model(random_sequence(seed))
        merged |= {packet.gso_type for packet in model.kernel()}
        missing.difference_update(model.differences() or ())
        if not missing and merged == {0, 1, 4, 5}:
            break
    assert merged == {0, 1, 4, 5}  # VIRTIO_NET_HDR_GSO_NONE, TCPV4, TCPV6, UDP_L4
    assert not missing


def test_a_sequence_follows_from_its_seed() -> None:
    assert random_sequence(1234) == random_sequence(1234)
    assert random_sequence(1234) != random_sequence(1235)


@pytest.mark.parametrize("side", ["kernel", "ours"])
def test_a_merge_that_nobody_intended_is_not_explained(side: str) -> None:
    sequence = [tcp4(bytes(100), seq=0, window=1), tcp4(bytes(100), seq=100, window=2)]
    apart = [Delivered(packet) for packet in sequence]
    together = Model([tcp4(bytes(100), seq=0), tcp4(bytes(100), seq=100)]).kernel()
    assert explain(sequence, apart, apart) == ""
    sides = {"kernel": apart, "ours": apart, side: together}
    assert explain(sequence, sides["kernel"], sides["ours"]) is None


# --- intended differences ----------------------------------------------------------------------


@dataclass(frozen=True)
class Directed:
    """One difference, pure: payload sizes as the kernel delivers them, and as we do."""

    name: str
    difference: Difference
    packets: list[bytes]
    kernel: list[int]
    ours: list[int]


def _tcp(count: int, version: int = 4, **changes: dict[str, Any]) -> list[bytes]:
    """Segments of 100 bytes that fit together; ``p1={...}`` changes fields of the second."""
    packets = []
    for place in range(count):
        fields: dict[str, Any] = {"seq": 100 * place, **changes.get(f"p{place}", {})}
        if version == 4:
            fields.setdefault("ident", place)
        packets.append((tcp4 if version == 4 else tcp6)(bytes(100), **fields))
    return packets


def _between(between: bytes) -> list[bytes]:
    """Two segments that fit together, and a packet of the same flow between them."""
    first, second = _tcp(2, version=between[0] >> 4)
    return [first, between, second]


def _udp_between(version: int, **fields: Any) -> list[bytes]:
    build = udp4 if version == 4 else udp6
    idents: list[dict[str, Any]] = [{"ident": 0}, {"ident": 1}] if version == 4 else [{}, {}]
    first, second = (build(bytes(100), dport=UDP_PORTS[0], **ident) for ident in idents)
    return [first, build(bytes(fields.pop("size", 40)), dport=UDP_PORTS[0], **fields), second]


def _zero_checksums(version: int, protocol: int, checksum: int) -> list[bytes]:
    """Two segments of which the second has a checksum that computes to zero."""
    build = {(4, TCP): tcp4, (6, TCP): tcp6, (4, UDP): udp4, (6, UDP): udp6}[version, protocol]
    fields: list[dict[str, Any]] = [{}, {}]
    for place, field in enumerate(fields):
        if version == 4:
            field["ident"] = place
        if protocol == TCP:
            field["seq"] = 100 * place
        else:
            field["dport"] = UDP_PORTS[0]
    payload = zero_checksum(version, protocol, bytes(100), fields[1])
    return [build(bytes(100), **fields[0]), build(payload, checksum=checksum, **fields[1])]


def _header_checksum_of_ones() -> list[bytes]:
    """Two segments of which the second has an IPv4 header checksum of 0xFFFF for 0."""
    second = tcp4(bytes(100), seq=100)
    ident = int.from_bytes(second[10:12], "big")  # as ID it leaves nothing for the checksum
    return [
        tcp4(bytes(100), seq=0, ident=ident - 1),
        tcp4(bytes(100), seq=100, ident=ident, header_checksum=0xFFFF),
    ]


_SEGMENT_LEFT = (ROUTING, bytes((0, 0, 0, 1, 0, 0, 0, 0)))
_OPTIONS = (DESTINATION, PADDING)
_OTHER_OPTIONS = (DESTINATION, bytes((0, 0, 1, 4, 9, 9, 9, 9)))
_LONG_OPTIONS = (DESTINATION, bytes((0, 29, 1, 236)) + bytes(236))

DIRECTED = [
    *(
        Directed(f"overtaking: {name}", Difference.OVERTAKING, _between(packet), [40, 200], ours)
        for ours in ([100, 40, 100],)
        for name, packet in (
            ("tcp4 bad checksum", tcp4(bytes(40), checksum=0x1234)),
            ("tcp6 bad checksum", tcp6(bytes(40), checksum=0x1234)),
            ("bad IPv4 header checksum", tcp4(bytes(40), header_checksum=0x1234)),
            ("IPv4 options", tcp4(bytes(40), options=b"\1\1\1\0")),
            ("first fragment", tcp4(bytes(40), mf=True)),
            ("last fragment", tcp4(bytes(20), fragment_offset=5)),
            ("data offset too small", tcp4(bytes(36), data_offset=4)),
        )
    ),
    *(
        Directed(
            f"overtaking: udp{version} {name}",
            Difference.OVERTAKING,
            _udp_between(version, **fields),
            [fields.get("size", 40), 200],
            [100, fields.get("size", 40), 100],
        )
        for version in (4, 6)
        for name, fields in (
            ("without a checksum", {"checksum": 0}),
            ("bad checksum", {"checksum": 0x1234}),
            ("length field too small", {"udp_length": 47}),
            ("empty", {"size": 0}),
        )
    ),
    Directed(
        "urgent pointer",
        Difference.URGENT_POINTER,
        _tcp(2, p1={"urgent": 7}),
        [200],
        [100, 100],
    ),
    *(
        Directed(
            f"tcp{version} checksum of ones",
            Difference.ONES_CHECKSUM,
            _zero_checksums(version, TCP, 0xFFFF),
            [200],
            [100, 100],
        )
        for version in (4, 6)
    ),
    Directed(
        "IPv4 header checksum of ones",
        Difference.ONES_CHECKSUM,
        _header_checksum_of_ones(),
        [200],
        [100, 100],
    ),
    Directed(
        "flow label",
        Difference.FLOW_LABEL,
        _tcp(3, version=6, p1={"flow_label": 5, "seq": 700}, p2={"seq": 100}),
        [200, 100],
        [100, 100, 100],
    ),
    Directed(
        "extension headers",
        Difference.EXTENSION_HEADERS,
        _tcp(
            3,
            version=6,
            p0={"extensions": [_OPTIONS]},
            p1={"extensions": [_OTHER_OPTIONS], "seq": 700},
            p2={"extensions": [_OPTIONS], "seq": 100},
        ),
        [200, 100],
        [100, 100, 100],
    ),
    *(
        Directed(
            name,
            difference,
            _tcp(2, version=6, p0={"extensions": headers}, p1={"extensions": headers}),
            [200],
            [100, 100],
        )
        for name, difference, headers in (
            ("segment left in a routing header", Difference.ROUTING, [_SEGMENT_LEFT]),
            ("hop-by-hop second", Difference.HOP_BY_HOP, [_OPTIONS, (HOP_BY_HOP, PADDING)]),
            ("nine extension headers", Difference.LONG_HEADERS, [_OPTIONS] * 9),
            ("more than 256 bytes of headers", Difference.LONG_HEADERS, [_LONG_OPTIONS]),
        )
    ),
    Directed(
        "eviction",
        Difference.EVICTION,
        [
            tcp4(bytes(100), seq=start, ident=start // 100, sport=port)
            for start, ports in ((0, range(9)), (100, [0]))
            for port in ports
        ],
        [100] * 10,
        [200] + [100] * 8,
    ),
]


@pytest.mark.parametrize("case", DIRECTED, ids=lambda case: case.name)
def test_an_intended_difference_is_what_the_kernel_does_and_we_do_not(
    case: Directed, engine: Any, oracle: KernelOracle
) -> None:
    [kernel] = ask(oracle, [case.packets])
    [ours] = merge(engine, [case.packets])
    assert [payload_size(packet.data) for packet in kernel] == case.kernel
    assert [payload_size(packet.data) for packet in ours] == case.ours
    assert explain(case.packets, kernel, ours) == case.difference.value


def test_every_intended_difference_has_a_directed_test() -> None:
    assert {case.difference for case in DIRECTED} == set(Difference)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("protocol", "canonical"), [(TCP, 0), (UDP, 0xFFFF)])
def test_the_canonical_spelling_of_a_zero_checksum_merges_in_both(
    version: int, protocol: int, canonical: int, engine: Any, oracle: KernelOracle
) -> None:
    packets = _zero_checksums(version, protocol, canonical)
    [kernel] = ask(oracle, [packets])
    assert len(kernel) == 1
    assert list(merge(engine, [packets])) == [kernel]


def test_a_barrier_closes_flows_that_the_kernel_keeps_open(
    engine: Any, oracle: KernelOracle
) -> None:
    first, second = _tcp(2)
    stranger = tcp4(bytes(40), source="192.0.2.1", mf=True)
    [kernel] = ask(oracle, [[first, stranger, second]])
    assert [payload_size(packet.data) for packet in kernel] == [40, 200]
    [ours] = merge(engine, [[first, stranger, second]])
    assert [payload_size(packet.data) for packet in ours] == [100, 40, 100]


def test_a_vlan_priority_that_changes_is_another_flow_to_the_kernel_only(engine: Any) -> None:
    require(availability())

    def frame(number: int, priority: int) -> bytes:
        return ethernet(
            tcp4(bytes(100), seq=100 * number, ident=number), tags=[(DOT1Q, priority << 13 | 5)]
        )

    steady = [frame(0, 0), frame(1, 0)]
    changed = [frame(0, 0), frame(7, 3), frame(1, 0)]
    with KernelOracle(devices=2, link="ethernet") as oracle:
        sizes = [
            [payload_size(packet.data[14:]) for packet in delivered]
            for delivered in oracle.run([steady, changed])
        ]
    if sizes[0] == [200]:
        assert sizes[1] == [200, 100]
    else:  # built without CONFIG_VLAN_8021Q, or its module is not loaded: tagged is unknown
        assert sizes == [[100, 100], [100, 100, 100]]
    merged = merge(engine, [steady, changed], link="ethernet")
    ours = [[payload_size(packet.data[18:]) for packet in delivered] for delivered in merged]
    assert ours == [[200], [100, 100, 100]]


# --- the oracle itself -------------------------------------------------------------------------


def test_the_oracle_keeps_sequences_apart(oracle: KernelOracle) -> None:
    packets = _tcp(40)
    for delivered in oracle.run([[packet] for packet in packets]):
        assert len(delivered) == 1
        assert delivered[0].virtio.gso_type == 0
    [delivered] = oracle.run([packets])
    assert [payload_size(packet.data) for packet in delivered] == [4000]


def test_the_oracle_leaves_nothing_behind() -> None:
    require(availability())
    before = set(Path("/sys/class/net").iterdir())
    oracle = KernelOracle(devices=2)
    process = oracle._process
    assert set(Path("/sys/class/net").iterdir()) == before  # its devices are in its own namespace
    oracle.run([_tcp(2)])
    oracle.close()
    oracle.close()
    assert process.returncode == 0


def test_a_packet_that_no_tun_takes_is_an_error_of_the_oracle() -> None:
    require(availability())
    with KernelOracle(devices=1) as oracle, pytest.raises(OracleError, match="Invalid argument"):
        oracle.run([[b"\x10" + bytes(39)]])
