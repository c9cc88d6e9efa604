"""A whole comparison on two cards that are not there: from counting them through NVML to the report."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.phantom.cards import CARDS
from tests.phantom.counts import read_counts
from tests.workspace import Workspace

pytestmark = pytest.mark.slow


def test_a_comparison_runs_from_counting_the_cards_to_the_report(
    finished: Workspace, on_phantom: Callable[..., Path], phantom_warm: Path, tmp_path: Path
) -> None:
    counts = on_phantom("H100-80", num_cards=2)
    workspace = finished.copy(tmp_path / "project", programs=phantom_warm)
    # As the preset of the true model has it; rows, model and their cache are those of the finished one.
    workspace.change({"train.precision": "bf16", "train.packing": True, "measure.advice": True})
    said = workspace.repro().stdout
    assert "phantom:" not in said

    machine = json.loads((workspace.folder / "data" / "fingerprint" / "machine.json").read_bytes())
    assert [gpu["name"] for gpu in machine["gpus"]] == [CARDS["H100-80"].name] * 2
    runs = workspace.folder / "data" / "runs"
    for cell, num_ranks in (("1proc", 1), ("2proc", 2)):
        run = json.loads((runs / cell / "run.json").read_bytes())
        assert (run["device"], run["world_size"]) == ("cuda", num_ranks)
        assert workspace.checkpoint(cell, "64-128-epoch-1").is_file()
    results = json.loads((workspace.folder / "reports" / "results.json").read_bytes())
    assert {cell["device"] for cell in results["cells"]} == {"cuda"}
    assert CARDS["H100-80"].name in (workspace.folder / "reports" / "report.md").read_text()
    # Ranks have a card each; the stages that compute in one process use the first.
    assert {frozenset(one.devices) for one in read_counts(counts)} == {frozenset({0}), frozenset({1})}
