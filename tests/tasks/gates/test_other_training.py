"""A training from another seed ran as the cell's first one did: its seconds are part of the time to quality, too."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.gates import other_training
from tasks.gates.checks import CHECKS, CHECKS_OF_BLOCKS
from tasks.gates.other_training import check_seeds
from tasks.gates.setting import find_setting_problems
from tasks.records.gate import Finding, make_unchecked_finding
from tasks.records.outputs import Outputs, RunOutputs
from tests.tasks.reporting.blocks import SECONDS, give_steps, write_blocks
from tests.tasks.reporting.comparison import PARAMS, edit_json, edit_segment, outputs_of, setting_of, write_comparison
from training.record.segment_facts import RankDevice

LOCAL = {"strategy": "local_sgd", "world_size": 2, "options": {"every_steps": 2}}
PARAMS_OF_OTHERS: dict[str, Any] = {**PARAMS, "cells": {"1proc": PARAMS["cells"]["1proc"], "2proc": LOCAL}}
CELLS = ["1proc", "2proc"]


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """A comparison with a cell that is another training, with timed blocks, and without another seed."""
    # What else is checked of a seed cannot be said of files that were written by hand.
    monkeypatch.setattr(other_training, "_CHECKS_OF_A_SEED", ())
    write_comparison(tmp_path, params=PARAMS_OF_OTHERS)
    write_blocks(tmp_path)
    found = outputs_of(tmp_path, PARAMS_OF_OTHERS)
    _give_seconds(found.runs)
    return found


def _give_seconds(runs: dict[str, RunOutputs], **factors: float) -> None:
    """Let trainings have 80 steps that take so many times as long as the timed ones."""
    waves = 1 + 0.02 * np.sin(np.arange(80) / 6)
    taken = {cell: factors.get(f"of_{cell}", 1.0) * SECONDS[cell] * waves for cell in runs}
    give_steps(type("Trained", (), {"runs": runs})(), **taken)  # type: ignore[arg-type]


def _from_seed(run: RunOutputs, *, seed: int = 1, **changes: Any) -> RunOutputs:
    """Return the run as one from that seed; changes are made to what its ranks recorded, or to its segments."""
    train = {**run.facts.train, "seed": seed}
    segments = []
    for segment in run.segments:
        (setting,) = segment.facts.settings
        own = {name: value for name, value in changes.items() if name not in vars(segment.facts)}
        others = {name: value for name, value in changes.items() if name in vars(segment.facts)}
        if "rank_devices" in others:
            others["rank_devices"] = others["rank_devices"] * run.facts.world_size
        setting = {**setting, "train": {**setting["train"], "seed": seed}, **own}
        facts = dataclasses.replace(segment.facts, **{"settings": [setting], **others})
        segments.append(dataclasses.replace(segment, facts=facts))
    return RunOutputs(run.facts.model_copy(update={"train": train}), segments)


def _check(outputs: Outputs, cell: str, **changes: Any) -> Finding:
    """Return what is found where that cell's training from seed 1 ran otherwise."""
    found = check_seeds(_add_seed(outputs, cell, **changes), cell)
    assert found is not None
    return found


def _judge(gate: str, outputs: Outputs, cell: str) -> Finding:
    found = next(one for one in CHECKS + CHECKS_OF_BLOCKS if one.name == gate).judge(outputs, cell)
    assert found is not None
    return found


def _add_seed(outputs: Outputs, cell: str, *, of_1proc: float = 1.0, of_2proc: float = 1.0, **changes: Any) -> Outputs:
    runs = {one: _from_seed(outputs.runs[one], **(changes if one == cell else {})) for one in CELLS}
    _give_seconds(runs, of_1proc=of_1proc, of_2proc=of_2proc)
    return dataclasses.replace(outputs, seeds={1: runs})


@pytest.mark.parametrize("cell", CELLS)
def test_a_training_from_another_seed_that_ran_as_the_first_did_passes(outputs: Outputs, cell: str) -> None:
    found = _check(outputs, cell)
    assert found.verdict == "passed", found.compared


