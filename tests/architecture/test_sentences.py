"""Sentences stand in golden files, tests assert codes and numbers; a sentence prints nothing it has no number of."""

import ast
import re
import string
from collections import Counter
from pathlib import Path

MOST = 440
"""String literals of five words or more that assertions, `match=` and tables of cases hold: only ever lowered."""
_WORDS = 5


def _list_trees(*folders):
    for folder in folders:
        for file in sorted(Path(folder).rglob("*.py")):
            yield file, ast.parse(file.read_text(encoding="utf-8"))


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
    pinned = Counter({str(file): sum(map(_count, _list_pinned(tree))) for file, tree in _list_trees("tests")})
    assert pinned.total() <= MOST, pinned.most_common(20)


def test_whatever_a_findings_sentence_prints_it_has_a_number_of():
    for file, tree in _list_trees("tasks"):
        for call in ast.walk(tree):
            name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
            if not isinstance(call, ast.Call) or name not in ("explain", "make_unobservable", "make_finding"):
                continue
            names = {one.arg for one in call.keywords} | ({"cell"} if name == "make_unobservable" else set())
            if None in names:
                continue  # Given as a whole: a run of it tells.
            given = [one for one in call.args if not isinstance(one, ast.Call)][name == "make_finding" :]
            templates = [one for argument in given for one in ast.walk(argument) if isinstance(one, ast.Constant)]
            for template in templates:
                fields = {name for _, name, _, _ in string.Formatter().parse(str(template.value)) if name}
                assert fields <= names, f"{file}:{call.lineno} has no {fields - names}"
