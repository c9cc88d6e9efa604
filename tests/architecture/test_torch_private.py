"""What of torch has no public name is used in one file of each package, which says on which versions it was tried."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ADAPTERS = ("training/process/torch_private.py", "ddp_audit/observer/torch_private.py")

PUBLIC = {
    "torch.utils._python_dispatch.TorchDispatchMode": "torch's notes on extending it have no other name for it",
    "torch.utils._pytree": "the same notes use it, and it has no other name",
    "_foreach_": "an operator's name and arguments stay as they are (native_functions.yaml)",
    "_scaled_dot_product_": "the same",
    "_modules": "nn.Module's own dictionaries, which every module that is written by hand may look into",
    "_parameters": "the same",
    "_buffers": "the same",
}
"""Begins with an underscore and is public all the same."""

NOT_OF_TORCH = {
    "_attn_implementation": "transformers", "_no_split_modules": "transformers", "_shared_state": "accelerate",
    "_fields": "a named tuple", "_replace": "a named tuple", "_ddp_compare_": "the observer's own",
}  # fmt: skip

_PRIVATE = re.compile(r"_[a-zA-Z]\w*")


def find_private_names(source: str) -> Iterator[str]:
    """Yield what is private and neither the file's own nor of a module that is not torch's."""
    tree = ast.parse(source)
    known = {"self", "cls"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                whole = f"{module}.{alias.name}".lstrip(".")
                if not whole.startswith("torch"):
                    known.add((alias.asname or alias.name).partition(".")[0])
                elif re.search(r"\._[a-zA-Z]", whole):
                    yield whole
    names = [(node.value, node.attr) for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {name for owner, name in names if isinstance(owner, ast.Name) and owner.id in ("self", "cls")}
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for owner, name in names:
        if _PRIVATE.fullmatch(name) and name not in own and not (isinstance(owner, ast.Name) and owner.id in known):
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            asked = [one.value for one in node.args[1:2] if isinstance(one, ast.Constant)]
            yield from (name for name in asked if _PRIVATE.fullmatch(str(name)))


def is_excused(name: str) -> bool:
    """Return whether a name is public, or not torch's."""
    return any(name.startswith(one) for one in (*PUBLIC, *NOT_OF_TORCH))


def test_only_the_adapters_use_what_torch_has_no_public_name_for(project: Path) -> None:
    found = [
        (str(path.relative_to(project)), name)
        for package in ("training", "tasks", "flows", "ddp_audit")
        for path in sorted((project / package).rglob("*.py"))
        for name in find_private_names(path.read_text())
    ]
    assert [one for one in found if one[0] not in ADAPTERS and not is_excused(one[1])] == []
    names = [name for _, name in found]
    assert [one for one in (*PUBLIC, *NOT_OF_TORCH) if not any(name.startswith(one) for name in names)] == [], (
        "excused, and used nowhere"
    )


def test_private_names_are_found_however_they_are_reached() -> None:
    source = (
        "import os\nimport torch\nimport torch._dynamo\nfrom torch._C import thing\nfrom torch.library import _scoped\n"
        "self._own\nos._exit(1)\ntorch._C.call()\nself._kept._deep\nhasattr(group, '_backend')\n"
    )
    assert sorted(find_private_names(source)) == [
        "_C", "_backend", "_deep", "torch._C.thing", "torch._dynamo", "torch.library._scoped",
    ]  # fmt: skip
