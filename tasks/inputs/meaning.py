"""What source files mean, and which of them a module runs: two versions that differ in comments only mean the same."""

import ast
import functools
import hashlib
import json
import platform
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from training.process.files import digest_json, write_json

PROJECT = Path(__file__).resolve().parents[2]
_STORE = Path(".work/meaning.json")
_PACKAGES = ("tasks", "training")
_OWN_PLACE = re.compile(r"(tasks|training)([./]\w+)*(\.py)?")
_FILE_NAME = re.compile(r"[\w-]+(\.[\w-]+)+")
_IMPORTERS = ("import_module", "find_spec")
_FINDERS = ("import_file", "has_file")
"""Of training/registry.py: their first argument is a package, any file of which may be meant."""

NOT_CONTENT = frozenset(
    {
        # Its values are what counts, with their defaults, and they are dependencies themselves.
        "tasks.params",
        # What these say, refuse, wait for or end is in no output.
        "tasks.services.follower",
        "tasks.services.tracker",
        "tasks.params.complaint",
        "tasks.inputs.damage",
        "tasks.process.disk",
        "tasks.process.failure",
        "tasks.ranks.live",
        "tasks.process.lock",
        "tasks.process.log_cap",
        "tasks.process.logs",
        "tasks.inputs.meaning",
        "tasks.process.parent",
        "tasks.process.progress",
        "tasks.inputs.snapshot",
        "tasks.process.stopping",
        "tasks.ranks.watchdog",
    }
)
"""Modules whose change leaves every output what it is; what they import is looked at only if others import it too."""


def collect_meanings(*modules: str, without: Sequence[str] = (), project: Path = PROJECT) -> dict[str, str]:
    """Return path -> digest of meaning of these modules and of all that they may import of tasks/ and training/.

    Modules are followed wherever they stand in the source, also where a name is put together
    (f"tasks.data.slicing.{...}", import_file("tasks.data.slicing", ...): all of that folder).
    A data file beside a module counts, by its bytes, if the module has its name. What is named in
    `without`, modules or folders, is not followed.
    """
    left_out, folders = NOT_CONTENT | set(without), tuple(f"{name}." for name in without)
    found: dict[str, str] = {}
    waiting, seen = list(modules), set()
    while waiting:
        module = waiting.pop()
        if module in seen or module in left_out or module.startswith(folders):
            continue
        seen.add(module)
        file = _find_file(module, project)
        if file is None:
            continue
        waiting.append(module.rpartition(".")[0])
        meaning, named, _ = read_source(file)
        found[file.relative_to(project).as_posix()] = meaning
        for name in named:
            if name.endswith(".*"):
                waiting += [f"{name[:-1]}{part.stem}" for part in _list_files(name, project)]
            elif name.partition(".")[0] in _PACKAGES:
                waiting.append(name)
            elif (beside := file.parent / name).is_file():
                found[beside.relative_to(project).as_posix()] = _compute_sha256(beside.read_bytes())
    return dict(sorted(found.items()))


def compute_meanings(paths: Iterable[str], *, project: Path = PROJECT) -> dict[str, str]:
    """Return path -> digest of meaning, or of the bytes of what is no Python; nothing for a file that is not there."""
    files = {path: project / path for path in paths}
    return {
        path: read_source(file).meaning if file.suffix == ".py" else _compute_sha256(file.read_bytes())
        for path, file in files.items()
        if file.is_file()
    }


def digest_meaning(files: Iterable[Path], *, top: Path = PROJECT) -> str:
    """Return the sha256 of what Python files below `top` mean together, whichever folder each of them stands in.

    A file that has moved, and whatever imports it from where it is now, mean what they meant before. In place of a
    module's place stands what it means, so that the same name out of another file is another thing. A file's own name
    counts: strategies and workloads are found by it.
    """
    own = {file: f"{file.stem} {read_source(file).elsewhere}" for file in files}
    means = []
    for file in own:
        named = {other for name in read_source(file).named for other in _list_files(name, top)}
        means.append([own[file], *sorted(own[other] for other in named if other in own)])
    return digest_json(sorted(means))


