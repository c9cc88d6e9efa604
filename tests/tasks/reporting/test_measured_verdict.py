import dataclasses
from pathlib import Path

import pytest
from pydantic import ValidationError

from tasks.records.arm_figures import compute_baseline_step_seconds
from tasks.records.measurement import Measurement
from tasks.reporting.collect import collect_results
from tasks.reporting.verdict import is_resolved
from tests.tasks.reporting.comparison import PARAMS, edit_segment, outputs_of, write_comparison
from tests.tasks.reporting.measured import (
    arm,
    estimate,
    measurement,
    preflight,
    waterfall,
    with_speedup,
    write_measurement,
)
from tests.tasks.reporting.rendered import html_of, lacks

GATES = "all 21 gates passed"
WITHHELD = "“Not data-bound” failed"


def verdict_of(folder: Path, found: Measurement) -> str:
    params = write_comparison(folder)
    write_measurement(folder, found)
    return collect_results(outputs_of(folder, params)).verdict


def test_the_verdict_is_the_measured_speedup_with_its_interval(tmp_path: Path) -> None:
    # 68 / 42 = 1.619, +- 2.5 %: 1.579 to 1.660; 69.3 / 42 = 1.65.
    verdict = verdict_of(tmp_path, measurement())
    assert verdict.startswith("2proc trains 1.62x as fast as 1proc")
    assert not lacks(verdict, "95 %", "1.58x to 1.66x", "81 %", "strong", "42.0 ms", "68.0 ms", "1.65x", GATES)


@pytest.mark.parametrize(
    ("found", "figures"),
    [
        (with_speedup(1.01), ("No measurable difference", "1.01x", "0.98x to 1.04x", "50 %", "67.3 ms", "68.0 ms")),
        (with_speedup(0.8), ("slower", "0.80x", "0.78x to 0.82x", "40 %")),
        # An interval of more than 10 % is said by its ends.
        (with_speedup(1.6, 0.2), ("between 1.3 and 1.9 times", "1.60x")),
    ],
)
def test_an_interval_decides_what_is_claimed(tmp_path: Path, found: Measurement, figures: tuple[str, ...]) -> None:
    assert not lacks(verdict_of(tmp_path, found), *figures)


def test_a_wide_interval_around_one_tells_nothing(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, with_speedup(1.01, 0.2))
    assert not lacks(verdict, "cannot be told", "1.01x", "0.81x to 1.21x")
    page = html_of(collect_results(outputs_of(tmp_path, PARAMS)))
    assert not lacks(page, "cannot be told", "make rebench")
    assert "2proc is 1.01x" not in page


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
        (with_speedup(1.6, preflight=preflight("others use 1.4 of 2 cores")), False),
    ],
    ids=["faster", "slower", "alike", "vague", "noise", "unfit machine"],
)
def test_a_speedup_is_resolved_when_noise_and_machine_leave_no_doubt(
    tmp_path: Path, found: Measurement, is_told: bool
) -> None:
    params = write_comparison(tmp_path)
    write_measurement(tmp_path, found)
    results = collect_results(outputs_of(tmp_path, params))
    assert is_resolved(results) == is_told
    page = html_of(results)
    state, other = ("Resolved", "Not resolved") if is_told else ("Not resolved", "Resolved")
    assert f'<span class="state">{state}</span>' in page
    assert f'<span class="state">{other}</span>' not in page
    assert ("make rebench" in page) != is_told


