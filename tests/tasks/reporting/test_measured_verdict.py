from pathlib import Path

import pytest

from tasks.records.arm_figures import compute_baseline_step_seconds
from tasks.records.measurement import BesideSpeed, Measurement
from tasks.reporting.blocks import Answers
from tasks.reporting.collect import collect_results
from tasks.reporting.results import Results
from tasks.reporting.sections.verdict import make_blocks
from tasks.reporting.verdict import make_verdict, name_state
from tests.tasks.reporting.comparison import PARAMS, edit_segment, outputs_of, write_comparison
from tests.tasks.reporting.measured import (
    arm,
    estimate,
    measurement,
    preflight,
    with_speedup,
    write_measurement,
)
from tests.tasks.reporting.rendered import html_of, lacks

GATES = "all 22 gates passed"
WITHHELD = "“Not data-bound” failed"


def verdict_of(folder: Path, found: Measurement) -> str:
    params = write_comparison(folder)
    write_measurement(folder, found)
    return collect_results(outputs_of(folder, params)).verdict


@pytest.mark.parametrize(
    ("found", "figures"),
    [
        (with_speedup(1.01), ("no measurable difference", "1.01x", "0.98x to 1.04x", "50 %", "67.3 ms", "68.0 ms")),
        (with_speedup(0.8), ("slower", "0.80x", "0.78x to 0.82x", "40 %")),
        # An interval of more than 10 % is said by its ends.
        (with_speedup(1.6, 0.2), ("between 1.3 and 1.9 times", "1.60x")),
    ],
)
def test_an_interval_decides_what_is_claimed(tmp_path: Path, found: Measurement, figures: tuple[str, ...]) -> None:
    assert not lacks(verdict_of(tmp_path, found), *figures)


@pytest.mark.parametrize(
    ("speedup", "told"),
    [
        (1.6, ("Yes for one", "38 % less time", "25 % more device time", "No for many", "25 % more results")),
        (0.8, ("No for one", "25 % more time", "150 % more device time", "No for many")),
        (1.01, ("No for one", "no measurable difference", "98 % more device time")),
        (2.03, ("Yes for one", "51 % less time", "1 % less device time", "No difference for many")),
        (2.1, ("Yes for one", "5 % less device time", "Yes for many", "5 % fewer results")),
    ],
)
def test_whether_it_is_worth_it_is_said_of_one_result_and_of_many(
    tmp_path: Path, speedup: float, told: tuple[str, ...]
) -> None:
    params = write_comparison(tmp_path)
    found = with_speedup(speedup)
    # With the parts of a waterfall contention would slow the jobs side by side.
    write_measurement(tmp_path, found.model_copy(update={"waterfalls": []}))
    (answers,) = [one for one in make_blocks(collect_results(outputs_of(tmp_path, params))) if isinstance(one, Answers)]
    assert not lacks(answers.answers[0][1], *told)


@pytest.mark.parametrize(
    ("found", "is_told"),
    [
        (measurement(), True),
        # Slower beyond doubt, and no difference beyond doubt, are answers too.
        (with_speedup(0.8), True),
        (with_speedup(1.01), True),
        # Surely faster, though nobody knows exactly by how much.
        (with_speedup(1.6, 0.2), True),
        (with_speedup(1.01, 0.2), False),
        # One look before measuring does not outvote the turns.
        (with_speedup(1.6, preflight=preflight("others use 1.4 of 2 cores")), True),
    ],
    ids=["faster", "slower", "alike", "vague", "noise", "unfit machine"],
)
def test_a_speedup_is_proven_when_the_turns_leave_no_doubt(tmp_path: Path, found: Measurement, is_told: bool) -> None:
    params = write_comparison(tmp_path)
    write_measurement(tmp_path, found)
    results = collect_results(outputs_of(tmp_path, params))
    assert (results.state, name_state(results)) == (("proven",) * 2 if is_told else ("unproven",) * 2)
    page = html_of(results)
    assert ('<span class="state">Proven</span>' in page) == is_told
    assert ('<span class="state">Unproven (the interval holds 1)</span>' in page) != is_told
    assert ("make rebench" in page) != is_told


def test_a_speedup_is_withheld_for_want_of_quiet_turns_as_for_another_training(
    tmp_path: Path,
) -> None:
    params = write_comparison(tmp_path)
    two = arm("2proc", 2, speedup=None, num_quiet_turns=1)
    write_measurement(tmp_path, measurement(arms=[arm("1proc", 1), two]))
    noisy = collect_results(outputs_of(tmp_path, params))
    assert noisy.failed_gates == ["Quiet enough to tell"]
    assert '<span class="state">Withheld</span>' in html_of(noisy)
    write_measurement(tmp_path, measurement())
    edit_segment(tmp_path, "2proc", data_wait_seconds=1.0)
    assert '<span class="state">Withheld</span>' in html_of(collect_results(outputs_of(tmp_path, params)))


