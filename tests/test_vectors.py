"""Every row of the kernel's vector table, at both engines."""

from typing import Any

import pytest

from netstack_gro.config import GroConfig
from netstack_gro.verdicts import Verdict
from tests.engines import Engine
from tests.invariants import Recorder, check, feed
from tests.traffic import TrafficPacket
from tests.vectors import VECTORS, Vector, payload_size


def config_for(vector: Vector, **fields: Any) -> GroConfig:
    return GroConfig(link=vector.link, udp=vector.udp, **fields)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_a_vector_is_delivered_as_the_table_says(engine: Engine, vector: Vector) -> None:
    recorder = Recorder()
    gro = engine.GroDispatcher(recorder, config_for(vector))
    assert gro.dispatch(vector.packets) == len(vector.packets)
    assert [payload_size(packet.data) for packet in recorder.take()] == vector.expect


@pytest.mark.parametrize("way", ["append", "enqueue", "slab", "views"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_a_vector_is_restored_byte_for_byte(engine: Engine, vector: Vector, way: str) -> None:
    packets = [TrafficPacket(data, timestamp_ns=at) for at, data in enumerate(vector.packets)]
    for config in (config_for(vector), config_for(vector, delivered_checksums="partial")):
        recorder = Recorder()
        feed(engine, engine.GroDispatcher(recorder, config), packets, way)
        delivered = recorder.take()
        assert [payload_size(packet.data) for packet in delivered] == vector.expect
        check(packets, delivered, config, engine.segment)


@pytest.mark.parametrize("vector", [v for v in VECTORS if v.udp], ids=lambda vector: vector.name)
def test_a_udp_vector_is_left_alone_by_default(engine: Engine, vector: Vector) -> None:
    recorder = Recorder()
    engine.GroDispatcher(recorder).dispatch(vector.packets)
    delivered = recorder.take()
    assert [packet.data for packet in delivered] == vector.packets
    assert {packet.verdict for packet in delivered} == {Verdict.PROTOCOL_OFF}


def test_the_table_has_every_transport_and_family() -> None:
    for family in ("tcp4", "tcp6", "udp4", "udp6"):
        assert sum(vector.name.startswith(family) for vector in VECTORS) >= 4
