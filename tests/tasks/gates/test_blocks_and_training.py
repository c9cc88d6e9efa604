"""The published speedup and seconds are those of the blocks, and the whole training bears them out."""

from dataclasses import replace

import numpy as np
import pytest

from tasks.gates.blocks_and_training import check_blocks_against_training
from tasks.process.failure import DataError
from tasks.records.blocks import BLOCKS_FILE
from tasks.records.blocks import write_blocks as write_raw_blocks
from tests.tasks.reporting.blocks import SECONDS, SPEEDUP, arm_blocks, give_steps, write_blocks
from tests.tasks.reporting.comparison import outputs_of
from tests.tasks.reporting.measured import estimate


def judged(folder, params, cell="2proc", *, of_1proc=1.0, of_2proc=1.0, scatter=0.02, num_steps=80, wave_steps=6):
    """Return the finding where the training took so many times as long as the blocks, on as many positions."""
    outputs = outputs_of(folder, params)
    waves = 1 + scatter * np.sin(np.arange(num_steps) / wave_steps)
    # A block's step has 32 positions, as one of the training.
    give_steps(
        outputs, **{"1proc": of_1proc * SECONDS["1proc"] * waves, "2proc": of_2proc * SECONDS["2proc"] * waves}
    )  # fmt: skip
    return check_blocks_against_training(outputs, cell)


def test_a_speedup_that_the_training_has_too_passes(tmp_path, params):
    write_blocks(tmp_path)
    found = judged(tmp_path, params)
    assert found.outcome == "passed", found.compared
    assert found.numbers["measured_over_trained"] == pytest.approx(1.0)
    # Another gate may withhold it.
    assert "1.62" not in found.compared
    assert SPEEDUP not in found.numbers.values()
    assert judged(tmp_path, params, "1proc").outcome == "passed"


def test_published_figures_that_the_turns_do_not_give_fail(tmp_path, params):
    write_blocks(tmp_path, speedup=SPEEDUP * 1.36)
    found = judged(tmp_path, params)
    assert found.code == "other_speedup"
    assert (found.numbers["published"], found.numbers["counted"]) == pytest.approx((SPEEDUP * 1.36, SPEEDUP))
    # The step times and rates are of blocks, too.
    told = write_blocks(tmp_path)
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, seconds=0.02), speeds=told.speeds)
    problems = {one.code: one.numbers for one in judged(tmp_path, params).problems}
    assert {"other_throughput", "other_step_time"} <= problems.keys()
    assert problems["other_step_time"]["counted"] == pytest.approx(0.01)


@pytest.mark.parametrize(("of_1proc", "of_2proc"), [(1.43 / 1.95, 1.0), (1.0, 0.55), (1.0, 1.43 / 1.0)])
def test_a_measured_speedup_that_the_training_refutes_fails(tmp_path, params, of_1proc, of_2proc):
    """A wait in the timed step of the baseline, or blocks of another cell altogether, look like this."""
    write_blocks(tmp_path)
    found = judged(tmp_path, params, of_1proc=of_1proc, of_2proc=of_2proc)
    assert found.code == "speedup_not_borne_out"
    assert found.numbers["measured"] == pytest.approx(SPEEDUP)


def test_blocks_that_disagree_with_a_training_by_other_files_name_the_remedy(tmp_path, params):
    write_blocks(tmp_path, code_digest="0ther" * 12)
    assert judged(tmp_path, params).outcome == "passed", "the files are a fact, no key: the seconds agree"
    for disagrees in (judged(tmp_path, params, of_2proc=0.55), judged(tmp_path, params, "1proc", of_1proc=0.4)):
        assert disagrees.outcome == "failed"
        assert disagrees.problems[1].code == "other_files"
        assert disagrees.compared.endswith("make retrain")
    write_blocks(tmp_path)
    assert "other_files" not in {one.code for one in judged(tmp_path, params, of_2proc=0.55).problems}


