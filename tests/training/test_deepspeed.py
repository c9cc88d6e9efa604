"""DeepSpeed beside our own strategies: what it takes up of theirs, what it trains besides, and what it refuses."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.params.choices import read_constant
from tasks.strategies import deepspeed as profile
from tests.extras import skip_without
from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import facts_of, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks, last_words
from training.process.failure import FAILURES, read_failures
from training.process.files import write_json

skip_without("deepspeed")
pytestmark = pytest.mark.slow

STAGES: dict[str, dict[str, Any]] = {
    "1": {"stage": 1},
    "2": {"stage": 2},
    "2 offloaded": {"stage": 2, "offload": "cpu"},
    "3": {"stage": 3, "whole_below": 1000},
}


def _tell(slices: list[Path], folder: Path, strategy: str, **changes: Any) -> dict[str, Any]:
    model = make_tiny_model(folder / "model", hidden_size=96)
    spread = {"strategy": strategy, "world_size": 1 if strategy == "single" else 2, "cell": "ranks"}
    return make_config(folder / "work", model, slices[:1], **{**spread, "learning_rate": 1e-3, **changes})


@pytest.mark.parametrize(
    ("before", "after", "stage"),
    [
        ("ddp", "deepspeed", "2 offloaded"),
        ("ddp", "deepspeed", "3"),
        ("deepspeed", "ddp", "1"),
        ("deepspeed", "ddp", "3"),
    ],
)
def test_what_ddp_saved_it_takes_up_and_the_other_way_round(
    before: str, after: str, stage: str, ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    options = {"ddp": {}, "deepspeed": STAGES[stage]}
    whole = ranks.train(_tell(slices, tmp_path / "ddp", "ddp"))
    config = _tell(slices, tmp_path / "both", before, options=options[before], checkpoint_every_steps=2)
    assert any(ranks.launch(config, fault="rank=0,step=4,kind=sigkill", ends_others=True))
    ranks.train({**config, "strategy": after, "options": options[after]})
    assert facts_of(config)["num_resumes"] == 1
    assert relative_l2(weights_at_end(config), weights_at_end(whole)) < 2e-6


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        ("1", {"optimizer": "sgd"}),
        ("3", {"activation_checkpointing": "layers"}),
        ("3", {"precision": "bf16"}),
        ("2 offloaded", {"packing": True}),
        ("3", {"eval_every_steps": 2}),
    ],
    ids=lambda given: given if isinstance(given, str) else str(next(iter(given))),
)
def test_it_trains_as_one_process_does_in_whatever_way(
    changes: dict[str, Any], stage: str, ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    if "eval_every_steps" in changes:
        changes = {**changes, "heldout_dir": str(slices[1])}
    plain, spread = (
        ranks.train(_tell(slices, tmp_path / name, name, options=options, **changes))
        for name, options in (("single", {}), ("deepspeed", STAGES[stage]))
    )
    most = 1e-3 if "precision" in changes else 2e-6
    assert relative_l2(weights_at_end(spread), weights_at_end(plain)) < most
    assert facts_of(spread)["loss"] == pytest.approx(
        facts_of(plain)["loss"], rel=1e-2 if "precision" in changes else 1e-6
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"precision": "fp16"}, "precision: fp16 is not available for the strategy deepspeed"),
        ({"exact": True}, "exact: true is not available for the strategy deepspeed"),
    ],
)
def test_what_it_cannot_do_it_refuses_in_one_line(
    changes: dict[str, Any], says: str, ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    config = _tell(slices, tmp_path, "deepspeed", **changes)
    assert 0 not in ranks.launch(config)
    assert says in last_words(config)


def test_small_buckets_are_reduced_one_by_one_to_the_same_weights(
    ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    one, many, most = (
        ranks.train(_tell(slices, tmp_path / str(size), "deepspeed", options={"bucket_mib": size}))
        for size in (100, 0.1, 1e-9)
    )
    assert relative_l2(weights_at_end(one), weights_at_end(many)) < 1e-6
    assert relative_l2(weights_at_end(one), weights_at_end(most)) < 1e-6
    assert facts_of(one)["exchange"]["num_buckets"] == 1
    assert 2 < facts_of(many)["exchange"]["num_buckets"] < facts_of(most)["exchange"]["num_buckets"]


@pytest.mark.parametrize("stage", ["1", "2 offloaded", "3"])
def test_the_rank_whose_gradient_is_not_finite_is_named_in_every_stage(
    stage: str, ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    config = _tell(slices, tmp_path / "broken", "deepspeed", options=STAGES[stage])
    assert ranks.launch(config, fault="rank=1,step=4,kind=nan,section=backward") == [5, 5], last_words(config)
    (reason,) = {failure["reason"] for failure in read_failures(Path(config["work_dir"]) / FAILURES)}
    assert reason.startswith("diverged at step 4: gradient norm is nan")
    assert reason.endswith("it comes from rank 1")


def test_the_profile_knows_the_strategys_own_default() -> None:
    options = read_constant("training/strategies/deepspeed.py", "OPTIONS")
    assert profile.count_copies(2, {}) == profile.count_copies(2, {"stage": options["stage"][0]})


@pytest.mark.parametrize("stage", ["2", "3"])
def test_shares_that_are_updated_are_observed_as_weights(
    stage: str, ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    config = _tell(slices, tmp_path, "deepspeed", world_size=1, options=STAGES[stage])
    assert ranks.launch(config, entry="tests.training.observing") == [0], last_words(config)
    parts = json.loads((tmp_path / "work" / "observed-0.json").read_bytes())["parts"]
    size = json.loads((tmp_path / "model" / "manifest.json").read_bytes())["num_parameters"] * 4
    # Of one rank the share is the whole: the model has its weights, and what is updated is as large again.
    assert parts["weights"] == pytest.approx(2 * size, rel=0.05)
    assert parts["moments"] == pytest.approx(2 * size, rel=0.05)


def test_it_trains_in_the_environment_that_the_other_cells_have(slices: list[Path], tmp_path: Path) -> None:
    config = _tell(slices, tmp_path, "deepspeed", world_size=1, options=STAGES["2"])
    write_json(tmp_path / "config.json", config)
    # This process imported it, which told torch something.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
    command = [sys.executable, "-m", "training", "--config", str(tmp_path / "config.json")]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (setting,) = facts_of(config)["settings"]
    assert not [name for name in setting["environment"] if name.startswith("PYTORCH_")], setting
    assert setting["packages"] == {"deepspeed": importlib.metadata.version("deepspeed")}
