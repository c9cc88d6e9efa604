"""No file of the product imports itself in a circle, not even inside of a function or for the types alone."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path


def _imports_of(folder: Path, packages: tuple[str, ...]) -> dict[str, set[str]]:
    """Return the modules of the packages, each with those of them that it imports anywhere."""
    files = {
        ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): file
        for package in packages
        for file in (folder / package).rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for module, file in files.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                # `from package import name` imports the file of that name where there is one, else the package's own.
                assert node.module, f"{file}: an import without the name of its package"
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                names |= {name if name in files else node.module for name in whole}
        imports[module] = names & files.keys()
    return imports


def test_no_file_imports_itself_in_a_circle(project: Path) -> None:
    imports = _imports_of(project, ("flows", "tasks", "training", "ddp_audit"))
    assert len(imports) > 250
    assert sum(map(len, imports.values())) > 500
    assert len(list(TopologicalSorter(imports).static_order())) == len(imports)
