"""A baseline that one process beats at its own work is slowed, or not at its best."""

import pytest

from tasks.gates.baseline import check_baseline
from tests.tasks.reporting.blocks import SECONDS, arm_blocks, write_blocks
from tests.tasks.reporting.comparison import outputs_of

WRAPPED, ALONE = "1proc in a DDP wrapper", "2proc, one copy alone"


def judged(folder, params, *changed, beside=()):
    write_blocks(folder, *changed, beside=beside)
    outputs = outputs_of(folder, params)
    assert check_baseline(outputs, "2proc") is None
    return check_baseline(outputs, "1proc")


def make_tuned(times):
    """Return the baseline with larger micro-batches, so many times as fast."""
    one = arm_blocks("1proc", turn=None, seconds=2 * 1.02 * SECONDS["1proc"] / times)
    return one.model_copy(update={"arm": "1proc with micro-batches of 4", "kind": "tuned", "phase": "waterfall"})


def test_nothing_that_was_timed_beside_the_baseline_is_faster(tmp_path, params):
    found = judged(tmp_path, params, beside=(make_tuned(1.05),))
    assert (found.outcome, found.numbers["arms"]) == ("passed", 3), found.compared


@pytest.mark.parametrize(("name", "times"), [(WRAPPED, 1.1), (ALONE, 1.2)])
def test_a_baseline_slower_than_its_wrapped_copy_or_another_cells_rank_is_slowed(tmp_path, params, name, times):
    share = 0.5 if name == ALONE else 1.0
    found = judged(tmp_path, params, arm_blocks(name, turn=None, seconds=share * 2 * 1.02 * SECONDS["1proc"] / times))
    assert (found.outcome, found.code, found.numbers["arm"]) == ("failed", "slowed", name)
    assert found.numbers["gain"] == pytest.approx(times, rel=0.03)


def test_a_baseline_that_another_micro_batch_makes_faster_is_not_at_its_best(tmp_path, params):
    found = judged(tmp_path, params, beside=(make_tuned(1.3),))
    assert (found.outcome, found.code) == ("not checked", "not_at_its_best")


def test_nothing_beside_it_is_not_checked_and_no_measurement_says_nothing(tmp_path, params):
    assert check_baseline(outputs_of(tmp_path, params), "1proc") is None
    write_blocks(tmp_path)
    outputs = outputs_of(tmp_path, params)
    blocks = [one for one in outputs.measurement.blocks if one.kind == "as trained"]
    outputs.measurement.blocks[:] = blocks
    found = check_baseline(outputs, "1proc")
    assert (found.verdict, found.code) == ("not checked", "nothing_beside")
