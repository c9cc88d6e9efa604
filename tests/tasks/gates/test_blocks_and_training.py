"""The published speedup and seconds are those of the blocks, and the whole training bears them out."""

from dataclasses import replace

import numpy as np
import pytest

from tasks.gates.blocks_and_training import check_blocks_against_training
from tasks.process.failure import DataError
from tasks.records.blocks import BLOCKS_FILE
from tasks.records.blocks import write_blocks as write_raw_blocks
from tests.tasks.gates.conftest import require
from tests.tasks.reporting.blocks import SECONDS, SPEEDUP, arm_blocks, give_steps, write_blocks
from tests.tasks.reporting.measured import estimate

BLUNT, SHORT = ({"code": code, "outcome": "not checked"} for code in ("training_too_blunt", "too_few_steps"))
PASSED, REFUTED = ({"code": code} for code in ("passed", "speedup_not_borne_out"))
CHANCE = {"scatter": 0.6, "wave_steps": 0.3}


@pytest.fixture
def expect_of(params, read):
    """Return a function that requires a finding where the training took so many times as long as the blocks."""

    def judge(cell="2proc", *, times=(1.0, 1.0), scatter=0.02, num_steps=80, wave_steps=6, **known):
        outputs = read()
        waves = 1 + scatter * np.sin(np.arange(num_steps) / wave_steps)
        # A block's step has 32 positions, as one of the training.
        give_steps(
            outputs, **{one: each * SECONDS[one] * waves for one, each in zip(params["cells"], times, strict=True)}
        )
        return require(check_blocks_against_training(outputs, cell), **known)

    return judge


@pytest.mark.parametrize(
    ("training", "known"),
    [
        ({}, PASSED | {"measured_over_trained": 1.0}),
        ({"cell": "1proc"}, PASSED),
        # A machine drifts, alike for both or by a tenth.
        *(({"times": times}, PASSED) for times in ((1.4, 1.4), (1.1, 1), (1, 0.91))),
        # A wait in the timed step of the baseline, or blocks of another cell altogether.
        *(({"times": times}, REFUTED | {"measured": SPEEDUP}) for times in ((1.43 / 1.95, 1), (1, 0.55), (1, 1.43))),
        ({"cell": "1proc", "times": (0.4, 1)}, {"code": "other_seconds", "apart": 2.55}),
        # What steps scatter by chance averages out.
        ({"scatter": 0.6}, BLUNT),
        # A machine that is slow for a while makes parts alike, of which ten say less than ten others.
        ({"scatter": 0.15, "times": (1, 0.77)}, PASSED),
        (CHANCE, PASSED),
        (CHANCE | {"times": (1, 0.7)}, REFUTED),
        # Of few steps all count, not the middle of them.
        *(({"num_steps": number}, known) for number, known in ((3, SHORT), (4, PASSED), (7, PASSED))),
    ],
)
def test_the_training_bears_out_what_the_blocks_measured_or_refutes_it(tmp_path, expect_of, training, known):
    write_blocks(tmp_path)
    found = expect_of(**training, **known, within=2e-3)
    # Another gate may withhold it.
    assert known != PASSED or ("1.62" not in found.compared and SPEEDUP not in found.numbers.values())


def test_published_figures_that_the_turns_do_not_give_fail(tmp_path, expect_of):
    write_blocks(tmp_path, speedup=SPEEDUP * 1.36)
    expect_of(code="other_speedup", published=SPEEDUP * 1.36, counted=SPEEDUP)
    # The step times and rates are of blocks, too.
    told = write_blocks(tmp_path)
    apart = arm_blocks("2proc", turn=None, seconds=0.02, step_seconds=[[0.03, 0.03], [0.03, 0.02]])
    write_blocks(tmp_path, apart, speeds=told.speeds)
    found = expect_of(code="clocks_apart", seconds=0.4, step_seconds=1.2)
    problems = {one.code: one.numbers for one in found.problems}
    assert {"other_throughput", "other_step_time"} <= problems.keys()
    assert problems["other_step_time"]["counted"] == pytest.approx(0.01)


def test_blocks_that_disagree_with_a_training_by_other_files_name_the_remedy(tmp_path, expect_of):
    write_blocks(tmp_path, code_digest="0ther" * 12)
    expect_of(**PASSED)  # the files are a fact, no key: the seconds agree
    for found in (expect_of(times=(1, 0.55), **REFUTED), expect_of("1proc", times=(0.4, 1), code="other_seconds")):
        assert found.problems[1].code == "other_files"
        assert found.compared.endswith("make retrain")
    write_blocks(tmp_path)
    assert "other_files" not in {one.code for one in expect_of(times=(1, 0.55), **REFUTED).problems}