def test_a_machine_that_drifts_alike_for_both_or_by_a_tenth_withholds_nothing(tmp_path, params):
    write_blocks(tmp_path)
    for drift in ({"of_1proc": 1.4, "of_2proc": 1.4}, {"of_1proc": 1.1}, {"of_2proc": 1.1}, {"of_2proc": 0.91}):
        assert judged(tmp_path, params, **drift).outcome == "passed"


def test_a_training_that_varied_widely_or_was_short_decides_nothing(tmp_path, params):
    write_blocks(tmp_path)
    busy = judged(tmp_path, params, scatter=0.6)
    assert (busy.outcome, busy.code) == ("not checked", "training_too_blunt")
    # What steps scatter by chance averages out.
    assert judged(tmp_path, params, scatter=0.6, wave_steps=0.3).outcome == "passed"
    assert judged(tmp_path, params, scatter=0.6, wave_steps=0.3, of_2proc=0.7).code == "speedup_not_borne_out"
    assert judged(tmp_path, params, num_steps=3).code == "too_few_steps"
    # Of few steps all count, not the middle of them.
    assert judged(tmp_path, params, num_steps=4).outcome == "passed"
    assert judged(tmp_path, params, num_steps=7).outcome == "passed"


def test_only_late_and_quiet_steps_of_the_training_count_and_none_is_not_checked(tmp_path, params):
    write_blocks(tmp_path)
    outputs = outputs_of(tmp_path, params)
    slow_start = np.r_[np.full(40, 3.0), np.ones(40)]
    give_steps(outputs, **{"1proc": SECONDS["1proc"] * np.ones(80), "2proc": SECONDS["2proc"] * slow_start})
    found = check_blocks_against_training(outputs, "2proc")
    assert found.verdict == "passed", found.compared
    # Others slowed every second late step down, and were seen; then all.
    loud = np.where(np.arange(80) % 2, 0.5, 0.0)
    give_steps(outputs, **{"1proc": SECONDS["1proc"] * np.ones(80), "2proc": SECONDS["2proc"] * (1 + 2 * loud)})
    for share, verdict in ((np.zeros(80), "failed"), (loud, "passed"), (np.full(80, 0.5), "not checked")):
        steps = outputs.runs["2proc"].steps
        outputs.runs["2proc"].__dict__["steps"] = replace(steps, others_share=share)
        found = check_blocks_against_training(outputs, "2proc")
        assert found.verdict == verdict, found.compared
    assert found.code == "training_beside_others"


def test_a_speedup_that_still_changes_within_a_start_is_not_proven(tmp_path, params):
    """As where clocks, allocators or caches have not settled when the first turns count."""
    warming = arm_blocks("2proc")
    for number, one in enumerate(warming.blocks):
        slower = 1 + 0.02 * (4 - number % 5)
        seconds = [[slower * each for each in rank] for rank in one.step_seconds]
        warming.blocks[number] = one.model_copy(update={"seconds": slower * one.seconds, "step_seconds": seconds})
    seconds, steps = (sum(of(one) for one in warming.blocks) for of in (lambda one: one.seconds, lambda _: 2))
    first = sum(one.seconds for one in arm_blocks("1proc").blocks) / steps
    mine = {"step_seconds": estimate(seconds / steps, 0.01)}
    write_blocks(tmp_path, warming, speedup=first / (seconds / steps), of_2proc=mine)
    found = judged(tmp_path, params)
    assert (found.outcome, found.code) == ("not checked", "still_changing"), found.compared
    assert found.numbers["change"] == pytest.approx(0.08, abs=0.01)


def test_turns_that_burn_in_come_before_those_of_their_start_that_count(tmp_path, params):
    late = [arm_blocks(name) for name in ("1proc", "2proc")]
    moved = [one.model_copy(update={"phase": "burn-in", "blocks": [one.blocks.pop(2)]}) for one in late]
    write_blocks(tmp_path, *late, beside=moved)
    assert "burnt_late" in {one.code for one in judged(tmp_path, params).problems}


