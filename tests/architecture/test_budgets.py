"""How much there is to read has a budget. Who needs more raises it in the same commit, with a reason in its message.

Tokens are those of Python's tokenizer without comments, docstrings, line ends and indents: longer lines make no fewer.
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

import grimp
import pytest

PRODUCT = ("flows", "tasks", "training", "ddp_audit")
MOST_TOKENS = {"product": 323_000, "tests": 226_100, "benchmarks": 27_500}
MOST_MODULES = {"ddp_audit.__main__": 42, "flows.__main__": 72, "training.__main__": 60}
"""What importing each may bring in of this repository, imports inside functions included."""

_NO_TOKENS = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def _list_docstring_lines(tree):
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for part in body if isinstance(body, list) else []:
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                yield from range(part.lineno, (part.end_lineno or part.lineno) + 1)


def count_tokens(source):
    """Return the tokens of a file's text that somebody has to read as code."""
    prose = set(_list_docstring_lines(ast.parse(source)))
    return sum(
        one.type not in _NO_TOKENS and not (one.type == tokenize.STRING and one.start[0] in prose)
        for one in tokenize.generate_tokens(io.StringIO(source).readline)
    )


@pytest.fixture(scope="module")
def tokens(project):
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=project, check=True, capture_output=True, text=True)
    found = Counter()
    for file in filter(Path.is_file, (project / name for name in listed.stdout.splitlines())):
        top = file.relative_to(project).parts[0]
        found["product" if top in PRODUCT else top] += count_tokens(file.read_text())
    return found


@pytest.mark.parametrize("what", MOST_TOKENS)
def test_there_is_no_more_to_read_than_was_agreed(tokens, what):
    assert 0 < tokens[what] <= MOST_TOKENS[what]


@pytest.mark.parametrize("start", MOST_MODULES)
def test_an_entry_brings_in_no_more_modules_than_was_agreed(start):
    imports = grimp.build_graph(*PRODUCT, cache_dir=None)
    assert 0 < len(imports.find_upstream_modules(start)) < MOST_MODULES[start]
