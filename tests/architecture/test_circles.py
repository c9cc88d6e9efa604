"""No file of the product imports itself in a circle, not even inside of a function or for the types alone."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest


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
    imports = _imports_of(project, ("flows", "tasks", "training"))
    assert len(imports) > 250
    assert sum(map(len, imports.values())) > 500
    assert len(list(TopologicalSorter(imports).static_order())) == len(imports)


@pytest.mark.parametrize("indented", ["def late():\n    ", "if TYPE_CHECKING:\n    "])
def test_an_import_inside_of_something_closes_a_circle_too(tmp_path: Path, indented: str) -> None:
    room = tmp_path / "tasks" / "room"
    room.mkdir(parents=True)
    (room / "one.py").write_text("from tasks.room import two\n")
    (room / "two.py").write_text(f"{indented}from tasks.room.one import name\n")
    with pytest.raises(CycleError) as told:
        TopologicalSorter(_imports_of(tmp_path, ("tasks",))).prepare()
    assert set(told.value.args[1]) == {"tasks.room.one", "tasks.room.two"}