def test_the_step_times_beside_a_speedup_are_those_of_its_turns() -> None:
    found = with_speedup(1.7)
    # The first cell's own figure is of more turns, where there are more cells.
    first = found.arms[0].model_copy(update={"step_seconds": estimate(0.9, 0.01)})
    pair = found.model_copy(update={"arms": [first, found.arms[1]]})
    assert compute_baseline_step_seconds(pair, found.arms[1]) == pytest.approx(1.7 * found.arms[1].step_seconds.value)
    weak = pair.model_copy(update={"scaling": "weak"})
    assert compute_baseline_step_seconds(weak, found.arms[1]) == pytest.approx(0.9)


def test_weak_scaling_compares_samples_per_second(tmp_path: Path) -> None:
    two = arm("2proc", 2, samples_per_second=95.2, speedup=estimate(68 / 42))
    verdict = verdict_of(tmp_path, measurement(scaling="weak", arms=[arm("1proc", 1), two]))
    assert not lacks(verdict, "weak scaling", "95.2", "58.8 samples per second")


@pytest.mark.parametrize(("share", "is_withheld"), [(0.049, False), (0.051, True)])
@pytest.mark.parametrize("cell", ["1proc", "2proc"])
def test_waiting_for_data_in_the_measured_blocks_withholds_what_waiting_in_the_training_would(
    tmp_path: Path, cell: str, share: float, is_withheld: bool
) -> None:
    sizes = {"1proc": 1, "2proc": 2}
    arms = [arm(name, size, data_wait_share=share if name == cell else 0.0) for name, size in sizes.items()]
    verdict = verdict_of(tmp_path, measurement(arms=arms))
    assert (not lacks(verdict, WITHHELD, cell, "5.1 %")) == is_withheld
    assert verdict.startswith("Withheld") == is_withheld


@pytest.mark.parametrize(("speedup", "is_said"), [(2.03, False), (2.06, True)])
def test_a_measured_speedup_above_linear_is_a_suspect_beyond_its_interval(
    tmp_path: Path, speedup: float, is_said: bool
) -> None:
    # +- 2.5 %: 1.98 to 2.08, and 2.01 to 2.11.
    verdict = verdict_of(tmp_path, with_speedup(speedup))
    assert ("; suspect: 2proc is above linear (103 %)" in verdict) == is_said
    assert GATES in verdict


@pytest.mark.parametrize(("relative", "is_said"), [(0.0299, False), (0.0301, True)])
def test_an_interval_is_too_wide_above_the_half_width_asked(tmp_path: Path, relative: float, is_said: bool) -> None:
    assert ("wider than the" in verdict_of(tmp_path, with_speedup(1.4, relative))) == is_said


def test_cells_that_tie_are_called_a_tie_and_what_loud_turns_say_stands_beside(tmp_path: Path) -> None:
    cells = PARAMS["cells"] | {"ddp-2": {"strategy": "ddp", "world_size": 2}}
    params = write_comparison(tmp_path, params=PARAMS | {"cells": cells}, seconds={
        "1proc": [6.0, 4.0], "2proc": [4.0, 2.4], "ddp-2": [4.0, 2.4]
    })  # fmt: skip
    for seconds, is_tie in ((0.043, True), (0.048, False)):
        two = arm("2proc", 2, speedup_of_all_turns=estimate(1.3))
        three = arm("ddp-2", 2, seconds=seconds)
        write_measurement(tmp_path, measurement(arms=[arm("1proc", 1), two, three]))
        verdict = collect_results(outputs_of(tmp_path, params)).verdict
        assert ("2proc, in a tie with ddp-2, trains" in verdict) == is_tie
        assert "all turns, loud ones too, give 1.30x" in verdict


def test_a_baseline_of_one_rank_is_named_as_what_it_is_and_what_one_process_may_do_stands_beside(
    tmp_path: Path,
) -> None:
    params = write_comparison(tmp_path)
    beside = [BesideSpeed(name="1proc with 2 threads", speedup=estimate(1.3))]
    write_measurement(tmp_path, measurement(beside=beside))
    results = collect_results(outputs_of(tmp_path, params))
    assert "beside 1proc: 1proc with 2 threads 1.30x" in results.verdict
    first = results.cells[0].model_copy(update={"strategy": "fsdp2"})
    assert "1proc is one rank inside fsdp2, no plain process" in make_verdict(
        results.model_copy(update={"cells": [first, *results.cells[1:]]})
    )


def test_without_a_measurement_seconds_stand_alone_and_nothing_is_divided(clean_results: Results) -> None:
    assert clean_results.state == "not measured"
    assert clean_results.verdict.startswith("Not measured: 1proc 10.0 s and 2proc 6.40 s per epoch")
    assert "measure.speed: true" in clean_results.verdict
    assert {cell.standing.state for cell in clean_results.cells} == {"not measured"}
    content = clean_results.model_dump()
    for cell in content["cells"]:
        assert [cell["measured_speedup"], cell["whole"]["speedup"], cell["karp_flatt"]] == [None] * 3
    assert "x as fast" not in html_of(clean_results)
