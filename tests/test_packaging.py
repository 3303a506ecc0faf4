"""What is built, shipped and exported, and that the build survives what it may meet."""

import ast
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

import netstack_gro
from netstack_gro._speed import HOT_MODULES
from tests.freshness import compiled_modules, module_name

NATIVE_SUFFIX = EXTENSION_SUFFIXES[0]
PACKAGE = Path(netstack_gro.__file__).parent
SMOKE = Path(__file__).with_name("smoke.py")

PUBLIC_NAMES = [
    "Batch",
    "CaptureError",
    "CaptureFormatError",
    "CaptureTruncatedError",
    "ChecksumState",
    "CloseReason",
    "ConfigError",
    "DeviceDownError",
    "DeviceError",
    "DeviceGoneError",
    "EngineStateError",
    "Flow",
    "GroConfig",
    "GroDispatcher",
    "GroError",
    "GsoError",
    "GsoType",
    "Hook",
    "IpIdMode",
    "Limits",
    "Link",
    "NotPermittedError",
    "Packet",
    "PinnedError",
    "Sink",
    "Stats",
    "UdpSendError",
    "UnsupportedError",
    "UnsupportedLinkTypeError",
    "Verdict",
    "VirtioHeader",
    "VirtioHeaderError",
    "__compiled__",
    "__version__",
    "complete_checksum",
    "segment",
]

needs_compiler = pytest.mark.skipif(
    not netstack_gro.__compiled__ and not any(PACKAGE.glob(f"gro{NATIVE_SUFFIX}")),
    reason="nothing was compiled here, so there may be no compiler",
)


def test_the_public_names_are_these() -> None:
    assert netstack_gro.__all__ == PUBLIC_NAMES
    for name in PUBLIC_NAMES:
        assert hasattr(netstack_gro, name)


def test_every_error_is_exported() -> None:
    assert set(netstack_gro.errors.__all__) <= set(PUBLIC_NAMES)


def test_the_version_is_the_installed_one() -> None:
    assert metadata.version("netstack-gro") == netstack_gro.__version__


def test_the_version_is_the_one_in_pyproject(checkout: Path) -> None:
    assert _pyproject(checkout)["project"]["version"] == netstack_gro.__version__


def test_the_version_is_in_the_changelog(checkout: Path) -> None:
    assert f"## {netstack_gro.__version__}" in (checkout / "CHANGELOG.md").read_text("utf-8")


def test_there_are_no_dependencies_and_an_extra_for_each_library_that_is_used(
    checkout: Path,
) -> None:
    project = _pyproject(checkout)["project"]
    assert project["dependencies"] == []
    assert set(project["optional-dependencies"]) == {"aioquic", "cli", "pytcp"}


def test_only_the_command_and_adapters_import_from_outside_the_standard_library() -> None:
    allowed = {*sys.stdlib_module_names, "netstack_gro"}
    # A walk does not follow the link to dispatchers; in an installed copy it is a folder.
    for source in {*PACKAGE.rglob("*.py"), *(PACKAGE / "dispatchers").rglob("*.py")}:
        tree = ast.parse(source.read_text("utf-8"))
        for_checkers = {
            id(child)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for child in node.body
        }
        for node in ast.walk(tree):
            if id(node) in for_checkers:
                continue
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{source.name} has a relative import"
                names = [node.module or ""]
            foreign = {name.partition(".")[0] for name in names} - allowed
            if foreign:
                if source.parent == PACKAGE / "adapters":
                    assert foreign == {source.stem}, source  # which is named for it
                    continue
                assert foreign == {"rich"}, source
                assert source.parent in {PACKAGE, PACKAGE / "commands"}, source


def test_every_package_is_listed(checkout: Path) -> None:
    settings = _pyproject(checkout)["tool"]["setuptools"]
    folders = {
        path.parent.relative_to(checkout)
        for top in ("netstack_gro", "dispatchers")
        for path in (checkout / top).rglob("__init__.py")
    }
    names = {
        ".".join(("netstack_gro", *parts) if parts[0] == "dispatchers" else parts)
        for parts in (folder.parts for folder in folders)
    }
    assert sorted(settings["packages"]) == sorted(names)


