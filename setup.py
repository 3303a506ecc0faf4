"""Compiles the hot modules where that is possible; all static metadata is in pyproject.toml.

NETSTACK_GRO_BUILD says what to do: ``auto`` (default) compiles and, when anything at all goes
wrong, goes on with the interpreted engine; ``compiled`` fails instead; ``interpreted`` does not
try. Either all hot modules are compiled or none.
"""

import os
import runpy
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import product
from pathlib import Path
from shutil import copy2

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

PACKAGE = Path("netstack_gro")
HOT_MODULES = runpy.run_path(str(PACKAGE / "_speed.py"))["HOT_MODULES"]
# Where the modules of each package lie; netstack_gro/dispatchers is a link, which may be absent.
FOLDERS = {"": PACKAGE, "dispatchers": Path("dispatchers")}
C_TYPES = sorted(
    path.as_posix()
    for folder in FOLDERS.values()
    for kind in ("*.pxd", "*.h")
    for path in folder.glob(kind)
)

DIRECTIVES = {
    "language_level": 3,
    # Annotations are for people and type checkers; the .pxd alone types C.
    "annotation_typing": False,
    # A packet is validated once, in headers; after that, offsets are facts.
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "nonecheck": False,
    "binding": True,
    "embedsignature": False,
    # With one engine per thread, which the engine enforces.
    "freethreading_compatible": True,
}


class BuildExt(build_ext):
    """build_ext that ends with all hot modules compiled, or with none."""

    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def run(self):
        mode = os.environ.get("NETSTACK_GRO_BUILD") or "auto"
        if mode not in {"auto", "compiled", "interpreted"}:
            raise SystemExit(f"NETSTACK_GRO_BUILD={mode} is none of auto, compiled and interpreted")
        built = Path(self.build_lib) / PACKAGE
        folders = {package: [built / package] for package in FOLDERS}
        if self.inplace:
            for package, folder in FOLDERS.items():
                folders[package].append(folder)
        if mode == "interpreted":
            self._go_interpreted(folders, "NETSTACK_GRO_BUILD=interpreted")
            return
        if mode == "auto" and sys.implementation.name != "cpython":
            self._go_interpreted(folders, f"{sys.implementation.name} compiles them itself")
            return
        # A module that is hot no longer would still shadow its source.
        remove_extensions(folders, keep=HOT_MODULES)
        try:
            self._translate()
            super().run()
        except (Exception, SystemExit) as error:
            if mode == "compiled":
                raise
            self._go_interpreted(folders, f"{type(error).__name__}: {error}")

    def build_extensions(self):
        # -O3 vectorises the checksum loop. Never -march: a wheel runs on any machine of its kind,
        # and the C header chooses at run time.
        if self.compiler.compiler_type != "msvc" and "-O" not in os.environ.get("CFLAGS", ""):
            for extension in self.extensions:
                extension.extra_compile_args.append("-O3")
                # Small functions that are called once or twice in the way of every packet: gcc
                # leaves them calls by itself, and a packet that opens a head costs a tenth more.
                extension.extra_compile_args.append("-finline-limit=1000")
        super().build_extensions()

    def _translate(self):
        """Python to C, into the build folder."""
        from Cython.Build import cythonize  # noqa: PLC0415 - may be absent: then auto goes on

        translated = cythonize(
            self.extensions,
            include_path=[self._types()],
            build_dir=str(Path(self.build_temp) / "c"),
            compiler_directives=DIRECTIVES,
            force=self.force,
        )
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources[extension.name]

    def _types(self):
        """A folder with every .pxd where Cython looks for it by the name of its module."""
        root = Path(self.build_temp) / "types"
        for package, folder in FOLDERS.items():
            place = root / PACKAGE / package
            place.mkdir(parents=True, exist_ok=True)
            (place / "__init__.py").touch()
            for source in folder.glob("*.pxd"):
                copy2(source, place)
        return str(root)

    def _go_interpreted(self, folders, reason):
        print(
            f"netstack-gro: no compiled modules, the interpreted engine will run ({reason})",
            file=sys.stderr,
        )
        remove_extensions(folders)
        self.extensions.clear()
        self.distribution.ext_modules = []
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel is not None:
            wheel.root_is_pure = True  # it was settled before the build


def remove_extensions(folders, keep=()):
    """Delete this Python's extension modules of the package, those named in ``keep`` excepted.

    folders: for each package below netstack_gro, where its modules may lie.
    """
    for package, places in folders.items():
        for folder, suffix in product(places, EXTENSION_SUFFIXES):
            for path in folder.glob(f"*{suffix}"):
                name = path.name.partition(".")[0]
                full = f"{package}.{name}".lstrip(".")
                if full not in keep and path.name == name + suffix:  # not another Python's
                    path.unlink(missing_ok=True)


def source_of(name):
    """The source file of a hot module."""
    package, _, module = name.rpartition(".")
    return (FOLDERS[package] / f"{module}.py").as_posix()


setup(
    cmdclass={"build_ext": BuildExt},
    ext_modules=[
        Extension(
            f"netstack_gro.{name}",
            [source_of(name)],
            depends=C_TYPES,
            include_dirs=[folder.as_posix() for folder in FOLDERS.values()],
        )
        for name in HOT_MODULES
    ],
)