def test_seconds_of_another_size_than_the_trainings_fail_the_baseline_too(tmp_path, params):
    write_blocks(tmp_path)
    found = judged(tmp_path, params, "1proc", of_1proc=0.4)
    assert (found.outcome, found.code) == ("failed", "other_seconds")
    assert found.numbers["apart"] == pytest.approx(2.55, abs=5e-3)


def write_weak(folder, *, speedup):
    """Write blocks in which 2proc has steps of twice as many samples, and is so many times as fast per token."""
    seconds = 2 * SECONDS["1proc"] / speedup
    mine = arm_blocks("2proc", turn=None)
    blocks = [
        one.model_copy(
            update={
                "num_tokens": 2 * one.num_tokens,
                "num_positions": 2 * one.num_positions,
                "seconds": one.seconds * seconds / SECONDS["2proc"],
                "step_seconds": [[each * seconds / SECONDS["2proc"] for each in rank] for rank in one.step_seconds],
            }
        )
        for one in mine.blocks
    ]
    mine = mine.model_copy(update={"blocks": blocks})
    changes = {"global_batch_size": 8, "step_seconds": estimate(seconds * 1.02, 0.01)}
    write_blocks(folder, mine, speedup=speedup, of_2proc=changes, scaling="weak")


@pytest.mark.parametrize(
    ("speedup", "verdict"), [(1.3, "failed"), (SPEEDUP, "passed"), (1.95, "passed"), (2.4, "failed")]
)
def test_a_larger_step_scales_no_worse_than_the_trained_one_and_at_best_as_its_ranks(
    tmp_path, params, speedup, verdict
):
    write_weak(tmp_path, speedup=speedup)
    found = judged(tmp_path, params)
    assert found.outcome == verdict, found.compared
    assert (found.numbers["trained_batch"], found.numbers["timed_batch"]) == (4, 8)


def test_a_training_that_hardly_scales_says_too_little_of_larger_steps(tmp_path, params):
    write_weak(tmp_path, speedup=1.5)
    found = judged(tmp_path, params, of_2proc=1.5)
    assert (found.outcome, found.code) == ("not checked", "training_too_blunt")


def test_turns_that_are_missing_among_the_blocks_fail(tmp_path, params):
    """Whoever leaves out slow turns, or puts other blocks in their place, has not as many in a row as were run."""
    for left_out, code, numbers in (
        ({7}, "turn_missing", {"turn": 7, "before": 6, "after": 8}),
        (set(range(1, 6)), "turns_missing", {"turns": 15, "launches": 3, "turns_run": 20, "launches_run": 4}),
    ):
        mine = arm_blocks("2proc")
        kept = mine.model_copy(update={"blocks": [one for one in mine.blocks if one.turn not in left_out]})
        write_blocks(tmp_path, kept)
        found = judged(tmp_path, params)
        assert (found.code, found.numbers | numbers) == (code, found.numbers)


def test_blocks_of_another_measurement_are_refused(tmp_path, params):
    write_blocks(tmp_path)
    write_raw_blocks(tmp_path / "measurements" / BLOCKS_FILE, [arm_blocks("1proc"), arm_blocks("2proc")])
    with pytest.raises(DataError, match=r"blocks\.parquet: ValueError: its sha256 is .*, speed\.json says .*delete it"):
        outputs_of(tmp_path, params)


def test_blocks_of_the_waterfall_alone_bear_out_no_speedup(tmp_path, params):
    others = [arm_blocks(name).model_copy(update={"phase": "waterfall"}) for name in ("1proc", "2proc")]
    write_blocks(tmp_path, *others)
    found = judged(tmp_path, params)
    assert (found.outcome, found.code) == ("not checked", "no_blocks")


def test_a_block_that_took_another_time_than_its_steps_fails(tmp_path, params):
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, step_seconds=[[0.03, 0.03], [0.03, 0.02]]))
    found = judged(tmp_path, params)
    assert found.code == "clocks_apart"
    assert (found.numbers["seconds"], found.numbers["step_seconds"]) == pytest.approx((1.7136, 1.2))
