"""Both engines in one process: the one that this process runs, and the interpreted one beside it.

The hot modules exist once in `sys.modules`, so a second engine is a second, consistent family of
modules: the hot ones, the package that exports them, and whatever imports either. Modules that
know no engine (errors, enums, configuration, captures) are shared, so that values of one engine
compare equal to those of the other.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import netstack_gro
from netstack_gro import _speed
from tests.import_graph import imports, knowing_an_engine

_GRAPH = imports(Path(netstack_gro.__file__).parent)
SHARED = frozenset(_GRAPH.keys() - knowing_an_engine(_GRAPH))
"""Modules that import no hot module, not even through others."""

ENGINES = ("compiled", "interpreted") if netstack_gro.__compiled__ else ("interpreted",)
"""The names of the engines that can run in this process, the process's own first."""


class Engine:
    """One engine, by the names of `netstack_gro`: ``engine.GroDispatcher``, ``engine.segment``."""

    def __init__(self, package: ModuleType, family: Mapping[str, ModuleType] | None) -> None:
        self._package = package
        self._family = None if family is None else dict(family)

    @property
    def name(self) -> str:
        return "compiled" if self._package.__compiled__ else "interpreted"

    def module(self, name: str) -> ModuleType:
        """The module ``netstack_gro.NAME`` (a hot one, or one that uses it) with this engine."""
        with self._in_place():
            return import_module(f"netstack_gro.{name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._package, name)

    def __repr__(self) -> str:
        return f"<{self.name} engine>"

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        """For the time of an import: this engine's family under the package's names."""
        if self._family is None:
            yield
            return
        finder = _speed.SourceOnlyFinder()
        others = _take_family()
        sys.modules.update(self._family)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            self._family = _take_family()
            sys.modules.update(others)


def load(name: str) -> Engine:
    """The engine called ``name``, one of `ENGINES`; the same object at every call."""
    if name not in _loaded:
        _loaded[name] = (
            Engine(netstack_gro, None) if name == ENGINES[0] else _load_interpreted_beside()
        )
    return _loaded[name]


_loaded: dict[str, Engine] = {}


def _take_family() -> dict[str, ModuleType]:
    """Remove from sys.modules the package and all its modules that know an engine."""
    names = [
        name
        for name in sys.modules
        if name.partition(".")[0] == "netstack_gro" and name not in SHARED
    ]
    return {name: sys.modules.pop(name) for name in names}


def _load_interpreted_beside() -> Engine:
    engine = Engine(netstack_gro, {})
    with engine._in_place():
        package = import_module("netstack_gro")
        for name in _speed.HOT_MODULES:
            import_module(f"netstack_gro.{name}")
        for name in SHARED & sys.modules.keys():
            parent, _, member = name.rpartition(".")
            if parent == "netstack_gro":
                setattr(package, member, sys.modules[name])
    engine._package = package
    return engine
