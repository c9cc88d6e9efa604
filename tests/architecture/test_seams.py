"""The seams: every file that is found by its name offers what its Protocol says, and nobody looks past one."""

import re
import subprocess
import sys

import pytest

from tasks.params.choices import list_file_names
from tests.conftest import PROJECT
from training.combinations import ALLOWED
from training.combinations import WORKLOADS as COMBINED_WORKLOADS
from training.registry import list_strategies
from training.strategies import StrategyTraits, find_traits

SEAMS = {
    "training/workloads": "training.workloads.Workload",
    "tasks/ranks/launchers": "tasks.ranks.launchers.Launcher",
    "tasks/equivalence/reference": "tasks.equivalence.reference.Reference",
    "tasks/data/slicing": "tasks.data.slicing.SlicingFile",
    "tasks/services/trackers": "tasks.services.trackers.Tracker",
    "tasks/reporting/charts": "tasks.reporting.drawing.Chart",
}
"""Folder -> what each of its files offers."""
WORKLOADS = list_file_names("training/workloads")
OTHERS_THERE = {"adapter", "update"}
"""Files that are found by no name: they use those that are."""


@pytest.mark.slow
def test_every_file_of_a_seam_offers_what_its_protocol_says_and_one_that_offers_something_else_is_told(tmp_path):
    lines = ["from training.step.strategy import Strategy"]
    for name in list_strategies():
        lines += [
            f"from training.strategies.{name} import step as {name}",
            f"a_{name}: type[Strategy] = {name}.STRATEGY",
        ]
    for folder, protocol in SEAMS.items():
        package, (module, _, name) = folder.replace("/", "."), protocol.rpartition(".")
        for file in sorted(set(list_file_names(folder)) - OTHERS_THERE):
            held = f"{package}_{file}".replace(".", "_")
            lines += [f"from {module} import {name}", f"import {package}.{file}"]
            lines += [f"{held}: {name} = {package}.{file}"]
    assert len(lines) > 3 * 15
    lines += ["import tasks.process.wording", "wrong: Launcher = tasks.process.wording"]
    # The project's settings, so that what `make check` has found of its files is not found again; but for the packages
    # to look at, which are not asked for here.
    settings = tmp_path / "settings.toml"
    settings.write_text(re.sub(r"(?m)^packages = .*$", "", (PROJECT / "pyproject.toml").read_text()))
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), "-c", "\n".join(lines)]
    told = subprocess.run(command, cwd=PROJECT, text=True, capture_output=True).stdout
    (error,) = re.findall(r"^.* error: .*", told, flags=re.MULTILINE)
    assert error.startswith(f"<string>:{len(lines)}: error: Incompatible types in assignment"), told


def test_every_folder_is_a_strategy_and_what_it_does_not_go_with_is_known():
    folders = {file.parent.name for file in (PROJECT / "training/strategies").glob("*/*.py")}
    assert folders == set(list_strategies())
    assert set(WORKLOADS) == set(COMBINED_WORKLOADS)
    for name, excluded in list_strategies().items():
        assert isinstance(find_traits(name), StrategyTraits), name
        assert set(excluded) <= {*ALLOWED, *WORKLOADS}, name
