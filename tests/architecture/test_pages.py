"""README, CONTRIBUTING and docs/: short enough to read, and whatever they point at is there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic import BaseModel, ValidationError

from tasks.gates.checks import CHECKS, CHECKS_OF_BLOCKS
from tasks.params import Params
from tasks.params.section import describe_first_complaint
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ExitCode

MOST_WORDS = {"README.md": 1200, "docs/*.md": 1000}
LONGER = {"decisions.md": 6000, "faults.md": 2500, "museum.md": 1900, "performance.md": 2400}
"""Words of the pages that are a list or tables of results."""
MOST_WORDS_OF_A_DECISION = 65
MOST_WORDS_OF_ALL_PAGES = 30_000
_FILES_NAMED = re.compile(
    r"(?<!/)\b((?:flows|tasks|training|tests|benchmarks|presets)/[\w/.-]+\.(?:py|md|json|svg|yaml))\b"
)
_FOLDERS_NAMED = re.compile(
    r"(?<![\w/.-])((?:flows|tasks|training|tests|benchmarks|presets|docs)/(?:[\w-]+/)*)(?![\w<*{-])"
)
_MODULES_NAMED = re.compile(r"python -m ((?:flows|tasks|training|tests|benchmarks)(?:\.\w+)*)")
_TARGETS_NAMED = re.compile(r"(?:`|^ {4})make ([a-z][a-z-]*)", flags=re.MULTILINE)
_KEYS_NAMED = re.compile(
    r"`((?:model|dataset|train|measure|verify|quality|cost|ray|search|tracking|upload)"
    r"\.(?!(?:json|html|md|safetensors)`)[a-z_.]+)[`:]"
)
WHAT_WENT = ("changelog.md",)
"""Pages that say what went."""


def _pages(project: Path) -> list[Path]:
    """Return every page that a reader is meant to open."""
    pages = [project / "README.md", project / "CONTRIBUTING.md", *sorted((project / "docs").glob("*.md"))]
    return [*pages, project / "data" / "README.md", project / "reports" / "README.md"]


def _tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or []


def _anchors(text: str) -> set[str]:
    """Return the anchors of the page's headings, as GitHub makes them."""
    tokens = list(_tokens(text))
    titles = [tokens[place + 1].content for place, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _broken(page: Path, text: str) -> list[str]:
    """Return the links and pictures of the page that lead to no file, or to no heading of it."""
    found = [str(token.attrs[kind]) for token in _tokens(text) for kind in ("href", "src") if kind in token.attrs]
    broken = []
    for link in found:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(text if target == page else target.read_text())):
            broken.append(link)
    return broken


def _decisions(project: Path) -> dict[str, tuple[str, str]]:
    """Return title -> room and text of every entry of docs/decisions.md."""
    rooms = re.split(r"^## ", (project / "docs" / "decisions.md").read_text(), flags=re.MULTILINE)[1:]
    entries = [(room.split("\n", 1)[0], part) for room in rooms for part in re.split(r"^### ", room, flags=re.M)[1:]]
    return {part.split("\n", 1)[0]: (room, part.split("\n", 1)[1]) for room, part in entries}


def test_every_link_of_every_page_leads_somewhere(project: Path) -> None:
    pages = {page: page.read_text() for page in _pages(project)}
    assert {page.name: broken for page, text in pages.items() if (broken := _broken(page, text))} == {}
    assert sum(text.count("](") for text in pages.values()) > 60


def test_every_file_that_a_page_names_is_there(project: Path) -> None:
    for page in _pages(project):
        named = set(_FILES_NAMED.findall(page.read_text()))
        assert {name for name in named if not (project / name).is_file()} == set(), page


def _is_key(key: str) -> bool:
    """Return whether params.yaml may have the key."""
    section: Any = Params
    for part in key.split("."):
        kinds = [section, *get_args(section)]
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if section is None or part not in section.model_fields:
            return False
        section = section.model_fields[part].annotation
    return True


def _find_gone(text: str, project: Path) -> set[str]:
    """Return the folders, modules, targets of make and keys of params.yaml that the text names and that are not."""
    targets = re.findall(r"^([a-z][a-z-]*):", (project / "Makefile").read_text(), flags=re.MULTILINE)
    modules = set(_MODULES_NAMED.findall(text))
    files = {name: [f"{name.replace('.', '/')}{end}" for end in (".py", "/__main__.py")] for name in modules}
    return {
        *(name for name in _FOLDERS_NAMED.findall(text) if not (project / name).is_dir()),
        *(name for name, paths in files.items() if not any((project / path).is_file() for path in paths)),
        *(f"make {name}" for name in _TARGETS_NAMED.findall(text) if name not in targets),
        *(key for key in _KEYS_NAMED.findall(text) if not _is_key(key)),
    }


