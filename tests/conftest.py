"""What every test has: both engines, a fixed Hypothesis profile, and no stale compiled module."""

import importlib.util
import os
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import hypothesis
import pytest

from tests.freshness import staleness


def _refuse_stale_modules() -> None:
    """Before the first import of the package: a stale module may do anything, crash included."""
    spec = importlib.util.find_spec("netstack_gro")
    if spec is None or spec.origin is None:
        sys.exit("netstack_gro is not installed: run `make venv`")
    package = Path(spec.origin).parent
    # An installed copy has the times of its installation, which say nothing.
    in_use = os.environ.get("NETSTACK_GRO_INTERPRETED", "0") in {"", "0"}
    if in_use and (package.parent / "pyproject.toml").exists():
        fault = staleness(package)
        if fault:
            sys.exit(f"{fault}: run `make venv` (or install the package again)")


_refuse_stale_modules()

import netstack_gro  # noqa: E402
from tests.engines import ENGINES, Engine, load  # noqa: E402
from tests.requirements import require_both_engines  # noqa: E402

hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engine",
        choices=("all", "compiled", "interpreted"),
        default="all",
        help="the engines that the fixture `engine` gives (default: all that can run here)",
    )


def pytest_configure(config: pytest.Config) -> None:
    wanted = config.getoption("engine")
    if wanted not in {"all", *ENGINES}:
        raise pytest.UsageError(f"--engine={wanted}: this process can run {' and '.join(ENGINES)}")


def pytest_report_header(config: pytest.Config) -> str:
    engines = ENGINES if config.getoption("engine") == "all" else [config.getoption("engine")]
    return f"netstack-gro: {Path(netstack_gro.__file__).parent}, engine {' and '.join(engines)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "engine" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("engine")
        names = ENGINES if wanted == "all" else (wanted,)
        metafunc.parametrize("engine", names, indirect=True, scope="session")


NETWORKS = ("lab", "cables", "receivers", "rings", "tuns", "forwarder", "transfer", "vpn_net")
"""Helpers of the tests that make networks: who imports one talks to a running kernel."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    helpers = {f"tests.{name}" for name in NETWORKS}
    for item in items:
        if isinstance(item, pytest.Function):
            known = vars(item.module).values()
            named = {getattr(value, "__name__", None) for value in known}
            named |= {getattr(value, "__module__", None) for value in known}
            if not helpers.isdisjoint(named):
                item.add_marker("live")


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn, by the names of `netstack_gro`: ``engine.GroDispatcher``."""
    return load(request.param)


@pytest.fixture(scope="session")
def both_engines() -> tuple[Engine, Engine]:
    """The compiled and the interpreted engine, in one process."""
    require_both_engines(len(ENGINES))
    return load("compiled"), load("interpreted")


# --- the checkout ------------------------------------------------------------------------------

PROJECT_FILES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the source tree that the tests lie in."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "setup.py").exists():
        pytest.skip("the tests lie outside a source tree")
    return root


@pytest.fixture
def tree(checkout: Path, tmp_path: Path) -> Path:
    """A copy of the source tree without compiled modules, to build from and to damage."""
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in PROJECT_FILES:
        shutil.copy2(checkout / name, copy)
    compiled = shutil.ignore_patterns(
        "__pycache__", *(f"*{suffix}" for suffix in EXTENSION_SUFFIXES)
    )
    for folder in ("netstack_gro", "dispatchers"):
        shutil.copytree(checkout / folder, copy / folder, symlinks=True, ignore=compiled)
    return copy
