"""The whole flow with instructions: the built-in ones, packed, of which the responses alone are learned."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.extras import skip_without
from tests.hub_server import HubServer
from tests.integration.test_sequence_classification import OF_CLOCKS
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
_TOKEN = "hf_canaryCanaryCanaryCanaryCanary02"


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


def test_without_seconds_for_a_waterfall_there_is_none_and_the_page_says_so(
    instructions: Workspace,
) -> None:
    measurement = read(instructions, "reports/results.json")["measurement"]
    assert measurement["waterfalls"] == []
    assert [arm["arm"] for arm in measurement["arms"]] == list(CELLS)
    report = (instructions.folder / "reports/report.md").read_text()
    assert "The waterfall was left out: measure.waterfall_seconds is 0" in report


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


def test_the_page_has_what_was_answered_before_and_after_side_by_side(instructions: Workspace) -> None:
    text = (instructions.folder / "reports/report.md").read_text()
    quality = text.split("## Is the model as good?")[1].split("## What it costs")[0]
    assert re.search(r"\| Model \| Loss \| Perplexity \| Token accuracy \| Against base \| Tokens \|", quality)
    assert "nats per token of the response" in quality
    samples = read(instructions, "data/evaluation/evaluation.json")["samples"]
    assert len(samples) == 3
    for sample in samples:
        assert sample["prompt"].endswith("### Response:\n")
        assert "### " not in sample["reference"]
        assert set(sample["continuations"]) == {"base", *CELLS}
        assert f"Row {sample['row_id']}" in quality


def test_each_epoch_becomes_a_branch_and_the_runs_are_in_wandb_without_training_anew(
    instructions: Workspace, tmp_path: Path
) -> None:
    skip_without("wandb")
    before = {cell: instructions.launches(cell) for cell in CELLS}
    # Programs that start anew: where the Hub is, is asked when its client is imported.
    workspace = Workspace(instructions.folder)
    workspace.change(
        {"tracking.kind": ["mlflow", "wandb"], "upload.repo_id": "owner/tiny", "upload.revisions": "per_epoch"}
    )
    with HubServer(tokens=(_TOKEN,)) as hub:
        workspace.repro(WANDB_MODE="offline", **hub.environment(cache=tmp_path / "cache", token=_TOKEN))
        repo = hub.repos["model", "owner/tiny"]
        messages = {branch: [message for _, message, _ in commits] for branch, commits in repo.branches.items()}
    assert messages == {
        f"epoch-{epoch}": ["initial commit", f"instructions: cell 2proc, epoch-{epoch}"] for epoch in (1, 2)
    }
    # The comparison and its cells.
    assert len(list((instructions.folder / "wandb").glob("offline-run-*"))) == 1 + len(CELLS)
    assert {cell: instructions.launches(cell) for cell in CELLS} == before


def test_other_prompts_are_other_rows_and_need_no_other_data_set(instructions: Workspace) -> None:
    before = read(instructions, "data/slices/manifest.json")["slices"]["0-160"]
    instructions.change({"dataset.template": "plain"})
    instructions.repro("slice")
    after = read(instructions, "data/slices/manifest.json")["slices"]["0-160"]
    assert after["num_rows"] >= before["num_rows"]
    assert after["num_tokens"] < before["num_tokens"]
    assert len(list((instructions.folder / ".work/download/rows").iterdir())) == 2


def test_a_template_of_ones_own_is_watched_as_any_local_file_is(instructions: Workspace) -> None:
    def count_tokens() -> int:
        instructions.repro("slice")
        return int(read(instructions, "data/slices/manifest.json")["slices"]["0-160"]["num_tokens"])

    file = instructions.folder / "prompt.txt"
    file.write_text("{instruction}\nWhy?\n")
    instructions.change({"dataset.template": "path:prompt.txt"})
    before = count_tokens()
    assert count_tokens() == before
    file.write_text("{instruction}\nWhy, and what for, and since when?\n")
    assert count_tokens() > before
    assert read(instructions, "data/raw/manifest.json")["template"] == file.read_text()
