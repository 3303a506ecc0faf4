"""Which module of the package imports which, read from the sources."""

import ast
from collections.abc import Collection
from pathlib import Path

from netstack_gro._speed import HOT_MODULES


def imports(package: Path) -> dict[str, set[str]]:
    """The modules of ``package`` by full name, each with the modules that it names in imports.

    Imports for type checkers alone do not count. An import from the package itself counts as one
    of the package only when it takes more than a submodule.
    """
    # A walk does not follow the link to dispatchers; in an installed copy it is a folder.
    sources = {*package.rglob("*.py"), *(package / "dispatchers").rglob("*.py")}
    paths = {_name(source.relative_to(package)): source for source in sources}
    return {
        name: {
            imported
            for node in ast.walk(_without_type_checking(ast.parse(source.read_text("utf-8"))))
            for imported in _imported(node, paths.keys())
        }
        for name, source in paths.items()
    }


def knowing_an_engine(graph: dict[str, set[str]]) -> set[str]:
    """The modules of ``graph`` that are hot, the package itself, and all that import these."""
    knowing = {"netstack_gro", *(f"netstack_gro.{name}" for name in HOT_MODULES)}
    while True:
        more = {name for name in graph if graph[name] & knowing} - knowing
        if not more:
            return knowing
        knowing |= more


def _name(path: Path) -> str:
    return ".".join(["netstack_gro", *path.with_suffix("").parts]).removesuffix(".__init__")


def _imported(node: ast.AST, modules: Collection[str]) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if not isinstance(node, ast.ImportFrom) or node.module is None:
        return set()
    members = {f"{node.module}.{alias.name}" for alias in node.names}
    submodules = members & set(modules)
    return submodules if submodules == members else {node.module, *submodules}


def _without_type_checking(module: ast.Module) -> ast.Module:
    module.body = [
        node
        for node in module.body
        if not (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        )
    ]
    return module
