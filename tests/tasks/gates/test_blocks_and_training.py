"""The published speedup and seconds are those of the blocks, and the whole training bears them out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.gates.blocks_and_training import check_blocks_against_training
from tasks.gates.equivalence import check_update_equivalence
from tasks.records.gate import Finding
from tests.tasks.reporting.blocks import NUM_TURNS, SECONDS, SPEEDUP, arm_blocks, block, give_steps, write_blocks
from tests.tasks.reporting.comparison import outputs_of


def judged(
    folder: Path, params: dict[str, Any], cell: str = "2proc", *, of_1proc: float = 1.0, of_2proc: float = 1.0,
    scatter: float = 0.02, num_steps: int = 80,
) -> Finding:  # fmt: skip
    """Return the finding where the training took so many times as long as the blocks, on as many positions."""
    outputs = outputs_of(folder, params)
    waves = 1 + scatter * np.sin(np.arange(num_steps) / 6)
    # A block's step has 32 positions, as one of the training.
    give_steps(
        outputs, **{"1proc": of_1proc * SECONDS["1proc"] * waves, "2proc": of_2proc * SECONDS["2proc"] * waves}
    )  # fmt: skip
    found = check_blocks_against_training(outputs, cell)
    assert found is not None
    return found


def test_a_speedup_that_the_training_has_too_passes(tmp_path: Path, params: dict[str, Any]) -> None:
    write_blocks(tmp_path)
    found = judged(tmp_path, params)
    assert found.verdict == "passed", found.compared
    assert found.numbers["of_training"] == pytest.approx(SPEEDUP)
    assert judged(tmp_path, params, "1proc").verdict == "passed"


@pytest.mark.parametrize("factor", [1.95 / 1.43, 0.70 / 1.43])
def test_a_published_speedup_that_its_own_turns_do_not_give_fails(
    tmp_path: Path, params: dict[str, Any], factor: float
) -> None:
    write_blocks(tmp_path, speedup=SPEEDUP * factor)
    found = judged(tmp_path, params)
    assert found.verdict == "failed"
    assert "published, its turns beside 1proc give 1.62x" in found.compared
    # The step times and rates are of blocks, too.
    fast = arm_blocks("2proc", turn=None, seconds=0.02)
    told = write_blocks(tmp_path)
    write_blocks(tmp_path, fast, arms=told.arms)
    assert "42.8 ms per step published, its blocks took 10.0 ms" in judged(tmp_path, params).compared
    assert "per second published, its blocks had" in judged(tmp_path, params).compared


@pytest.mark.parametrize(("of_1proc", "of_2proc"), [(1.43 / 1.95, 1.0), (1.0, 0.55), (1.0, 1.43 / 1.0)])
def test_a_measured_speedup_that_the_training_refutes_fails(
    tmp_path: Path, params: dict[str, Any], of_1proc: float, of_2proc: float
) -> None:
    """A wait in the timed step of the baseline, or blocks of another cell altogether, look like this."""
    write_blocks(tmp_path)
    found = judged(tmp_path, params, of_1proc=of_1proc, of_2proc=of_2proc)
    assert found.verdict == "failed"
    assert "another step was timed than trained, or the machine changed" in found.compared


def test_a_machine_that_drifts_alike_for_both_or_by_a_tenth_withholds_nothing(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    write_blocks(tmp_path)
    for drift in ({"of_1proc": 1.4, "of_2proc": 1.4}, {"of_1proc": 1.1}, {"of_2proc": 1.1}, {"of_2proc": 0.91}):
        assert judged(tmp_path, params, **drift).verdict == "passed"


def test_a_training_that_varied_widely_or_was_short_decides_nothing(tmp_path: Path, params: dict[str, Any]) -> None:
    write_blocks(tmp_path)
    busy = judged(tmp_path, params, scatter=0.6)
    assert busy.verdict == "not checked"
    assert "refutes nothing" in busy.compared
    assert judged(tmp_path, params, num_steps=7).verdict == "not checked"


def test_seconds_of_another_size_than_the_trainings_fail_the_baseline_too(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    write_blocks(tmp_path)
    found = judged(tmp_path, params, "1proc", of_1proc=0.4)
    assert found.verdict == "failed"
    assert "2.55 times as long in the blocks as in the training" in found.compared


def test_weak_scaling_is_another_training_which_nothing_bears_out_or_certifies(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    told = write_blocks(tmp_path)
    assert judged_equivalence(tmp_path, params) == "passed"
    arms = list(told.arms)
    arms[1] = arms[1].model_copy(update={"global_batch_size": 8})
    write_blocks(tmp_path, arms=arms, scaling="weak")
    found = judged(tmp_path, params)
    assert found.verdict == "not checked"
    assert "timed on steps of 8 samples (weak scaling), trained with 4" in found.compared
    assert judged_equivalence(tmp_path, params) == "not checked"


def judged_equivalence(folder: Path, params: dict[str, Any]) -> str:
    found = check_update_equivalence(outputs_of(folder, params), "2proc")
    assert found is not None
    return found.verdict


def test_the_blocks_are_as_many_as_written() -> None:
    assert len(arm_blocks("2proc").blocks) == NUM_TURNS
    assert block("2proc", 1).num_positions == 64
