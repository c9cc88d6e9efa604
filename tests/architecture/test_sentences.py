"""Sentences stand in golden files, tests assert codes and numbers."""

import ast
import re
from collections import Counter
from pathlib import Path

MOST = 440
"""String literals of five words or more that assertions, `match=` and tables of cases hold: only ever lowered."""
_WORDS = 5


def _join(node):
    """Return what a literal says, with a word for each value that is put into it."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_join(part) for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else "0"


def _list_pinned(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value
        elif isinstance(node, ast.FunctionDef):
            yield from (one for one in node.decorator_list if "parametrize" in ast.dump(one))


def _count(root):
    if isinstance(root, ast.JoinedStr | ast.Constant):
        return len(re.findall(r"\b[a-z]{2,}\b", _join(root))) >= _WORDS
    return sum(map(_count, ast.iter_child_nodes(root)))


def test_no_more_sentences_are_pinned_than_until_now():
    trees = {str(file): ast.parse(file.read_text(encoding="utf-8")) for file in Path("tests").rglob("*.py")}
    pinned = Counter({file: sum(map(_count, _list_pinned(tree))) for file, tree in trees.items()})
    assert pinned.total() <= MOST, pinned.most_common(20)
