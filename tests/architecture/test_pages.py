"""README, CONTRIBUTING and docs/: short enough to read, and whatever they point at is there."""

import itertools
import json
import re
import shlex
import subprocess
from typing import get_args

from dvc.cli import parse_args
from markdown_it import MarkdownIt
from pydantic import BaseModel, ValidationError

from tasks.gates.checks import CHECKS, CHECKS_OF_BLOCKS
from tasks.params import Params
from tasks.params.section import describe_first_complaint
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ExitCode
from tests.extras import skip_without
from tests.processes import run_python

MOST_WORDS = {"README.md": 1200, "docs/*.md": 1000}
LONGER = {"decisions.md": 6000, "faults.md": 2500, "museum.md": 1900, "performance.md": 2400}
"""Words of the pages that are a list or tables of results."""
MOST_WORDS_OF_A_DECISION = 65
MOST_WORDS_OF_ALL_PAGES = 30_000
_TOPS = "flows|tasks|training|tests|benchmarks|presets|docs"
_FILES_NAMED = re.compile(rf"(?<!/)\b((?:{_TOPS})/[\w/.-]+\.(?:py|md|json|svg|yaml))\b")
_TESTS_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)")
_FOLDERS_NAMED = re.compile(rf"(?<![\w/.-])((?:{_TOPS})/(?:[\w-]+/)*)(?![\w<*{{-])")
_MODULES_NAMED = re.compile(r"python -m ((?:flows|tasks|training|tests|benchmarks)(?:\.\w+)*)")
_TARGETS_NAMED = re.compile(r"(?:`|^ {4})make ([a-z][a-z-]*)", flags=re.MULTILINE)
_PRESETS_NAMED = re.compile(r"PRESET=(?!name\b)([\w.-]*\w)", flags=re.IGNORECASE)
_KEYS_NAMED = re.compile(
    r"`((?:model|dataset|train|measure|verify|quality|cost|ray|search|tracking|upload)"
    r"\.(?!(?:json|html|md|safetensors)`)[a-z_.]+)[`:]"
)
WHAT_WENT = ("changelog.md",)
"""Pages that say what went."""
_KINDS = {
    "params": rf"(?:{'|'.join(Params.model_fields)}):",
    "python": r"(?:from|import) \w",
    "bash": r"(?:make|ddp-compare|prefect|dvc|docker|export|mlflow|patch|\.venv/bin/python) ",
}
"""What a snippet is that does not say so itself, by how it begins."""
_TYPED = re.compile(r"(?:^|[\s/])(ddp-compare|dvc|mlflow|ray) ([a-z](?:'[^']*'|\\\n|[^'&|;>#\n])*)", flags=re.MULTILINE)
"""Commands whose options are read by a test."""


def _pages(project):
    """Return every page that a reader is meant to open."""
    pages = [project / "README.md", project / "CONTRIBUTING.md", *sorted((project / "docs").glob("*.md"))]
    return [*pages, project / "data" / "README.md", project / "reports" / "README.md"]


def _tokens(text):
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or []