def test_the_link_to_dispatchers_is_committed_as_a_link(checkout: Path) -> None:
    link = checkout / "netstack_gro" / "dispatchers"
    assert link.is_symlink()
    assert link.readlink() == Path("../dispatchers")


# --- builds ------------------------------------------------------------------------------------


def _pyproject(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text("utf-8"))


def _run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("NETSTACK_GRO_") and name not in {"CC", "CFLAGS", "PYTHONPATH"}
    }
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=variables | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _wheel(tree: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel of ``tree`` into ``tree/out``, with the build needs of this environment."""
    options = ("--no-deps", "--no-build-isolation", "--no-cache-dir", "--verbose")
    return _run(
        *(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", tree / "out", tree),
        cwd=tree,
        CFLAGS="-O0",
        **environment,
    )


def _built(tree: Path) -> Path:
    [wheel] = (tree / "out").glob("*.whl")
    return wheel


def _extensions(wheel: Path) -> set[str]:
    """The names of the compiled modules in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        paths = [Path(name) for name in archive.namelist() if name.endswith((".so", ".pyd"))]
    return {".".join((*path.parts[1:-1], path.name.partition(".")[0])) for path in paths}


def _engine_of_installed(wheel: Path, tmp_path: Path) -> str:
    """Install ``wheel`` into an environment of its own, merge two segments, name the engine."""
    environment = tmp_path / "environment"
    made = _run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    installed = _run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", wheel),
        cwd=tmp_path,
    )
    assert installed.returncode == 0, installed.stderr
    smoke = _run(python, SMOKE, cwd=tmp_path)
    assert smoke.returncode == 0, smoke.stderr
    return smoke.stdout.strip()


def _break_in_c(tree: Path, name: str) -> None:
    """Make one module that Python runs and Cython translates fail in the C compiler."""
    with (tree / "netstack_gro" / f"{name}.pxd").open("a", encoding="utf-8") as types:
        types.write('\ncdef extern from *:\n    """\n    #error broken on purpose\n    """\n')


@pytest.mark.packaging
@needs_compiler
def test_one_module_that_does_not_compile_leaves_a_working_interpreted_install(
    tree: Path, tmp_path: Path
) -> None:
    _break_in_c(tree, "tcp")
    result = _wheel(tree)
    assert result.returncode == 0, result.stderr
    assert "no compiled modules, the interpreted engine will run" in result.stdout + result.stderr
    assert _built(tree).name == f"netstack_gro-{netstack_gro.__version__}-py3-none-any.whl"
    assert _extensions(_built(tree)) == set()
    assert _engine_of_installed(_built(tree), tmp_path) == "interpreted"


@pytest.mark.packaging
@needs_compiler
def test_one_module_that_does_not_compile_fails_a_build_that_must_be_compiled(tree: Path) -> None:
    _break_in_c(tree, "tcp")
    result = _wheel(tree, NETSTACK_GRO_BUILD="compiled")
    assert result.returncode != 0
    assert "broken on purpose" in result.stdout + result.stderr
    assert not (tree / "out").exists() or not list((tree / "out").iterdir())


@pytest.mark.packaging
def test_a_failed_build_in_place_removes_modules_of_an_earlier_one(tree: Path) -> None:
    package = tree / "netstack_gro"
    for name in HOT_MODULES:
        *packages, module = name.split(".")
        package.joinpath(*packages, f"{module}{NATIVE_SUFFIX}").touch()
    foreign = package / "gro.cpython-32-none.so"
    foreign.touch()
    with (package / "tcp.pxd").open("a", encoding="utf-8") as types:
        types.write("\ncdef this is no declaration\n")
    result = _run(sys.executable, "setup.py", "build_ext", "--inplace", cwd=tree)
    assert result.returncode == 0, result.stderr
    assert "no compiled modules" in result.stderr
    assert compiled_modules(package) == []
    assert foreign.exists(), "a module of another Python was removed"


