"""Whether compiled modules are what the sources beside them say. Imports nothing of the package."""

import runpy
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def hot_modules(package: Path) -> tuple[str, ...]:
    """The names of the modules that are compiled, read without importing the package."""
    names: tuple[str, ...] = runpy.run_path(str(package / "_speed.py"))["HOT_MODULES"]
    return names


def staleness(package: Path) -> str | None:
    """Why the compiled modules in the folder ``package`` must not be used; None when they may."""
    hot = hot_modules(package)
    types = [
        path
        for folder in _folders(package)
        for kind in ("*.pxd", "*.h")
        for path in folder.glob(kind)
    ]
    for module in compiled_modules(package):
        name = module_name(package, module)
        if name not in hot:
            return f"{module.name} shadows {name}.py, which is not compiled"
        newest = max([package.joinpath(*name.split(".")).with_suffix(".py"), *types], key=_modified)
        if _modified(module) < _modified(newest):
            return f"{module.name} is older than {newest.name}"
    return None


def compiled_modules(package: Path) -> list[Path]:
    """The extension modules in ``package`` that this Python would import."""
    return sorted(
        path
        for folder in _folders(package)
        for suffix in EXTENSION_SUFFIXES
        for path in folder.glob(f"*{suffix}")
        if path.name == path.name.partition(".")[0] + suffix
    )


def module_name(package: Path, module: Path) -> str:
    """The name below the package of an extension module, such as ``dispatchers.frames``."""
    stem = module.name.partition(".")[0]
    return ".".join((*module.parent.relative_to(package).parts, stem))


def _folders(package: Path) -> list[Path]:
    """Where compiled modules may lie; a glob would not follow the link to dispatchers."""
    return [package, package / "dispatchers"]


def _modified(path: Path) -> int:
    return path.stat().st_mtime_ns
