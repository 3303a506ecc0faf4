"""Which engine runs: selection, refusal of a mixture, and two engines in one process."""

import importlib
import os
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import netstack_gro
from netstack_gro._speed import HOT_MODULES, SourceOnlyFinder
from tests.engines import ENGINES, SHARED, Engine, load
from tests.freshness import staleness

NATIVE_SUFFIX = EXTENSION_SUFFIXES[0]
PACKAGE = Path(netstack_gro.__file__).parent


def run_python(code: str, path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with ``path`` before everything else that could hold the package."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("NETSTACK_GRO_")}
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{code}"],
        env=variables | environment,
        cwd=path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def extension(tree: Path, name: str, suffix: str = NATIVE_SUFFIX) -> Path:
    """Where the compiled form of a hot module lies in a source tree."""
    *packages, module = name.split(".")
    return tree.joinpath("netstack_gro", *packages, f"{module}{suffix}")


WHERE_FROM = f"""
import netstack_gro, importlib
modules = [importlib.import_module("netstack_gro." + name) for name in {HOT_MODULES!r}]
print(netstack_gro.__compiled__, *sorted({{module.__file__.endswith(".py") for module in modules}}))
"""


def test_the_hot_modules_are_of_the_kind_that_the_package_says() -> None:
    files = [importlib.import_module(f"netstack_gro.{name}").__file__ for name in HOT_MODULES]
    interpreted = {file is not None and file.endswith(".py") for file in files}
    assert interpreted == {not netstack_gro.__compiled__}


@pytest.mark.parametrize(
    ("value", "forced"), [("1", True), ("yes", True), ("0", False), ("", False)]
)
def test_the_variable_forces_the_interpreted_engine(value: str, forced: bool) -> None:
    result = run_python(WHERE_FROM, PACKAGE.parent, NETSTACK_GRO_INTERPRETED=value)
    compiled = not forced and any(PACKAGE.glob(f"gro{NATIVE_SUFFIX}"))
    assert result.stderr == ""
    assert result.stdout.split() == [str(compiled), str(not compiled)]


def test_the_finder_sees_hot_modules_only() -> None:
    finder = SourceOnlyFinder()
    spec = finder.find_spec("netstack_gro.gro")
    assert spec is not None
    assert spec.origin == str(PACKAGE.resolve() / "gro.py")
    within = finder.find_spec("netstack_gro.dispatchers.frames")
    assert within is not None
    assert within.origin == str(PACKAGE.resolve() / "dispatchers" / "frames.py")
    for other in ("netstack_gro.config", "netstack_gro", "gro", "other.gro", "netstack_gro.x.gro"):
        assert finder.find_spec(other) is None


@pytest.mark.parametrize("present", [("gro",), tuple(HOT_MODULES[1:])])
def test_a_mixture_of_kinds_is_refused_by_name(tree: Path, present: tuple[str, ...]) -> None:
    for name in present:  # empty files: refused before one is loaded
        extension(tree, name).touch()
    result = run_python("import netstack_gro", tree)
    absent = [name for name in HOT_MODULES if name not in present]
    assert result.returncode == 1
    assert "ImportError: netstack_gro has compiled modules" in result.stderr
    assert f"({', '.join(f'netstack_gro.{name}' for name in present)}) beside" in result.stderr
    assert f"({', '.join(f'netstack_gro.{name}' for name in absent)}), which" in result.stderr
    assert "NETSTACK_GRO_INTERPRETED=1" in result.stderr


def test_a_mixture_of_kinds_still_runs_interpreted_when_asked_to(tree: Path) -> None:
    (tree / "netstack_gro" / f"gro{NATIVE_SUFFIX}").touch()
    result = run_python(WHERE_FROM, tree, NETSTACK_GRO_INTERPRETED="1")
    assert (result.stdout.split(), result.stderr) == (["False", "True"], "")


def test_a_missing_hot_module_is_named(tree: Path) -> None:
    (tree / "netstack_gro" / "udp.py").unlink()
    result = run_python("import netstack_gro", tree)
    assert "ImportError: netstack_gro is damaged: no module netstack_gro.udp" in result.stderr


def test_compiled_modules_without_sources_cannot_be_forced_to_interpret(tree: Path) -> None:
    for name in HOT_MODULES:
        extension(tree, name, ".py").unlink()
        extension(tree, name).touch()
    result = run_python("import netstack_gro", tree, NETSTACK_GRO_INTERPRETED="1")
    assert "ImportError: NETSTACK_GRO_INTERPRETED is set, but the sources" in result.stderr


@pytest.mark.parametrize("edited", ["gro.py", "wire.pxd", "_wire.h"])
def test_a_compiled_module_older_than_its_source_is_refused(tree: Path, edited: str) -> None:
    package = tree / "netstack_gro"
    module = package / f"gro{NATIVE_SUFFIX}"
    module.touch()
    assert staleness(package) is None
    later = module.stat().st_mtime_ns + 1
    os.utime(package / edited, ns=(later, later))
    assert staleness(package) == f"{module.name} is older than {edited}"


def test_an_edited_source_of_another_module_makes_nothing_stale(tree: Path) -> None:
    package = tree / "netstack_gro"
    module = package / f"gro{NATIVE_SUFFIX}"
    module.touch()
    later = module.stat().st_mtime_ns + 1
    os.utime(package / "config.py", ns=(later, later))
    assert staleness(package) is None


def test_a_compiled_module_that_should_be_interpreted_is_refused(tree: Path) -> None:
    package = tree / "netstack_gro"
    (package / f"wire{NATIVE_SUFFIX}").touch()
    assert staleness(package) == f"wire{NATIVE_SUFFIX} shadows wire.py, which is not compiled"


def test_each_engine_is_what_its_name_says(engine: Engine) -> None:
    assert engine.name in ENGINES
    assert engine.__compiled__ is (engine.name == "compiled")
    for name in HOT_MODULES:
        file = engine.module(name).__file__
        assert file is not None
        assert file.endswith(".py") is (engine.name == "interpreted")


def test_two_engines_share_no_hot_class_and_all_values(
    both_engines: tuple[Engine, Engine],
) -> None:
    compiled, interpreted = both_engines
    for name in ("GroDispatcher", "Batch", "Packet", "segment", "complete_checksum"):
        assert getattr(compiled, name) is not getattr(interpreted, name)
    for name in ("Verdict", "GroConfig", "ConfigError", "Stats", "VirtioHeader", "Limits"):
        assert getattr(compiled, name) is getattr(interpreted, name)


def test_the_second_engine_uses_its_own_hot_modules_throughout(
    both_engines: tuple[Engine, Engine],
) -> None:
    del both_engines
    interpreted = load("interpreted")
    own = {f"netstack_gro.{name}": interpreted.module(name) for name in HOT_MODULES}
    for module in own.values():
        for value in vars(module).values():
            origin = getattr(value, "__module__", None) or getattr(value, "__name__", None)
            if origin in own:
                name = getattr(value, "__name__", "")
                assert value is own[origin] or vars(own[origin]).get(name) is value


def test_loading_a_second_engine_leaves_the_first_in_place() -> None:
    before = {name: module for name, module in sys.modules.items() if "netstack_gro" in name}
    finders = list(sys.meta_path)
    load(ENGINES[-1]).module("gso")
    assert {name: sys.modules[name] for name in before} == before
    assert sys.meta_path == finders
    assert sys.modules["netstack_gro"] is netstack_gro


def test_engines_share_the_modules_that_know_none() -> None:
    names = {name.removeprefix("netstack_gro.") for name in SHARED}
    assert {"_speed", "capture", "capture.pcapng", "config", "errors", "verdicts", "wire"} <= names
    assert not names & {"netstack_gro", "cli", "replay", "dispatchers", *HOT_MODULES}


def test_a_module_that_uses_an_engine_comes_with_each(engine: Engine) -> None:
    assert engine.module("dispatchers.capture").GroDispatcher is engine.GroDispatcher
    assert engine.module("dispatchers.capture") is engine.module("dispatchers.capture")