@pytest.mark.packaging
@needs_compiler
def test_a_build_in_place_removes_the_module_of_a_source_that_is_hot_no_longer(tree: Path) -> None:
    package = tree / "netstack_gro"
    (package / f"wire{NATIVE_SUFFIX}").touch()
    result = _run(
        *(sys.executable, "setup.py", "build_ext", "--inplace"),
        cwd=tree,
        CFLAGS="-O0",
        NETSTACK_GRO_BUILD="compiled",
    )
    assert result.returncode == 0, result.stderr
    left = [module_name(package, module) for module in compiled_modules(package)]
    assert sorted(left) == sorted(HOT_MODULES)


@pytest.mark.packaging
@pytest.mark.parametrize(
    "environment",
    [{"CC": "/bin/false"}, {"NETSTACK_GRO_BUILD": "interpreted"}],
    ids=["no compiler", "not wanted"],
)
def test_without_a_compiler_the_wheel_is_pure_and_works(
    tree: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    result = _wheel(tree, **environment)
    assert result.returncode == 0, result.stderr
    assert _built(tree).name.endswith("-py3-none-any.whl")
    assert _engine_of_installed(_built(tree), tmp_path) == "interpreted"


@pytest.mark.packaging
def test_without_cython_the_wheel_is_pure_and_works(tree: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "Cython"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('no Cython here')\n")
    result = _wheel(tree, PYTHONPATH=str(hidden.parent))
    assert result.returncode == 0, result.stderr
    assert "no Cython here" in result.stdout + result.stderr
    assert _engine_of_installed(_built(tree), tmp_path) == "interpreted"


@pytest.mark.packaging
@pytest.mark.parametrize("environment", [{"CC": "/bin/false"}, {"NETSTACK_GRO_BUILD": "turbo"}])
def test_a_build_that_must_be_compiled_or_is_misspelt_fails(
    tree: Path, environment: dict[str, str]
) -> None:
    result = _wheel(tree, **{"NETSTACK_GRO_BUILD": "compiled"} | environment)
    assert result.returncode != 0
    if "CC" not in environment:
        expected = "NETSTACK_GRO_BUILD=turbo is none of auto, compiled and interpreted"
        assert expected in result.stdout + result.stderr


@pytest.mark.packaging
@needs_compiler
def test_the_sdist_alone_makes_a_complete_compiled_wheel(tree: Path, tmp_path: Path) -> None:
    (tree / "netstack_gro" / f"gro{NATIVE_SUFFIX}").touch()  # must not get in
    made = _run(
        *(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path),
        cwd=tree,
    )
    assert made.returncode == 0, made.stderr
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
        archive.extractall(tmp_path / "unpacked", filter="data")
    sources, receivers = (
        {path.name for kind in ("*.py", "*.pxd", "*.h") for path in folder.glob(kind)}
        for folder in (PACKAGE, PACKAGE / "dispatchers")
    )
    assert {f"netstack_gro/{name}" for name in sources} <= members.keys()
    assert {f"dispatchers/{name}" for name in receivers} <= members.keys()
    assert {"netstack_gro/py.typed", "setup.py", "LICENSE", "README.md"} <= members.keys()
    assert members["dispatchers/__init__.py"].isreg()
    assert not [name for name, member in members.items() if member.issym() or ".so" in name]

    [unpacked] = (tmp_path / "unpacked").iterdir()
    result = _wheel(unpacked, NETSTACK_GRO_BUILD="compiled")
    assert result.returncode == 0, result.stderr
    wheel = _built(unpacked)
    assert "-none-any" not in wheel.name
    assert _extensions(wheel) == set(HOT_MODULES)
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    assert {f"netstack_gro/{name}" for name in sources} <= shipped
    assert {f"netstack_gro/dispatchers/{name}" for name in receivers} <= shipped
    assert "netstack_gro/py.typed" in shipped
    assert "netstack_gro/capture/__init__.py" in shipped
    assert not [name for name in shipped if name.startswith(("dispatchers/", "tests/"))]
    assert not [name for name in shipped if name.endswith(".c")]
    assert _engine_of_installed(wheel, tmp_path) == "compiled"
