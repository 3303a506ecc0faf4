"""The public interface is the same at both speeds: names, parameters, defaults, documentation.

A compiled class has no signature of its own; its constructor is held to the same calls.
"""

import inspect
from typing import Any

import pytest

from netstack_gro.config import GroConfig
from tests.engines import Engine
from tests.flushes import Recorder


def parameters(function: Any) -> list[tuple[Any, ...]]:
    signature = inspect.signature(function)
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


@pytest.mark.parametrize("name", ["GroDispatcher", "Batch", "Packet"])
def test_both_engines_have_the_same_public_class(
    both_engines: tuple[Engine, Engine], name: str
) -> None:
    one, other = (getattr(engine, name) for engine in both_engines)
    members = [member for member in dir(other) if not member.startswith("_")]
    assert [member for member in dir(one) if not member.startswith("_")] == members
    assert inspect.getdoc(one) == inspect.getdoc(other)
    for member in members:
        ours, theirs = inspect.getattr_static(one, member), inspect.getattr_static(other, member)
        assert inspect.getdoc(ours) == inspect.getdoc(theirs), member
        if not isinstance(theirs, property):
            assert parameters(getattr(one, member)) == parameters(getattr(other, member)), member


def test_both_engines_take_the_same_arguments_to_make_something(
    both_engines: tuple[Engine, Engine],
) -> None:
    for engine in both_engines:
        gro = engine.GroDispatcher(hook=Recorder(), config=GroConfig(capacity=2))
        assert gro.config.capacity == 2
        batch = engine.Batch(slab=bytearray(4), capacity=3, max_slabs=2)
        assert (batch.capacity, len(batch.slab)) == (3, 4)
        for make in (
            engine.GroDispatcher,
            lambda engine=engine: engine.GroDispatcher(Recorder(), GroConfig(), 1),
            lambda engine=engine: engine.GroDispatcher(Recorder(), link="ip"),
            lambda engine=engine: engine.Batch(None, 5),
            lambda engine=engine: engine.Batch(size=5),
        ):
            with pytest.raises(TypeError):
                make()


@pytest.mark.parametrize("name", ["segment", "complete_checksum"])
def test_both_engines_have_the_same_public_function(
    both_engines: tuple[Engine, Engine], name: str
) -> None:
    one, other = (getattr(engine, name) for engine in both_engines)
    assert inspect.getdoc(one) == inspect.getdoc(other)
    assert parameters(one) == parameters(other)


def test_both_engines_export_the_same_names(both_engines: tuple[Engine, Engine]) -> None:
    one, other = both_engines
    assert one.__all__ == other.__all__
    assert (one.__compiled__, other.__compiled__) == (True, False)


@pytest.mark.parametrize("name", ["GroDispatcher", "Batch", "Packet"])
def test_nobody_derives_from_a_class_of_an_engine(engine: Engine, name: str) -> None:
    kind = getattr(engine, name)
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Derived", (kind,), {})
