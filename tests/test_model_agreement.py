"""The engine against the model of the merge rules: what is merged, in which order, and why."""

import os
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings

from netstack_gro.config import ChecksumState, GroConfig
from netstack_gro.verdicts import Verdict
from tests.engines import Engine
from tests.invariants import (
    Delivered,
    Recorder,
    Violation,
    cases,
    check_conservation,
    feed,
    received_state,
)
from tests.model import Observed, coalesce, deliver, difference
from tests.traffic import LINKS, TrafficPacket, generate

pytestmark = pytest.mark.slow  # as a whole

SEED = int(os.environ.get("NETSTACK_GRO_TEST_SEED", "1"))
PACKETS = int(os.environ.get("NETSTACK_GRO_TEST_PACKETS", "100000"))
SETTINGS = (
    {},
    {"received_checksums": "trust"},
    {"delivered_checksums": "partial"},
    {"fixed_ip_ids": "df", "max_size": 9000},
    {"fixed_ip_ids": "refuse", "max_frame": 1514, "max_tcp_segments": 17, "max_udp_segments": 2},
    {"max_tcp_segments": 1, "max_udp_segments": 1, "max_size": 300},
    {"tcp": False},
    {"udp": False},
)


def compare(
    packets: Sequence[TrafficPacket],
    delivered: Sequence[Delivered],
    config: GroConfig,
    way: str,
    engine: Engine,
) -> None:
    """Raise where the engine and the model disagree about one batch."""
    expected = deliver(packets, config, dispatched=way != "enqueue")
    groups = check_conservation(packets, delivered)
    observed = [
        Observed(tuple(group), packet.verdict, packet.closed_by)
        for group, packet in zip(groups, delivered, strict=True)
    ]
    disagreement = difference(expected, observed)
    if disagreement:
        raise Violation(disagreement)
    for group, packet in zip(expected, delivered, strict=True):
        if packet.verdict is not Verdict.MERGED:
            continue
        if (packet.gso_size, packet.ip_id_mode) != (group.gso_size, group.ip_id_mode):
            raise Violation(f"{packet.gso_size}, {packet.ip_id_mode!r} in place of {group}")
        inputs = [packets[index] for index in group.inputs]
        if group.checksum is not ChecksumState.VERIFIED and packet.length < 20000:
            whole = coalesce([given.data for given in inputs], config.link)
            if engine.complete_checksum(packet.data, packet.virtio) != whole:
                raise Violation(f"{packet.data[:120].hex()} in place of {whole[:120].hex()}")
        if {received_state(given, config) for given in inputs} != {group.checksum}:
            raise Violation(f"inputs {group.inputs} do not have one state")


@pytest.mark.parametrize("link", LINKS)
def test_engine_and_model_agree_over_seeded_traffic(engine: Engine, link: str) -> None:
    seed = SEED * len(LINKS) + LINKS.index(link)
    print(f"NETSTACK_GRO_TEST_SEED={SEED} NETSTACK_GRO_TEST_PACKETS={PACKETS}")
    rng = random.Random(seed)
    runs = []
    for fields in SETTINGS:
        config = GroConfig(**{"link": link, "udp": True} | fields)
        recorder = Recorder()
        recorder.detach = True
        runs.append((config, recorder, engine.GroDispatcher(recorder, config)))
    for number, packets in enumerate(generate(seed, PACKETS // len(LINKS), link=link)):
        config, recorder, gro = rng.choice(runs)
        way = rng.choice(("append", "enqueue"))
        feed(engine, gro, packets, way)
        try:
            compare(packets, recorder.take(), config, way, engine)
        except Violation as error:
            error.add_note(f"batch {number} of seed {seed}, given by {way!r}, under {config}")
            raise


@settings(max_examples=300)
@given(case=cases())
def test_engine_and_model_agree(
    engine: Engine, case: tuple[list[TrafficPacket], GroConfig]
) -> None:
    packets, config = case
    config = replace(config, capacity=1024)
    for way in ("append", "enqueue"):
        recorder = Recorder()
        feed(engine, engine.GroDispatcher(recorder, config), packets, way)
        compare(packets, recorder.take(), config, way, engine)


def test_a_batch_beyond_the_capacity_is_that_many_batches(engine: Engine) -> None:
    config = GroConfig(capacity=7, udp=True)
    for packets in generate(3, 2000, max_batch=40):
        recorder = Recorder()
        feed(engine, engine.GroDispatcher(recorder, config), packets, "append")
        pieces = [packets[at : at + 7] for at in range(0, len(packets), 7)]
        assert len(recorder.flushes) == len(pieces)
        for piece, delivered in zip(pieces, recorder.flushes, strict=True):
            compare(piece, delivered, config, "append", engine)