def test_only_late_and_quiet_steps_of_the_training_count_and_none_is_not_checked(tmp_path, read):
    write_blocks(tmp_path)
    outputs = read()
    # A slow start; others who slowed every second late step down, and were seen or not; then all.
    slow, loud = np.r_[np.full(40, 3.0), np.ones(40)], np.where(np.arange(80) % 2, 0.5, 0.0)
    for times, share, code in (
        (slow, 0, "passed"),
        (1 + 2 * loud, 0, "speedup_not_borne_out"),
        (1 + 2 * loud, loud, "passed"),
        (1 + 2 * loud, 0.5, "training_beside_others"),
    ):
        give_steps(outputs, **{"1proc": SECONDS["1proc"] * np.ones(80), "2proc": SECONDS["2proc"] * times})
        run = outputs.runs["2proc"]
        run.__dict__["steps"] = replace(run.steps, others_share=share + np.zeros(80))
        outcome = "not checked" if code == "training_beside_others" else "failed"
        require(check_blocks_against_training(outputs, "2proc"), code, outcome=outcome)


def _stretch(block, times, **more):
    """Return a block that took so many times as long."""
    steps = [[times * each for each in rank] for rank in block.step_seconds]
    return block.model_copy(update={"seconds": times * block.seconds, "step_seconds": steps, **more})


@pytest.mark.parametrize(("noise", "wanted"), [
    (0.0, {"code": "still_changing", "outcome": "not checked", "change": 0.08, "within": 0.12}),
    # A trend of 3.2 standard errors, which few turns show by chance.
    (0.02, {"code": "passed"}),
])  # fmt: skip
def test_a_speedup_that_still_changes_within_a_start_is_not_proven(tmp_path, expect_of, noise, wanted):
    """As where clocks, allocators or caches have not settled when the first turns count."""
    warming = arm_blocks("2proc")
    times = [1 + 0.02 * (2 - place) + noise * (place**2 - 2) for place in range(-2, 3)]
    warming.blocks[:] = [_stretch(one, times[number % 5]) for number, one in enumerate(warming.blocks)]
    first, seconds = (sum(one.seconds for one in arm.blocks) / 40 for arm in (arm_blocks("1proc"), warming))
    write_blocks(tmp_path, warming, speedup=first / seconds, of_2proc={"step_seconds": estimate(seconds, 0.01)})
    expect_of(**wanted)


def test_turns_that_burn_in_come_before_those_of_their_start_that_count(tmp_path, params, read):
    late = [arm_blocks(name) for name in params["cells"]]
    moved = [one.model_copy(update={"phase": "burn-in", "blocks": [one.blocks.pop(2)]}) for one in late]
    write_blocks(tmp_path, *late, beside=moved)
    found = check_blocks_against_training(read(), "2proc")
    assert "burnt_late" in {one.code for one in found.problems}


@pytest.mark.parametrize(
    ("speedup", "times", "known"),
    [
        *((speedup, 1, REFUTED) for speedup in (1.3, 2.4)),
        *((speedup, 1, PASSED) for speedup in (SPEEDUP, 1.95)),
        # A training that hardly scales says too little of larger steps.
        (1.5, 1.5, BLUNT),
    ],
)
def test_a_larger_step_scales_no_worse_than_the_trained_one_and_at_best_as_its_ranks(
    tmp_path, expect_of, speedup, times, known
):
    """2proc has steps of twice as many samples, and is so many times as fast per token."""
    seconds, mine = 2 * SECONDS["1proc"] / speedup, arm_blocks("2proc", turn=None)
    mine.blocks[:] = [
        _stretch(one, seconds / SECONDS["2proc"], num_tokens=2 * one.num_tokens, num_positions=2 * one.num_positions)
        for one in mine.blocks
    ]
    changes = {"global_batch_size": 8, "step_seconds": estimate(seconds * 1.02, 0.01)}
    write_blocks(tmp_path, mine, speedup=speedup, of_2proc=changes, scaling="weak")
    expect_of(times=(1, times), **known, trained_batch=4, timed_batch=8)


def test_turns_that_are_missing_among_the_blocks_fail(tmp_path, expect_of):
    """Whoever leaves out slow turns, or puts other blocks in their place, has not as many in a row as were run."""
    mine = arm_blocks("2proc")
    del mine.blocks[:5]
    write_blocks(tmp_path, mine)
    expect_of(code="turns_missing", turns=15, launches=3, turns_run=20, launches_run=4)


def test_blocks_of_another_measurement_are_refused(tmp_path, read):
    write_blocks(tmp_path)
    write_raw_blocks(tmp_path / "measurements" / BLOCKS_FILE, [arm_blocks("1proc"), arm_blocks("2proc")])
    with pytest.raises(DataError, match=r"blocks\.parquet: ValueError: its sha256 is .*, speed\.json says .*delete it"):
        read()


def test_blocks_of_the_waterfall_alone_bear_out_no_speedup(tmp_path, params, expect_of):
    write_blocks(tmp_path, *(arm_blocks(name).model_copy(update={"phase": "waterfall"}) for name in params["cells"]))
    expect_of(code="no_blocks", outcome="not checked")
