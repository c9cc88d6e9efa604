"""Names that say nothing of what they hold, or are words of our own where the field has one, are refused."""

import ast
import re

_REFUSED = re.compile(r"_*(told|tell|tell_\w+|one|found|hear|knock)")
_FOLDERS = ("flows", "tasks", "training", "ddp_audit", "benchmarks")


def _list_names(tree):
    """Yield (line, name) of every variable, parameter, function, class and attribute that is bound there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def _list_refused(source):
    return [(line, name) for line, name in _list_names(ast.parse(source)) if _REFUSED.fullmatch(name)]


def test_no_name_is_a_word_that_says_nothing(project):
    # A field of a record is a key of a published file.
    files = [file for folder in _FOLDERS for file in (project / folder).rglob("*.py")]
    refused = {str(file.relative_to(project)): _list_refused(file.read_text(encoding="utf-8")) for file in files}
    assert {file: names for file, names in refused.items() if names} == {
        "tasks/records/measurement.py": refused["tasks/records/measurement.py"]
    }
    assert [name for _, name in refused["tasks/records/measurement.py"]] == ["found"]
