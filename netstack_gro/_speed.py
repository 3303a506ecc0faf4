"""Which engine runs: the compiled hot modules or the interpreted ones, never some of each.

A compiled module that cimports a class from an interpreted one would write at C offsets into a
Python object, so this is settled before the first hot module is imported. Importing this module
has no effect and needs the standard library only: setup.py reads `HOT_MODULES` from it.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from types import ModuleType

__all__ = ["HOT_MODULES", "INTERPRETED_VARIABLE", "SourceOnlyFinder", "select_engine"]

HOT_MODULES = (
    "batch",
    "buffers",
    "delivery",
    "describe",
    "dispatchers.blocks",
    "dispatchers.frames",
    "dispatchers.messages",
    "dispatchers.outgoing",
    "dispatchers.reads",
    "dispatchers.train_reader",
    "dispatchers.trains",
    "engine",
    "gro",
    "gso",
    "headers",
    "merge",
    "outbox",
    "packet",
    "table",
    "tcp",
    "udp",
)
"""The modules of `netstack_gro` that the build compiles, all or none."""

INTERPRETED_VARIABLE = "NETSTACK_GRO_INTERPRETED"

_PACKAGE = "netstack_gro"
_REMEDY = (
    "install the package again (in a checkout: make venv), "
    f"or set {INTERPRETED_VARIABLE}=1 to run without compiled modules"
)


class SourceOnlyFinder:
    """A meta path finder that sees the ``.py`` files of the hot modules and nothing else.

    Put before the others, it hides the compiled modules that lie beside the sources.
    """

    def __init__(self) -> None:
        self._folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a hot module's source file; None for every other name."""
        del path, target
        package, _, name = fullname.partition(".")
        if package != _PACKAGE or name not in HOT_MODULES:
            return None
        source = os.path.join(self._folder, *name.split(".")) + ".py"  # noqa: PTH118
        if not os.path.isfile(source):  # noqa: PTH113
            return None
        return spec_from_file_location(fullname, source, loader=SourceFileLoader(fullname, source))


def select_engine() -> bool:
    """Settle which engine this process runs; True when it is the compiled one.

    With the environment variable NETSTACK_GRO_INTERPRETED set to anything but 0, the compiled
    modules are hidden. Raises ImportError when the hot modules are not all of one kind.
    """
    forced = os.environ.get(INTERPRETED_VARIABLE, "0") not in {"", "0"}
    if forced and not any(isinstance(finder, SourceOnlyFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, SourceOnlyFinder())  # type: ignore[arg-type,unused-ignore]

    specs = {name: _find(name) for name in HOT_MODULES}
    missing = [name for name, spec in specs.items() if spec is None]
    compiled = [name for name, spec in specs.items() if spec and _is_compiled(spec)]
    if missing:
        raise ImportError(f"{_PACKAGE} is damaged: no module {_listed(missing)}; {_REMEDY}")
    if not compiled:
        return False
    if len(compiled) < len(HOT_MODULES):
        interpreted = [name for name in HOT_MODULES if name not in compiled]
        raise ImportError(
            f"{_PACKAGE} has compiled modules ({_listed(compiled)}) beside interpreted ones "
            f"({_listed(interpreted)}), which cannot work together; {_REMEDY}"
        )
    if forced:
        raise ImportError(
            f"{INTERPRETED_VARIABLE} is set, but the sources of {_PACKAGE} are not installed"
        )
    return True


def _find(name: str) -> ModuleSpec | None:
    """The spec of a hot module. Its parents, which may need an engine, are not imported."""
    fullname = f"{_PACKAGE}.{name}"
    for finder in sys.meta_path:
        if isinstance(finder, SourceOnlyFinder):
            spec = finder.find_spec(fullname)
            if spec is not None:
                return spec
    package = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    folder = os.path.join(package, *name.split(".")[:-1])  # noqa: PTH118
    return PathFinder.find_spec(fullname, [folder])


def _is_compiled(spec: ModuleSpec) -> bool:
    return spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))


def _listed(names: list[str]) -> str:
    return ", ".join(f"{_PACKAGE}.{name}" for name in names)
