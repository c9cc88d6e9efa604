"""The built-in instructions: to say of a function of an installed package what its docstring says of it.

Row k is the same on every machine with the same versions of the packages, as with the built-in texts (corpus.py).
"""

import ast
import inspect
from collections.abc import Iterator

from tasks.data.builtin.corpus import (
    MAX_CHARACTERS,
    PACKAGES,
    parse_documented,
    read_files,
    select_new_parts,
    take_turns,
)

_MAX_SUMMARY = 200
_MAX_SIGNATURE = 300
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def read_instructions() -> Iterator[tuple[str, str, str]]:
    """Yield instruction, context and response of the rows in order, reading no more files than are needed."""
    seen: set[int] = set()
    rows = take_turns({name: _read_rows(name, seen) for name in PACKAGES})
    return (
        (f"Explain this function of {package} in more words: {summary}", signature, response)
        for package, (summary, signature, response) in rows
    )


def _read_rows(package: str, seen: set[int]) -> Iterator[tuple[str, str, str]]:
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
            found: list[str] = []
            for part in select_new_parts(rest, seen):
                if sum(map(len, found)) + len(part) > MAX_CHARACTERS:
                    break
                found.append(part)
            if response := "\n".join(found):
                yield summary, signature, response