def test_a_speedup_that_nobody_proved_is_not_resolved_and_names_the_gate_to_have_checked(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    write_measurement(tmp_path)
    (tmp_path / "measurements" / "certificate.json").unlink()
    results = collect_results(outputs_of(tmp_path, params))
    assert results.answers[0].standing.state == "unproven"
    page = html_of(results)
    assert '<span class="state">Not resolved</span>' in page
    assert "“Update equivalence” first" in page


def test_a_speedup_that_only_noise_withholds_is_not_resolved_and_one_of_another_training_is_withheld(
    tmp_path: Path,
) -> None:
    params = write_comparison(tmp_path)
    two = arm("2proc", 2, speedup=None, num_quiet_turns=1)
    write_measurement(tmp_path, measurement(arms=[arm("1proc", 1), two]))
    noisy = collect_results(outputs_of(tmp_path, params))
    assert noisy.failed_gates == ["Quiet enough to tell"]
    assert '<span class="state">Not resolved</span>' in html_of(noisy)
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


def test_results_of_an_earlier_version_have_as_many_quiet_turns_for_every_cell() -> None:
    content = measurement().model_dump(mode="json")
    for one in content["arms"]:
        del one["num_quiet_turns"]
    read = Measurement.model_validate(content | {"num_quiet_turns": 17})
    assert [arm.num_quiet_turns for arm in read.arms] == [17, 17, None]
    assert Measurement.model_validate(read.model_dump(mode="json")) == read
    # Damaged, they are refused as any other file.
    for damaged in ({}, {"arms": 1}, {"arms": [1]}, {"arms": [{}]}):
        with pytest.raises(ValidationError):
            Measurement.model_validate({"num_quiet_turns": 17} | damaged)


def test_weak_scaling_compares_samples_per_second(tmp_path: Path) -> None:
    two = arm("2proc", 2, samples_per_second=95.2, speedup=estimate(68 / 42), speedup_over_wrapped=None)
    verdict = verdict_of(tmp_path, measurement(scaling="weak", arms=[arm("1proc", 1), two]))
    assert not lacks(verdict, "weak scaling", "95.2", "58.8 samples per second")


def test_what_spoils_the_figure_is_said_with_it(tmp_path: Path) -> None:
    found = with_speedup(
        1.3,
        0.05,
        preflight=preflight("others use 1.4 of 2 cores"),
    )
    assert not lacks(verdict_of(tmp_path, found), "wider than the +- 3.0 %", "not fit to measure", GATES)


def test_what_is_data_bound_by_the_waterfall_is_so_by_the_gate(tmp_path: Path) -> None:
    fall = waterfall(is_data_bound=True, parts=[_part("data wait", 0.0063)])
    # 6.3 of 42 ms.
    assert not lacks(verdict_of(tmp_path, with_speedup(1.3, 0.05, waterfalls=[fall])), WITHHELD, "15.0 %", "5 %")


def test_a_baseline_that_waits_for_data_is_not_called_a_loss_of_the_cell(tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, measurement(waterfalls=[waterfall(is_data_bound=True)]))
    assert not lacks(verdict, WITHHELD, "2proc or 1proc")


@pytest.mark.parametrize(("share", "is_withheld"), [(0.049, False), (0.051, True)])
@pytest.mark.parametrize("cell", ["1proc", "2proc"])
def test_waiting_for_data_in_the_measured_blocks_withholds_what_waiting_in_the_training_would(
    tmp_path: Path, cell: str, share: float, is_withheld: bool
) -> None:
    sizes = {"1proc": 1, "2proc": 2}
    arms = [arm(name, size, data_wait_share=share if name == cell else 0.0) for name, size in sizes.items()]
    verdict = verdict_of(tmp_path, measurement(arms=arms))
    assert (not lacks(verdict, WITHHELD, cell, "5.1 %")) == is_withheld
    assert ("Speedup withheld" in verdict) == is_withheld


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


def test_several_cells_are_all_answered_with_intervals(tmp_path: Path) -> None:
    cells = PARAMS["cells"] | {"ddp-2": {"strategy": "ddp", "world_size": 2}}
    params = write_comparison(tmp_path, params=PARAMS | {"cells": cells}, seconds={
        "1proc": [6.0, 4.0], "2proc": [4.0, 2.4], "ddp-2": [5.9, 4.0]
    })  # fmt: skip
    three = arm("ddp-2", 2, seconds=0.067, speedup_over_wrapped=None)
    write_measurement(tmp_path, measurement(arms=[arm("1proc", 1), arm("2proc", 2), three]))
    verdict = collect_results(outputs_of(tmp_path, params)).verdict
    assert verdict.startswith("2proc trains 1.62x")
    assert not lacks(verdict, "ddp-2 1.01x", "0.99x to 1.04x", "51 %", "no measurable difference")


def _part(name: str, seconds: float) -> dict[str, object]:
    return {"name": name, "seconds": dataclasses.asdict(estimate(seconds)), "how": "with and without"}
