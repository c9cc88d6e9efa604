"""A baseline that one process beats at its own work is slowed, or not at its best."""

from pathlib import Path
from typing import Any

import pytest

from ddp_audit.process.findings import Finding
from tasks.gates.baseline import check_baseline
from tasks.records.blocks import ArmBlocks
from tests.tasks.reporting.blocks import SECONDS, arm_blocks, write_blocks
from tests.tasks.reporting.comparison import outputs_of

WRAPPED, ALONE = "1proc in a DDP wrapper", "2proc, one copy alone"


def judged(folder: Path, params: dict[str, Any], *changed: ArmBlocks, beside: tuple[ArmBlocks, ...] = ()) -> Finding:
    write_blocks(folder, *changed, beside=beside)
    outputs = outputs_of(folder, params)
    assert check_baseline(outputs, "2proc") is None
    found = check_baseline(outputs, "1proc")
    assert found is not None
    return found


def make_tuned(times: float) -> ArmBlocks:
    """Return the baseline with larger micro-batches, so many times as fast."""
    one = arm_blocks("1proc", turn=None, seconds=2 * 1.02 * SECONDS["1proc"] / times)
    return one.model_copy(update={"arm": "1proc with micro-batches of 4", "kind": "tuned", "phase": "waterfall"})


def test_nothing_that_was_timed_beside_the_baseline_is_faster(tmp_path: Path, params: dict[str, Any]) -> None:
    found = judged(tmp_path, params, beside=(make_tuned(1.05),))
    assert (found.outcome, found.numbers["arms"]) == ("passed", 3), found.compared


@pytest.mark.parametrize(("name", "times"), [(WRAPPED, 1.1), (ALONE, 1.2)])
def test_a_baseline_slower_than_its_wrapped_copy_or_another_cells_rank_is_slowed(
    tmp_path: Path, params: dict[str, Any], name: str, times: float
) -> None:
    share = 0.5 if name == ALONE else 1.0
    found = judged(tmp_path, params, arm_blocks(name, turn=None, seconds=share * 2 * 1.02 * SECONDS["1proc"] / times))
    assert (found.outcome, found.code, found.numbers["arm"]) == ("failed", "slowed", name)
    assert found.numbers["gain"] == pytest.approx(times, rel=0.03)


def test_a_baseline_that_another_micro_batch_makes_faster_is_not_at_its_best(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    found = judged(tmp_path, params, beside=(make_tuned(1.3),))
    assert (found.outcome, found.code) == ("not checked", "not_at_its_best")


def test_nothing_beside_it_is_not_checked_and_no_measurement_says_nothing(
    tmp_path: Path, params: dict[str, Any]
) -> None:
    assert check_baseline(outputs_of(tmp_path, params), "1proc") is None
    write_blocks(tmp_path)
    outputs = outputs_of(tmp_path, params)
    assert outputs.measurement is not None
    blocks = [one for one in outputs.measurement.blocks if one.kind == "as trained"]
    outputs.measurement.blocks[:] = blocks
    found = check_baseline(outputs, "1proc")
    assert found is not None
    assert (found.outcome, found.code) == ("not checked", "nothing_beside")
