"""A comparison on two cards that are not there: from counting them through NVML to the evaluation.

The report is left out: every loss is 0 there, and its gates hold losses against each other.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.gates.setting import find_certificate_problems
from tasks.records.certificate import CertifiedCell
from tasks.records.outputs import read_run
from tests.phantom.cards import CARDS
from tests.phantom.counts import read_counts
from tests.workspace import Workspace

pytestmark = pytest.mark.slow


def test_a_comparison_runs_from_counting_the_cards_to_the_evaluation(
    finished: Workspace, on_phantom: Callable[..., Path], phantom_warm: Path, tmp_path: Path
) -> None:
    counts = on_phantom("H100-80", num_cards=2)
    workspace = finished.copy(tmp_path / "project", programs=phantom_warm)
    # As the preset of the true model has it; rows, model and their cache are those of the finished comparison.
    # The noise of gradients is read from the card, which has no numbers.
    workspace.change({"train.precision": "bf16", "train.packing": True, "quality": {"noise_batches": 0}})
    said = workspace.repro("measure", "evaluate").stdout
    assert "phantom:" not in said

    def read(name: str) -> Any:
        return json.loads((workspace.folder / "data" / name).read_bytes())

    assert [gpu["name"] for gpu in read("fingerprint/machine.json")["gpus"]] == [CARDS["H100-80"].name] * 2
    (certified,) = read("measurements/certificate.json")["cells"]
    assert (certified["device"], certified["num_steps"], len(certified["updates"])) == ("cuda", 8, 8)
    # In fp32, where the packs of a card run in other kernels; the training's own precision is named beside it.
    assert certified["settings"][0]["train"]["precision"] == "fp32"
    assert certified["replaced"] == {"train.precision": "bf16"}
    trained = read_run(workspace.folder / "data/runs/2proc")
    assert find_certificate_problems(CertifiedCell.model_validate(certified), trained) == []
    speed = read("measurements/speed.json")
    assert [len(starts[-1]) for starts in speed["devices_of_starts"].values()] == [1, 2]
    # torch's profiler asks CUPTI, which the phantom has not: its ranks end, and cost the timeline and nothing else.
    assert [one for one in speed["left_out"] if not one.startswith("The timeline of ")] == []
    assert speed["predictions"][0]["curves"]
    assert speed["waterfalls"]
    for cell, num_ranks in (("1proc", 1), ("2proc", 2)):
        run = read(f"runs/{cell}/run.json")
        assert (run["device"], run["world_size"]) == ("cuda", num_ranks)
        assert workspace.checkpoint(cell, "64-128-epoch-1").is_file()
    assert read("evaluation/evaluation.json")["models"].keys() == {"base", "1proc", "2proc"}
    # Ranks have a card each; a stage that computes in one process takes the first and no other.
    used = {frozenset(one.devices) for one in read_counts(counts) if one.devices}
    assert used == {frozenset({0}), frozenset({1})}
