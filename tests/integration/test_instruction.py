"""The whole flow with instructions: the built-in ones, packed, of which the responses alone are learned."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.workspace import SMALL, Workspace
from training.record.ledger_file import LEDGER

pytestmark = pytest.mark.slow

INSTRUCTIONS = SMALL | {
    "name": "instructions",
    "description": "A small random-weight model learns to say more of a function.",
    "dataset.source": "builtin:instructions",
    "dataset.template": "dolly",
    "workload": "instruction",
    "ranges": ["0-160"],
    "heldout": "160-200",
    "train.epochs": 2,
    "train.seq_len": 160,
    "train.packing": True,
}
CELLS = ("1proc", "2proc")
OF_CLOCKS = (
    "Not data-bound",
    "Only steps were timed",
    "Speedup is plausible",
    "Training bears out the blocks",
    "Quiet enough to tell",
)
"""Gates that a machine on which much else runs may fail."""


@pytest.fixture(scope="module")
def instructions(
    tmp_path_factory: pytest.TempPathFactory, project: Path, warm: Path, builtin_rows: Path, empty_store: Path
) -> Workspace:
    """The finished comparison of 1 and 2 processes."""
    folder = tmp_path_factory.mktemp("instructions") / "project"
    workspace = Workspace.create(
        folder, project=project, changes=INSTRUCTIONS, programs=warm, rows=builtin_rows, store=empty_store
    )
    workspace.repro()
    return workspace


def read(workspace: Workspace, path: str) -> Any:
    return json.loads((workspace.folder / path).read_text())


def count_by_hand(workspace: Workspace, part: str) -> tuple[int, int]:
    """Return the tokens behind a first one, and those of them that are no prompt, of rows cut to 160."""
    offsets, prompts = (np.load(workspace.folder / f"data/slices/{part}/{name}.npy") for name in ("offsets", "prompts"))
    lengths = [min(int(length), 160) for length in np.diff(offsets)]
    return sum(lengths) - len(lengths), sum(lengths) - int(prompts.sum())


def test_every_gate_that_no_clock_decides_passes_and_speed_was_measured(instructions: Workspace) -> None:
    results = read(instructions, "reports/results.json")
    verdicts = {gate["name"]: gate["verdict"] for gate in results["gates"] if gate["name"] not in OF_CLOCKS}
    assert verdicts == dict.fromkeys(verdicts, "passed")
    assert {"Update equivalence", "Starts from the base model", "Every sample exactly once"} <= set(verdicts)
    assert [arm["cell"] for arm in results["measurement"]["arms"] if not arm["is_wrapped_baseline"]] == list(CELLS)


def test_tokens_and_targets_are_counted_exactly_and_the_targets_are_the_responses(instructions: Workspace) -> None:
    num_tokens, num_targets = count_by_hand(instructions, "0-160")
    assert 0 < num_targets < num_tokens / 2
    for cell in CELLS:
        for epoch in (1, 2):
            folder = f"data/runs/{cell}/segments/0-160-epoch-{epoch}"
            facts = read(instructions, f"{folder}/segment.json")
            assert (facts["num_tokens"], facts["num_targets"]) == (num_tokens, num_targets)
            assert (instructions.folder / folder / LEDGER).is_file()
            lines = (instructions.folder / folder / "steps.jsonl").read_text().splitlines()
            steps = [step for line in lines if (step := json.loads(line))["event"] == "step"]
            assert sum(step["num_targets"] for step in steps) == num_targets
            assert sum(step["num_tokens"] for step in steps) == num_tokens


def test_both_cells_learn_the_same_and_the_responses_become_likelier(instructions: Workspace) -> None:
    evaluation = read(instructions, "data/evaluation/evaluation.json")
    models, num_targets = evaluation["models"], count_by_hand(instructions, "160-200")[1]
    for cell in CELLS:
        assert models[cell]["loss"] < models["base"]["loss"] - 0.3
        assert models[cell]["accuracy_tokens"] > models["base"]["accuracy_tokens"]
        assert models[cell]["perplexity"] == pytest.approx(np.exp(models[cell]["loss"]))
        assert models[cell]["num_targets"] == num_targets
        assert models[cell]["accuracy"] is None
    assert models["2proc"]["loss"] == pytest.approx(models["1proc"]["loss"], rel=1e-4)
    assert evaluation["first_step"]["loss"] is not None