def _anchors(text):
    """Return the anchors of the page's headings, as GitHub makes them."""
    tokens = list(_tokens(text))
    titles = [tokens[place + 1].content for place, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _broken(page, text):
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


def _is_key(key):
    """Return whether params.yaml may have the key."""
    section = Params
    for part in key.split("."):
        kinds = [section, *get_args(section)]
        section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        if section is None or part not in section.model_fields:
            return False
        section = section.model_fields[part].annotation
    return True


def _find_gone(page, project):
    """Return what the page names in vain: links, files, modules, targets, presets, keys of params.yaml."""
    text, targets = page.read_text(), re.findall(r"^([a-z][a-z-]*):", (project / "Makefile").read_text(), flags=re.M)
    modules = [name.replace(".", "/") for name in _MODULES_NAMED.findall(text)]
    if page.name in WHAT_WENT:
        return set(_broken(page, text))
    return {
        *_broken(page, text),
        *(name for name in _FILES_NAMED.findall(text) if not (project / name).is_file()),
        *(name for file, name in _TESTS_NAMED.findall(text) if f"def {name}(" not in (project / file).read_text()),
        *(name for name in _FOLDERS_NAMED.findall(text) if not (project / name).is_dir()),
        *(at for at in modules if not any((project / f"{at}{end}").is_file() for end in (".py", "/__main__.py"))),
        *(f"make {name}" for name in _TARGETS_NAMED.findall(text) if name not in targets),
        *(name for name in _PRESETS_NAMED.findall(text) if not (project / "presets" / f"{name}.yaml").is_file()),
        *(key for key in _KEYS_NAMED.findall(text) if not _is_key(key)),
    }


def test_whatever_a_page_points_at_is_there(project):
    pages = [*_pages(project), *sorted((project / "presets").glob("*.yaml"))]
    assert {page.name: gone for page in pages if (gone := _find_gone(page, project))} == {}
    assert sum(page.read_text().count("](") for page in _pages(project)) > 60


def _lay_over(given, changes):
    both = [
        key for key, value in changes.items() if isinstance(value, dict) and key not in ("cells", "model", "dataset")
    ]
    return {**given, **changes, **{key: {**given.get(key, {}), **changes[key]} for key in both}}


def find_snippets(project):
    """Return kind -> [(page, text)] of what the pages show to be typed or written into a file."""
    found = {}
    for page in _pages(project):
        for token in _tokens(page.read_text()):
            if token.type in ("code_block", "fence"):
                begins = (kind for kind, start in _KINDS.items() if re.match(start, token.content))
                found.setdefault(token.info or next(begins, ""), []).append((page.name, token.content))
    return found


def test_every_snippet_of_a_shell_is_one_and_what_one_of_python_imports_is_there(project):
    kinds = find_snippets(project)
    for _, text in kinds["bash"]:
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for _, text in kinds["python"]:
        exec("\n".join(re.findall(r"^(?:from|import) .+", text, flags=re.MULTILINE)), {})


def test_every_option_that_a_snippet_types_is_one_of_the_command(project):
    skip_without("ray")
    typed = {}
    for _, text in itertools.chain(*find_snippets(project).values()):
        for tool, rest in _TYPED.findall(text):
            name, *words = shlex.split(rest)
            if tool == "dvc":
                parse_args([name, *words])
            else:
                typed.setdefault((tool, name), []).extend(words)
    assert {"ray start", "ray get-auth-token", "mlflow server", "ddp-compare run"} <= set(map(" ".join, typed))
    _require_options(*((*command, *words) for command, words in typed.items()))


_READS_OPTIONS = """
import json, sys
from importlib.metadata import entry_points
for tool, *words in json.loads(sys.argv[1]):
    # Options are read before the help is shown.
    sys.argv = [tool, *words, "--help"]
    main = next(iter(entry_points(group="console_scripts", name=tool))).load()
    try:
        sys.exit(main() or "there was no help")
    except SystemExit as end:
        assert not end.code, (sys.argv, end.code)
print("all were read")
"""
"""Of all commands in one process, and none in that of other tests: Ray reads its environment when it is imported."""


def _require_options(*commands):
    done = run_python("-c", _READS_OPTIONS, json.dumps(commands))
    assert done.stdout.endswith("all were read\n"), done.stderr


def test_the_cluster_for_kubernetes_has_the_ray_of_the_lock(project):
    (version,) = re.findall(r'rayVersion: "(.+)"', (project / "docs" / "clusters.md").read_text())
    assert f"\nray=={version} " in (project / "requirements-extras.lock").read_text()


def test_every_piece_of_params_that_a_page_shows_is_read_and_fits_a_preset(project, tmp_path):
    snippets = find_snippets(project)["params"]
    assert len(snippets) > 10
    presets = [read_strict_yaml(file) for file in sorted((project / "presets").glob("*.yaml"))]
    for name, text in snippets:
        (tmp_path / "params.yaml").write_text(text)
        shown, complaints = read_strict_yaml(tmp_path / "params.yaml"), []
        for preset in presets:
            try:
                Params.model_validate(_lay_over(preset, shown))
                break
            except ValidationError as error:
                complaints.append(describe_first_complaint(error, Params))
        else:
            assert any("is not installed" in complaint for complaint in complaints), (name, text, complaints)


def test_readme_and_pages_are_short_enough_to_read(project):
    assert all((project / "docs" / name).is_file() for name in LONGER)
    for pattern, most in MOST_WORDS.items():
        for page in project.glob(pattern):
            assert len(page.read_text().split()) <= LONGER.get(page.name, most), page
    all_pages = [page.read_text() for page in (project / "docs").glob("*.md")]
    assert sum(len(text.split()) for text in all_pages) <= MOST_WORDS_OF_ALL_PAGES


def test_every_decision_is_short(project):
    entries = re.split(r"^### ", (project / "docs" / "decisions.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) > 50
    texts = dict(one.split("\n## ")[0].split("\n", 1) for one in entries)
    assert {title: num for title, text in texts.items() if (num := len(text.split())) > MOST_WORDS_OF_A_DECISION} == {}


def test_the_page_of_gates_has_every_gate_with_its_question(project):
    text = (project / "docs" / "gates.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+\?) \| .*\|$", text, flags=re.MULTILINE)
    assert rows == [(check.name, check.question) for check in [*CHECKS, *CHECKS_OF_BLOCKS]]


def test_the_page_of_trouble_has_every_exit_code(project):
    rows = re.findall(r"^\| (\d+) \|", (project / "docs" / "trouble.md").read_text(), flags=re.MULTILINE)
    assert [int(row) for row in rows] == sorted(ExitCode)
