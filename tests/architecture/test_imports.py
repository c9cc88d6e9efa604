"""What import-linter (`make imports`) does not see: circles, what is private of torch, and what a rank really loads."""

import json
import re
import sys
from graphlib import TopologicalSorter

import grimp
import pytest

from tests.architecture.test_budgets import PRODUCT
from tests.processes import run_python


def test_no_file_imports_itself_in_a_circle_not_even_inside_a_function_or_for_the_types_alone():
    graph = grimp.build_graph(*PRODUCT, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, imports.values())) > 500
    assert len(list(TopologicalSorter(imports).static_order())) == len(imports) > 250


def test_the_audit_runs_where_there_is_torch_alone():
    graph = grimp.build_graph("ddp_audit", include_external_packages=True, cache_dir=None)
    others = {name for name in graph.modules if not name.startswith("ddp_audit")}
    assert others - sys.stdlib_module_names == {"torch"}


_PRIVATE = re.compile(
    r"^\s*(?:import|from) torch[\w.]*\._.*|^\s*from torch[\w.]* import .*\b_.*|attr\([^,()]+, \"_(?!_|no_split)\w+",
    re.MULTILINE,
)


def test_what_is_private_of_torch_is_imported_and_asked_for_in_few_files(project):
    # Where it is an attribute, ruff's SLF001 says so.
    files = [file for package in PRODUCT for file in (project / package).rglob("*.py")]
    found = {str(file.relative_to(project)): lines for file in files if (lines := _PRIVATE.findall(file.read_text()))}
    assert set(found) == {
        "training/process/torch_private.py", "ddp_audit/observer/torch_private.py",
        "ddp_audit/process/flight_recorder.py",
        "training/probing/live_memory.py",  # What torch's notes on extending it have no other name for.
    }  # fmt: skip


@pytest.mark.slow
def test_a_rank_loads_nothing_of_the_pipeline(project):
    code = (
        "import sys, json, training.__main__, training.workloads.causal_lm, training.strategies.ddp.step\n"
        "names = {'prefect', 'mlflow', 'dvc', 'pandas', 'matplotlib', 'datasets', 'rich', 'tasks', 'flows'}\n"
        "print(json.dumps(sorted(names & set(sys.modules))))"
    )
    done = run_python("-c", code, folder=project)
    assert json.loads(done.stdout) == []