def test_no_page_names_a_folder_module_target_or_key_that_is_gone(project: Path) -> None:
    pages = [page for page in _pages(project) if page.name not in WHAT_WENT]
    assert {page.name: gone for page in pages if (gone := _find_gone(page.read_text(), project))} == {}


def _list_snippets(project: Path) -> dict[str, str]:
    """Return page and number -> a piece of params.yaml that the page shows."""
    begins = re.compile(rf"(?:{'|'.join(Params.model_fields)}):")
    shown = {
        page.name: [token.content for token in _tokens(page.read_text()) if token.type in ("code_block", "fence")]
        for page in _pages(project)
        if page.name not in WHAT_WENT
    }
    return {
        f"{name}, {number}": text
        for name, texts in shown.items()
        for number, text in enumerate(texts, start=1)
        if begins.match(text)
    }


def _lay_over(given: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    both = {key for key in changes if isinstance(given.get(key), dict) and isinstance(changes[key], dict)}
    whole = ("cells", "model", "dataset")
    return {**given, **changes, **{key: {**given[key], **changes[key]} for key in both if key not in whole}}


def test_every_piece_of_params_that_a_page_shows_is_read_and_fits_a_preset(project: Path, tmp_path: Path) -> None:
    snippets, wrong = _list_snippets(project), {}
    assert len(snippets) > 10
    presets = [read_strict_yaml(file) for file in sorted((project / "presets").glob("*.yaml"))]
    for name, text in snippets.items():
        (tmp_path / "params.yaml").write_text(text)
        shown, complaints = read_strict_yaml(tmp_path / "params.yaml"), []
        for preset in presets:
            try:
                Params.model_validate(_lay_over(preset, shown))
                break
            except ValidationError as error:
                complaints.append(describe_first_complaint(error, Params))
        else:
            if not any("is not installed" in complaint for complaint in complaints):
                wrong[name] = complaints
    assert wrong == {}


def test_every_file_of_the_list_of_files_is_there(project: Path) -> None:
    tree = (project / "docs" / "files.md").read_text()
    named = re.findall(r"[a-z_-]+\.(?:py|yaml|toml|lock|md)\b", tree)
    assert len(named) > 20
    for name in set(named):
        tops = [project / top for top in ("flows", "tasks", "training", "docs")]
        assert (project / name).is_file() or any(list(top.rglob(name)) for top in tops), name


def test_readme_and_pages_are_short_enough_to_read(project: Path) -> None:
    assert all((project / "docs" / name).is_file() for name in LONGER)
    for pattern, most in MOST_WORDS.items():
        for page in project.glob(pattern):
            assert len(page.read_text().split()) <= LONGER.get(page.name, most), page
    all_pages = [page.read_text() for page in (project / "docs").glob("*.md")]
    assert sum(len(text.split()) for text in all_pages) <= MOST_WORDS_OF_ALL_PAGES


def test_every_decision_is_short_and_stands_in_a_room(project: Path) -> None:
    decisions = _decisions(project)
    assert len(decisions) == (project / "docs" / "decisions.md").read_text().count("\n### ") > 50
    assert {room for room, _ in decisions.values()} == {
        "The house", "Params", "Records and store", "Process", "Ranks and launchers", "Data", "Machine", "Equivalence",
        "Measuring", "Gates", "Auditing", "Reporting", "Services", "Training", "Flows", "Tests",
    }  # fmt: skip
    long = {
        title: num for title, (_, text) in decisions.items() if (num := len(text.split())) > MOST_WORDS_OF_A_DECISION
    }
    assert long == {}


def test_the_page_of_gates_has_every_gate_with_its_question(project: Path) -> None:
    text = (project / "docs" / "gates.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+\?) \| .*\|$", text, flags=re.MULTILINE)
    assert rows == [(check.name, check.question) for check in [*CHECKS, *CHECKS_OF_BLOCKS]]


def test_the_page_of_trouble_has_every_exit_code(project: Path) -> None:
    rows = re.findall(r"^\| (\d+) \|", (project / "docs" / "trouble.md").read_text(), flags=re.MULTILINE)
    assert [int(row) for row in rows] == sorted(ExitCode)
