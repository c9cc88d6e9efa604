"""The benchmark of the bookkeeping: its arithmetic by hand, and one small real run."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bookkeeping
from tasks.params import load_params
from tests.tiny import make_slice, make_tiny_model


def test_the_relative_cost_is_the_median_over_the_pairs_and_its_interval_holds_it() -> None:
    # The machine was three times slower in the last pair, which tells nothing about the cost.
    pairs = np.array([[1.0, 1.2], [2.0, 2.5], [6.0, 7.8]])
    cost, low, high = bookkeeping.relative_cost(pairs)
    assert (cost, low, high) == pytest.approx((0.25, 0.2, 0.3))
    assert bookkeeping.relative_cost(np.array([[2.0, 2.02]] * 20)) == pytest.approx((0.01, 0.01, 0.01))


@pytest.mark.parametrize(
    ("low", "high", "says"), [(-0.02, 0.009, "held"), (0.011, 0.03, "missed"), (-0.02, 0.03, "not resolved")]
)
def test_the_target_is_called_held_only_where_the_interval_is_below_it(low: float, high: float, says: str) -> None:
    assert bookkeeping.judged(low, high).startswith(says)


def test_the_figures_of_a_group_are_those_worked_out_by_hand() -> None:
    # Blocks of 2 steps of 0.1 s; 50 µs of 0.1 s are 0.05 %.
    timed = {
        "pairs": {"counted": [[0.2, 0.21]] * 3, "logged": [[0.2, 0.22]] * 3},
        "inside": {"counted": 50e-6, "logged": 500e-6},
        "one_offs": {"log_point": 400e-6, "checksums": 0.005, "ledger": 0.001, "counter": 1e-6},
    }
    found = bookkeeping.summarise(2, timed, steps=2)
    assert found["bare_step_seconds"] == 0.1
    assert found["arms"]["counted"]["relative_cost"] == pytest.approx(0.05)
    assert found["arms"]["counted"]["share_in_calls"] == pytest.approx(0.0005)
    assert found["counter_seconds_per_step"] == 2e-6
    counted, *_, checksums = bookkeeping.list_rows([found])
    assert counted[:2] == checksums[:2] == ["2", "100.0 ms"]
    assert counted[3:] == ["+5.00% (+5.00% to +5.00%)", "50 µs per step", "0.05%"]
    what = "checksums of all ranks gathered, outside the clock"
    assert checksums[2:] == [what, "", "5,000 µs per segment", "5.00%"]
    # (50 + 2) µs and 400 µs more, of 100 ms.
    inside, logged = bookkeeping.judgement_of(found)
    assert inside == (
        "- 2 ranks, ledger and window, inside the clock of every step: on against off missed; by the time in the "
        "calls, without waiting for the other rank, held (0.052%)"
    )
    assert logged.endswith("held (0.452%)")


@pytest.mark.slow
def test_a_small_run_times_both_arms_in_pairs(tmp_path: Path, project: Path) -> None:
    params = load_params(project / "presets" / "embedded.yaml")
    make_tiny_model(tmp_path / "base_model")
    make_slice(tmp_path / "slices" / "0-256", num_rows=256)
    timed = bookkeeping.run_ranks(tmp_path, params, "1proc", pairs=2, steps=1)
    assert {arm: np.array(pairs).shape for arm, pairs in timed["pairs"].items()} == {
        "counted": (2, 2),
        "logged": (2, 2),
    }
    assert 0 < timed["inside"]["counted"] < timed["inside"]["logged"]
    assert json.dumps(bookkeeping.summarise(1, timed, steps=1))
