"""The built-in data set: the prose of the docstrings of packages that this project cannot do without.

Row k is the same on every machine with the same versions of the packages: it depends on nothing but the files that
these packages list as theirs. Asking for more rows never changes an earlier one.
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from tasks.data.builtin.prose import MIN_PARAGRAPH, extract_paragraphs, split_sentences
from tasks.process.failure import ConfigurationError

PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "pandas",
    "sqlalchemy",
    "matplotlib",
    "mlflow",
    "datasets",
    "huggingface_hub",
    "prefect",
    "pyarrow",
    "pydantic",
)
"""Direct dependencies with much documentation in their docstrings; the order is part of the corpus."""

MIN_CHARACTERS = 200
MAX_CHARACTERS = 1500

Row = TypeVar("Row")
_SHINGLE_WORDS = 4
_MAX_SUMMARY = 200
_MAX_SIGNATURE = 300
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MAX_SEEN_SHARE = 0.3
"""Share of a paragraph's word sequences that earlier rows may have, before it counts as a near-duplicate."""
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_HOLDERS = (*_DOCUMENTED, ast.If, ast.Try, ast.With)
_SKIPPED = frozenset({"..", "tests", "test", "testing", "_testing", "_vendor", "vendor", "_vendored", "vendored"})


def read_corpus() -> Iterator[str]:
    """Yield the rows in order, a row of each package in turn, reading no more files than the rows asked for need."""
    return (row for _, row in read_corpus_by_package())


def read_corpus_by_package() -> Iterator[tuple[str, str]]:
    """Yield the package of each row, and the row."""
    seen: set[int] = set()
    return take_turns({name: _read_rows(name, seen) for name in PACKAGES})


def take_turns(sources: dict[str, Iterator[Row]]) -> Iterator[tuple[str, Row]]:
    """Yield the first row of each source with its name, then the second of each, and so on until all are at an end."""
    while sources:
        for name, source in list(sources.items()):
            row = next(source, None)
            if row is None:
                del sources[name]
            else:
                yield name, row


def read_package_versions() -> dict[str, str]:
    """Return the installed version of every package the corpus is made of."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def _read_rows(package: str, seen: set[int]) -> Iterator[str]:
    """Yield the package's rows: short docstrings of a file share one, long ones are cut between paragraphs.

    A paragraph that mostly repeats word sequences in `seen` is left out; what is used is added to `seen`.
    """
    for file in read_files(package):
        row = ""
        for _, docstring in parse_documented(file):
            for part in select_new_parts(docstring, seen):
                if row and len(row) + len(part) + 2 > MAX_CHARACTERS:
                    if len(row) >= MIN_CHARACTERS:
                        yield row
                    row = ""
                row = f"{row}\n\n{part}" if row else part
            if len(row) >= MIN_CHARACTERS:
                yield row
                row = ""


def read_files(package: str) -> Iterator[bytes]:
    """Yield the contents of the package's Python files, in an order that mixes its subjects."""
    files = importlib.metadata.files(package)
    if files is None:
        raise ConfigurationError(
            f"dataset.source: builtin:docstrings cannot list the files of {package}; install it with pip or uv, "
            "or choose a hub: or path: data set"
        )
    modules = [file for file in files if file.suffix == ".py" and not _SKIPPED.intersection(file.parts)]
    # An order that is the same everywhere.
    for file in sorted(modules, key=lambda file: hashlib.sha256(file.as_posix().encode()).digest()):
        yield Path(str(file.locate())).read_bytes()


def parse_documented(source: bytes) -> list[tuple[ast.AST, str]]:
    """Return what has a docstring in a Python file, and that docstring, line by line, without running it."""
    if b'"""' not in source and b"'''" not in source:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results: list[tuple[ast.AST, str]] = []
        with contextlib.suppress(SyntaxError, ValueError):  # templates, or files for another version of Python
            _collect_docstrings(ast.parse(source), results)
    return results


def _collect_docstrings(node: ast.AST, results: list[tuple[ast.AST, str]]) -> None:
    """Append what has docstrings at and below `node`; only statements are visited, as expressions hold none."""
    if isinstance(node, _DOCUMENTED):
        docstring = ast.get_docstring(node, clean=False)
        if docstring and len(docstring) >= MIN_PARAGRAPH:
            results.append((node, docstring))
    for block in ("body", "orelse", "finalbody"):
        for statement in getattr(node, block, ()):
            if isinstance(statement, _HOLDERS):
                _collect_docstrings(statement, results)


def select_new_parts(docstring: str, seen: set[int]) -> Iterator[str]:
    """Yield the docstring's paragraphs, long ones as sentences, that do not repeat what stands in `seen`."""
    for paragraph in extract_paragraphs(docstring):
        for part in split_sentences(paragraph) if len(paragraph) > MAX_CHARACTERS else [paragraph]:
            words = "".join(character if character.isalnum() else " " for character in part.lower()).split()
            starts = range(max(1, len(words) - _SHINGLE_WORDS + 1))
            sequences = (" ".join(words[start : start + _SHINGLE_WORDS]).encode() for start in starts)
            # Unlike hash(), the same in every process.
            shingles = {int.from_bytes(hashlib.blake2b(part, digest_size=8).digest(), "big") for part in sequences}
            if len(part) <= MAX_CHARACTERS and len(shingles & seen) <= _MAX_SEEN_SHARE * len(shingles):
                seen |= shingles
                yield part


def read_instructions() -> Iterator[tuple[str, str, str]]:
    """Yield instruction, context and response of the rows in order, reading no more files than are needed."""
    seen: set[int] = set()
    rows = take_turns({name: _read_functions(name, seen) for name in PACKAGES})
    return (
        (f"Explain this function of {package} in more words: {summary}", signature, response)
        for package, (summary, signature, response) in rows
    )


def _read_functions(package: str, seen: set[int]) -> Iterator[tuple[str, str, str]]:
    """Yield first line, signature and the rest of the prose of each function that has all; no prose is told twice."""
    for file in read_files(package):
        for node, docstring in parse_documented(file):
            if not isinstance(node, _FUNCTIONS):
                continue
            first, _, rest = inspect.cleandoc(docstring).partition("\n\n")
            summary, signature = " ".join(first.split()), f"def {node.name}({ast.unparse(node.args)})"
            if (
                len(summary) > _MAX_SUMMARY
                or len(signature) > _MAX_SIGNATURE
                or not (summary + signature).isprintable()
            ):
                continue
            texts: list[str] = []
            for part in select_new_parts(rest, seen):
                if sum(map(len, texts)) + len(part) > MAX_CHARACTERS:
                    break
                texts.append(part)
            if response := "\n".join(texts):
                yield summary, signature, response