RAN_OTHERWISE: dict[str, tuple[dict[str, Any], str]] = {
    "another attention kernel": (
        {"kernels": {"attention": "eager", "deterministic": False, "matmul_precision": "highest"}},
        "the ranks used kernels.attention eager, its first seed sdpa",
    ),
    "arithmetic in 16 bit, by the environment": (
        {"environment": {"OMP_NUM_THREADS": "1", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}},
        "the ranks used environment.ONEDNN_DEFAULT_FPMATH_MODE BF16, its first seed None",
    ),
    "another torch": (
        {"versions": {"python": "3.11.9", "torch": "2.14.0", "cuda": None}},
        "the ranks used versions.torch 2.14.0, its first seed 2.15.0",
    ),
    "a rank with other threads": (
        {"ranks_differ": {"rank 1": {"kernels.threads": 2}}},
        "rank 1 has {'kernels.threads': 2}",
    ),
    "another version of what computes its updates": (
        {"packages": {"deepspeed": "1.1"}},
        "the ranks used packages.deepspeed 1.1, its first seed None",
    ),
    "a low priority": (
        {"priority": {"niceness": 19, "policy": 0}},
        "the processes had niceness 19, its first seed's None",
    ),
    "no record of it": ({"settings": []}, "nothing was recorded of what it trained with"),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("defect", RAN_OTHERWISE)
def test_one_that_ran_otherwise_than_the_first_did_fails(defect: str, cell: str, outputs: Outputs) -> None:
    changes, says = RAN_OTHERWISE[defect]
    found = _check(outputs, cell, **changes)
    assert found.verdict == "failed", found.compared
    assert f"{cell} from seed 1: " in found.compared
    assert says in found.compared
    other = next(one for one in CELLS if one != cell)
    assert _check(outputs, other).verdict == "passed"


@pytest.mark.parametrize(("of_1proc", "of_2proc"), [(1.6, 1.0), (1.0, 0.6), (1.0, 1.6)])
def test_seconds_of_a_seed_that_the_turns_do_not_bear_out_fail(
    outputs: Outputs, of_1proc: float, of_2proc: float
) -> None:
    """As where other programs were beside the baseline's training from one seed, and beside nothing else."""
    gate = "Training bears out the blocks"
    assert _judge(gate, _add_seed(outputs, "2proc"), "2proc").verdict == "passed"
    found = _judge(gate, _add_seed(outputs, "2proc", of_1proc=of_1proc, of_2proc=of_2proc), "2proc")
    assert found.verdict == "failed"
    assert found.compared.startswith("from seed 1: 2proc: measured")
    assert "another step was timed than trained, or the machine changed" in found.compared


@pytest.mark.parametrize("slow", CELLS)
@pytest.mark.parametrize(
    ("gate", "changes", "says"),
    [
        ("Not data-bound", {"data_wait_seconds": 3.0}, "waited for data in"),
        (
            "Every rank has a device of its own",
            {"rank_devices": [RankDevice(cpus=[0, 1], cpu_quota=0.5)]},
            "may use the time of 0.5 cores",
        ),
    ],
)
def test_what_its_seconds_depend_on_is_asked_of_every_seed(
    gate: str, changes: dict[str, Any], says: str, slow: str, outputs: Outputs
) -> None:
    """The baseline's seconds are in the cell's time to quality, too; a speedup at equal work has those of the first."""
    assert _judge(gate, _add_seed(outputs, slow), "2proc").verdict == "passed"
    found = _judge(gate, _add_seed(outputs, slow, **changes), "2proc")
    assert found.verdict == "failed"
    assert found.compared.startswith(f"from seed 1: {slow}")
    assert says in found.compared


def test_the_seconds_of_a_cell_of_the_same_work_are_told_from_no_other_seed(outputs: Outputs) -> None:
    three = outputs.params.model_copy(
        update={"cells": {**outputs.params.cells, "3proc": outputs.params.cells["1proc"]}}
    )
    both = _add_seed(outputs, "1proc", data_wait_seconds=3.0)
    runs = {**both.runs, "3proc": both.runs["1proc"]}
    seeds = {1: {**both.seeds[1], "3proc": both.seeds[1]["1proc"]}}
    same = dataclasses.replace(both, params=three, runs=runs, seeds=seeds, measurement=None)
    assert _judge("Not data-bound", same, "3proc").verdict == "passed"
    assert _judge("Not data-bound", same, "1proc").verdict == "passed"
    assert _judge("Not data-bound", same, "2proc").verdict == "failed"


def test_what_could_not_be_told_of_a_seed_is_no_pass(outputs: Outputs, monkeypatch: pytest.MonkeyPatch) -> None:
    def look_away(_: Outputs, cell: str) -> Finding:
        return make_unchecked_finding(f"{cell}: cannot be told")

    monkeypatch.setattr(other_training, "_CHECKS_OF_A_SEED", (look_away,))
    found = _check(outputs, "1proc")
    assert found.verdict == "not checked"
    assert found.compared == "1proc from seed 1: 1proc: cannot be told"


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_training_whose_seconds_are_told_had_the_priority_of_the_baselines(tmp_path: Path, is_timed: bool) -> None:
    for params in (PARAMS, PARAMS_OF_OTHERS):
        folder = tmp_path / str(len(params["cells"]["2proc"]))
        write_comparison(folder, params=params)
        if is_timed:
            write_blocks(folder)
        assert find_setting_problems(outputs_of(folder, params), "2proc") == []
        nice = setting_of(params) | {"priority": {"niceness": 15, "policy": 0}}
        edit_segment(folder, "2proc", settings=[nice])
        found = find_setting_problems(outputs_of(folder, params), "2proc")
        # A speedup of timed blocks says nothing of the training's seconds.
        assert bool(found) == (params is PARAMS_OF_OTHERS or not is_timed)
        assert all("2proc 0-8 epoch 1: the processes had " in one for one in found)


def test_what_says_nothing_of_the_first_training_may_fail_of_another_seed(outputs: Outputs) -> None:
    def find(view: Outputs, cell: str) -> Finding | None:
        is_first = view.runs[cell].facts.train["seed"] == outputs.runs[cell].facts.train["seed"]
        return None if is_first else Finding("failed", f"{cell}: slow")

    gate = next(one for one in CHECKS if one.name == "Not data-bound")
    found = dataclasses.replace(gate, find=find).judge(_add_seed(outputs, "2proc"), "2proc")
    assert found is not None
    assert found.verdict == "failed"


def test_betas_are_those_that_the_cell_asks_for_and_no_others(tmp_path: Path) -> None:
    """Of twice the batch they are squared where its memory lasts as many samples, and stay where that was not asked."""
    by_samples, by_steps = (
        {**PARAMS, "cells": {**PARAMS["cells"], "2proc": {"strategy": "ddp", "world_size": 2, "batch": batch}}}
        for batch in ({"learning_rate": "none", "betas": "samples"}, {"learning_rate": "none"})
    )
    write_comparison(tmp_path, params=by_samples)

    def look(asked: dict[str, Any], used: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
        """Return the problems of a comparison that asks for this, of ranks that used that and a run that says it."""
        train, written = (outputs_of(tmp_path, one).params.train_of("2proc") for one in (used, recorded))
        edit_json(tmp_path / "runs" / "2proc" / "run.json", train=written.model_dump())
        for part in asked["ranges"]:
            edit_segment(tmp_path, "2proc", part, settings=[setting_of({**asked, "train": train.model_dump()})])
        return find_setting_problems(outputs_of(tmp_path, asked), "2proc")

    assert look(by_samples, by_samples, by_samples) == []
    assert look(by_steps, by_steps, by_steps) == []
    squared = outputs_of(tmp_path, by_samples).params.train_of("2proc")
    assert (squared.adam_beta1, squared.adam_beta2) == (0.9**2, 0.999**2)
    used = "\n".join(look(by_samples, by_steps, by_samples))
    assert f"the ranks used train.adam_beta1 0.9, 1proc {0.9**2}" in used
    assert f"the ranks used train.adam_beta2 0.999, 1proc {0.999**2}" in used
    hidden = "\n".join(look(by_steps, by_samples, by_samples))
    assert f"the record has adam_beta1 {0.9**2}, params.yaml 0.9" in hidden
