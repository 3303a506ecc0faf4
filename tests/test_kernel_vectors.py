"""The table of kernel vectors holds on the running kernel."""

import pytest

from tests.kernel_model import Model
from tests.kernel_oracle import KernelOracle, KernelPacket, availability
from tests.requirements import require
from tests.vectors import VECTORS, Vector, payload_size

pytestmark = pytest.mark.engineless

Answers = dict[str, list[KernelPacket]]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """What the kernel makes of each vector, by name."""
    require(availability())
    with KernelOracle() as oracle:
        delivered = oracle.run([vector.packets for vector in VECTORS])
    return {vector.name: packets for vector, packets in zip(VECTORS, delivered, strict=True)}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_kernel_delivers_what_the_table_says(vector: Vector, answers: Answers) -> None:
    delivered = answers[vector.name]
    assert [payload_size(packet.data) for packet in delivered] == vector.expected_of_kernel


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_kernel_describes_what_it_merged(vector: Vector, answers: Answers) -> None:
    sizes = [payload_size(packet) for packet in vector.packets]
    for packet in answers[vector.name]:
        if payload_size(packet.data) in sizes:
            assert packet.virtio.gso_size == 0
        else:
            assert packet.virtio.needs_csum
            assert packet.virtio.gso_size == max(sizes)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_model_predicts_what_the_table_says(vector: Vector) -> None:
    model = Model(vector.packets)
    assert [payload_size(packet.data) for packet in model.ours()] == vector.expect
    assert [payload_size(packet.data) for packet in model.kernel()] == vector.expected_of_kernel


def test_names_of_vectors_are_unique() -> None:
    assert len({vector.name for vector in VECTORS}) == len(VECTORS)


def test_a_vector_differs_from_the_kernel_exactly_where_it_says_so() -> None:
    for vector in VECTORS:
        assert (vector.kernel is None) == (vector.intended_difference is None), vector.name