class Source(NamedTuple):
    """What is known of a Python file."""

    meaning: str
    """sha256 of its syntax tree, without what only people read."""
    named: list[str]
    """The modules and data files that it names."""
    elsewhere: str
    """sha256 of the same tree without the names of the project's own modules: what stays as files are moved."""


def read_source(file: Path) -> Source:
    """Return what a Python file means, and what it names.

    The digest holds for one version of Python, whose grammar decides what a syntax tree is; that version is part of the
    machine's facts. What was found stays in .work/ under the digest of the bytes: a syntax tree takes its time.
    """
    content = file.read_bytes()
    key = _compute_sha256(content)
    if key not in _known:
        if (found := _read_kept().get(key)) is None:
            tree = ast.parse(content)
            nodes = list(ast.walk(tree))
            _drop_docstrings(nodes)
            meaning, named = _digest_tree(tree), sorted(_collect_names(tree))
            _drop_places(nodes)
            found = Source(meaning, named, _digest_tree(tree))
        _known[key] = found
    return _known[key]


def keep_meanings() -> None:
    """Write down what this process knows of source files, for the next one, unless that stands there already."""
    if _known != _read_kept():
        write_json(_STORE, {"python": platform.python_version(), "files": _known})


_known: dict[str, Source] = {}
"""sha256 of a file -> what it means and names."""


@functools.cache
def _read_kept() -> dict[str, Source]:
    try:
        kept = json.loads(_STORE.read_bytes())
        files = kept["files"] if kept["python"] == platform.python_version() else {}
        return {key: Source(str(a), list(named), str(b)) for key, (a, named, b) in files.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _compute_sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _list_files(name: str, project: Path) -> list[Path]:
    """Return the file of a module, or of `package.*` every one."""
    if name.endswith(".*"):
        return sorted((project / name.removesuffix(".*").replace(".", "/")).glob("*.py"))
    return [file] if (file := _find_file(name, project)) is not None else []


def _find_file(module: str, project: Path) -> Path | None:
    place = project / module.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if module and file.is_file()), None)


def _collect_names(tree: ast.AST) -> set[str]:
    """Return modules that the code imports, `package.*` for any of a package, and what may be a file's name."""
    found: set[str] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        found.update(_list_names(node))
        waiting += ast.iter_child_nodes(node)
    return found


def _list_names(node: ast.AST) -> Iterator[str]:
    """Yield what this node itself names."""
    if isinstance(node, ast.Import):
        yield from (name.name for name in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{name.name}" for name in node.names)
    elif isinstance(node, ast.Call) and node.args:
        called, name = _find_last_name(node.func), node.args[0]
        if called in _IMPORTERS and isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
            yield f"{name.values[0].value!s}*"
        elif called in _IMPORTERS and isinstance(name, ast.Constant):
            yield str(name.value)
        elif called in _FINDERS and isinstance(name, ast.Constant):
            yield f"{name.value!s}.*"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _FILE_NAME.fullmatch(node.value):
        yield node.value


def _find_last_name(called: ast.expr) -> str:
    """Return what stands after the last dot of what is called."""
    if isinstance(called, ast.Name):
        return called.id
    # Text of a tree takes longer than all else here; few calls are of anything but a name.
    return called.attr if isinstance(called, ast.Attribute) else ast.unparse(called).rpartition(".")[2]


def _drop_docstrings(nodes: Iterable[ast.AST]) -> None:
    """Remove every string that stands as a statement: it documents, it does nothing."""
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [part for part in body if not _is_bare_string(part)] or [ast.Pass()]  # type: ignore[attr-defined]


def _drop_places(nodes: Iterable[ast.AST]) -> None:
    """Empty every name of a module or file of the project's own."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and _OWN_PLACE.fullmatch(node.module):
            node.module = ""
        elif isinstance(node, ast.alias) and _OWN_PLACE.fullmatch(node.name):
            node.name = ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _OWN_PLACE.fullmatch(node.value):
            node.value = ""


def _digest_tree(tree: ast.AST) -> str:
    return _compute_sha256(ast.dump(tree, include_attributes=False).encode())


def _is_bare_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
