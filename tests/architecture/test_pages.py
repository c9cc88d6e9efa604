"""README, CONTRIBUTING and docs/: short enough to read, and whatever they point at is there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tasks.gates.checks import CHECKS, CHECKS_OF_BLOCKS
from tasks.process.failure import ExitCode

MOST_WORDS = {"README.md": 1200, "docs/*.md": 1000}
LONGER = {
    "decisions.md": "an entry per decision, and each entry is held to 150 words below",
    "faults.md": "a row per fault; its other table is written by `make chaos`",
    "museum.md": "written by `make museum`",
    "performance.md": "its tables are those of `make bench-levers` and `make bench`",
}
MOST_WORDS_OF_A_DECISION = 150
_FILES_NAMED = re.compile(
    r"(?<!/)\b((?:flows|tasks|training|tests|benchmarks|presets)/[\w/.-]+\.(?:py|md|json|svg|yaml))\b"
)
_TITLES_QUOTED = re.compile(r'docs/decisions\.md(?:,[\s#]*"([^"]+)")?')


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


@pytest.mark.parametrize("link", ["nowhere.md", "docs/ray.md#nowhere", "#nowhere", "docs"])
def test_a_link_that_leads_nowhere_is_found(project: Path, link: str) -> None:
    page = project / "README.md"
    found = _broken(page, f"# Here\n\n[a](#here), [b](docs/clusters.md#under-slurm) ![c]({link})\n")
    assert found == ([] if link == "docs" else [link])


def test_every_file_that_a_page_names_is_there(project: Path) -> None:
    for page in _pages(project):
        named = set(_FILES_NAMED.findall(page.read_text()))
        assert {name for name in named if not (project / name).is_file()} == set(), page


def test_every_file_of_the_list_of_files_is_there(project: Path) -> None:
    tree = (project / "docs" / "files.md").read_text()
    named = re.findall(r"[a-z_-]+\.(?:py|yaml|toml|lock|md)\b", tree)
    assert len(named) > 20
    for name in set(named):
        tops = [project / top for top in ("flows", "tasks", "training", "docs")]
        assert (project / name).is_file() or any(list(top.rglob(name)) for top in tops), name


def test_every_page_of_docs_is_in_the_list_of_pages(project: Path) -> None:
    listed = re.findall(r"\]\(([a-z]+\.md)\)", (project / "docs" / "README.md").read_text())
    assert sorted(listed) == sorted({page.name for page in (project / "docs").glob("*.md")} - {"README.md"})


def test_readme_and_pages_are_short_enough_to_read(project: Path) -> None:
    assert all((project / "docs" / name).is_file() for name in LONGER)
    for pattern, most in MOST_WORDS.items():
        for page in project.glob(pattern):
            if page.name not in LONGER:
                assert len(page.read_text().split()) <= most, page


def test_every_decision_is_short_and_stands_in_a_room(project: Path) -> None:
    decisions = _decisions(project)
    assert len(decisions) == (project / "docs" / "decisions.md").read_text().count("\n### ") > 50
    assert {room for room, _ in decisions.values()} == {
        "The house", "Params", "Records and store", "Process", "Ranks and launchers", "Data", "Machine", "Equivalence",
        "Measuring", "Gates", "Auditing", "Reporting", "Services", "Training", "Flows", "Tests",
    }  # fmt: skip
    long = {
        title: num for title, (_, text) in decisions.items() if (num := len(text.split())) >= MOST_WORDS_OF_A_DECISION
    }
    assert long == {}


def test_code_names_a_decision_by_the_beginning_of_its_title(project: Path) -> None:
    titles = list(_decisions(project))
    tops = ("flows", "tasks", "training", "tests", "benchmarks", "presets")
    files = [file for top in tops for kind in ("py", "yaml") for file in (project / top).rglob(f"*.{kind}")]
    named = [
        (file.name, title)
        for file in files
        if file != Path(__file__)
        for title in _TITLES_QUOTED.findall(file.read_text())
    ]
    assert len(named) >= 5
    wrong = [(file, name) for file, name in named if not name or sum(title.startswith(name) for title in titles) != 1]
    assert wrong == []


def test_the_page_of_gates_has_every_gate_with_its_question(project: Path) -> None:
    text = (project / "docs" / "gates.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+\?) \|$", text, flags=re.MULTILINE)
    assert rows == [(check.name, check.question) for check in [*CHECKS, *CHECKS_OF_BLOCKS]]
    assert f"All of today's {len(CHECKS + CHECKS_OF_BLOCKS)} gates passed" in " ".join(
        (project / "README.md").read_text().split()
    )


def test_the_page_of_trouble_has_every_exit_code(project: Path) -> None:
    rows = re.findall(r"^\| (\d+) \|", (project / "docs" / "trouble.md").read_text(), flags=re.MULTILINE)
    assert [int(row) for row in rows] == sorted(ExitCode)
