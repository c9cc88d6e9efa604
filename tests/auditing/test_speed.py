"""The figures of an audit's report, worked out by hand from a record that is made up."""

from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import pytest

from ddp_audit.__main__ import require_steps
from ddp_audit.asked import Request, ScriptError
from ddp_audit.checks import Answers, Result, judge_cells
from ddp_audit.findings import list_first_pass
from ddp_audit.findings.cells import plausible_speed
from ddp_audit.findings.parameters import finite
from ddp_audit.findings.rows import rows_of_its_own
from ddp_audit.page import format_verdict, make_document, render_html, render_markdown
from ddp_audit.process.findings import Finding
from ddp_audit.records import Audit, Launched, RankRecord
from ddp_audit.speed import Ratio, compute_speeds, split_steps, sum_other_work

_REQUEST = Request(
    words=("/there/train.py", "--name", "<b>"), folder=Path("/there"), cells={"1proc": 1, "2proc": 2}, python="python",
    num_launches=3, most_steps=None, hang_seconds=600,
)  # fmt: skip


def _make_steps(num_steps: int, samples: int, **seconds: float) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "lr": [0.1],
            "micros": [{"num_samples": samples, "shape": [samples, 5]}],
            "num_collectives": 0,
            "seconds": dict(seconds),
        }
        for step in range(1, num_steps + 1)
    ]


def _launch(cell: str, of_ranks: list[list[dict[str, Any]]]) -> Launched:
    ranks = [RankRecord(rank, steps=steps, lines={"end": [{"seconds": {}}]}) for rank, steps in enumerate(of_ranks)]
    return Launched(cell, Path(f"launched/{cell}"), ranks, 0)


def _make_audit(num_launches: int = 3) -> Audit:
    one = [_launch("1proc", [_make_steps(20, 8, forward=0.04, backward=0.06)]) for _ in range(num_launches)]
    # The slowest rank of a step counts; a checkpoint and the observer don't.
    fast = _make_steps(20, 4, forward=0.02, backward=0.03, checkpoint=1.0, observer=0.5)
    slow = _make_steps(20, 4, forward=0.02, backward=0.06)
    return Audit(_REQUEST, {"1proc": one, "2proc": [_launch("2proc", [fast, slow]) for _ in range(num_launches)]})


def _make_gate(verdict: Any) -> Answers:
    finding = Finding(verdict, "other_rate", "2proc: 1 against 2", {"rate": 1, "baseline": "1proc", "baseline_rate": 2})
    return Answers("Same global batch", "Is it?", {"2proc": replace(finding, true_figure="half of it")})


def test_a_speedup_is_samples_per_second_of_the_slowest_rank_without_other_work() -> None:
    base, two = compute_speeds(_make_audit())
    assert base.step_seconds == pytest.approx(0.1)
    assert base.samples_per_second == pytest.approx(8 / 0.1)
    assert two.step_seconds == pytest.approx(0.08)
    assert two.num_steps == 3 * 18  # a tenth of 20 is left out
    assert two.speedup is not None
    assert two.speedup.value == pytest.approx(0.1 / 0.08)
    assert two.has_interval


def test_two_launches_give_no_interval_and_the_report_says_so() -> None:
    audit = _make_audit(2)
    speeds = compute_speeds(audit)
    assert not speeds[1].has_interval
    told = format_verdict(Result(audit, [], speeds, judge_cells([], speeds, list(_REQUEST.cells))))
    assert "1.25x as fast, no interval, unproven" in told


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [(1.2, 1.3, "proven"), (0.17, 8.65, "unproven"), (0.97, 1.02, "proven"), (0.5, 0.9, "proven")],
)
def test_a_speedup_that_may_as_well_be_none_is_unproven(low: float, high: float, state: str) -> None:
    base, two = compute_speeds(_make_audit())
    speeds = [base, replace(two, speedup=Ratio(value=(low * high) ** 0.5, low=low, high=high))]
    standing = judge_cells([], speeds, list(_REQUEST.cells))["2proc"]
    assert standing.state == state
    assert ("may be slower or faster" in (standing.reason or "")) == (state == "unproven")


def test_the_time_split_is_the_mean_over_ranks_and_other_work_stands_apart() -> None:
    launched = _make_audit().first("2proc")
    assert split_steps(launched) == pytest.approx({"forward": 0.02, "backward": 0.045})
    assert sum_other_work(launched) == pytest.approx(
        {"checkpoint": 20.0, "evaluation": 0, "network": 0, "subprocess": 0, "observer": 10.0}
    )


@pytest.mark.parametrize(("seconds", "verdict"), [(0.046, "passed"), (0.045, "not checked")])
def test_more_times_as_fast_than_ten_percent_above_the_ranks_is_not_believed(seconds: float, verdict: str) -> None:
    one = [_launch("1proc", [_make_steps(20, 8, forward=0.1)])]
    two = [_launch("2proc", [_make_steps(20, 4, forward=seconds)] * 2)]
    found = plausible_speed.find(Audit(_REQUEST, {"1proc": one, "2proc": two}), "2proc")
    assert found is not None
    # 0.1 / 0.046 / 2 is 1.087, 0.1 / 0.045 / 2 is 1.111.
    assert found.verdict == verdict, found.compared
    assert plausible_speed.find(Audit(_REQUEST, {"1proc": one, "2proc": two}), "1proc") is None


@pytest.mark.parametrize("verdict", ["failed", "not checked", "passed"])
def test_a_failed_finding_withholds_the_speedup_everywhere_on_the_page(verdict: str) -> None:
    audit = _make_audit()
    gates, speeds = [_make_gate(verdict)], compute_speeds(audit)
    document = make_document(Result(audit, gates, speeds, judge_cells(gates, speeds, list(_REQUEST.cells))))
    page, text = render_html(document), render_markdown(document)
    assert ("1.25x" in text) is ("1.25x" in page) is (verdict != "failed")
    assert ("half of it" in text) is (verdict == "failed")
    assert ("– not observable" in text) is (verdict == "not checked")
    assert "<b>" not in page.replace("<b class", "")  # of the script's arguments


@pytest.mark.parametrize(("are_same", "verdict"), [(True, "failed"), (False, "not checked")])
def test_same_indices_are_the_same_rows_unless_what_was_looked_at_differs(are_same: bool, verdict: str) -> None:
    def launch(rank: int) -> list[dict[str, Any]]:
        steps = _make_steps(20, 4, forward=0.1)
        for number, step in enumerate(steps):
            content = "content" if are_same else f"of {rank}"
            # Every fourth row was looked at.
            rows = [f"{content} {number}", "", "", ""]
            step["micros"] = [{"loader": 0, "ids": list(range(4 * number, 4 * number + 4)), "rows": rows}]
        return steps

    both = {"1proc": [_launch("1proc", [launch(0)])], "2proc": [_launch("2proc", [launch(0), launch(1)])]}
    found = rows_of_its_own.find(Audit(_REQUEST, both), "2proc")
    assert found is not None
    assert (found.verdict, found.code) == (verdict, "same_rows" if are_same else "other_contents")
    assert not are_same or (found.numbers["share"], found.numbers["rows"]) == (1.0, 160)


def test_what_is_a_part_of_steps_in_one_cell_is_one_in_all() -> None:
    """As an evaluation after each epoch, which with more ranks has half as many steps."""
    steps = [_make_steps(40, 8, forward=0.1), _make_steps(40, 8, forward=0.1)]
    for every, those in zip((2, 1), steps, strict=True):
        for step in those[::every]:
            step["seconds"] = {**step["seconds"], "evaluation": 0.3}
    one, two = _launch("1proc", [steps[0]]), _launch("2proc", [steps[1], steps[1]])
    assert "evaluation" not in split_steps(_launch("1proc", [steps[0]])), "by itself it is no part of most steps"
    audit = Audit(_REQUEST, {"1proc": [one], "2proc": [two]})
    # What is asked turn by turn changes nothing of it.
    Audit(_REQUEST, {"1proc": [one]})
    assert split_steps(one)["evaluation"] == pytest.approx(0.15, rel=0.05)
    base, other = compute_speeds(audit)
    assert base.step_seconds == pytest.approx(0.25, rel=0.05)
    assert other.step_seconds == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize(
    ("begun", "left", "verdict"), [(1.0, 1.0, "passed"), (1.0, nan, "failed"), (nan, nan, "passed")]
)
def test_parameters_that_become_no_numbers_fail_though_every_loss_is_one(
    begun: float, left: float, verdict: str
) -> None:
    step = {"micros": [{"loss": 2.0}], "start": {"l2": begun}, "weights": {"l2": left}}
    found = finite.find(Audit(_REQUEST, {"1proc": [_launch("1proc", [[{**step, "step": 1}]])]}), "1proc")
    assert found is not None
    assert found.verdict == verdict


def _make_pass(num_steps: int, end: int | None) -> RankRecord:
    """Return a rank with two passes over its rows, the first of which ends after `end`."""
    lines = [{"loader": 0, "is_over": False, "step": 0}]
    if end is not None:
        lines += [{"loader": 0, "is_over": is_over, "step": end} for is_over in (True, False)]
    steps = [{"step": number, "micros": [{"loader": 0, "ids": [number]}]} for number in range(1, num_steps + 1)]
    return RankRecord(0, steps=steps, lines={"pass": lines, "torch": []})


def test_a_pass_whose_last_steps_were_never_written_is_not_whole() -> None:
    assert [list_first_pass(_make_pass(number, 6))[1] for number in (6, 5)] == [True, False]


def test_passes_of_other_lengths_are_wrong_unless_who_is_through_waits_and_are_named_in_a_failure() -> None:
    for second, is_wrong in ((9, True), (5, False)):
        two = Launched("2proc", Path(), [_make_pass(9, 6), _make_pass(second, 4)], 0)
        found = rows_of_its_own.find(Audit(_REQUEST, {"1proc": [_launch("1proc", [[]])], "2proc": [two]}), "2proc")
        assert found is not None
        assert (found.code == "uneven_passes") is is_wrong
    failed = Launched("2proc", Path(), [_make_pass(5, None), _make_pass(4, 4)], 1, "it failed")
    with pytest.raises(
        ScriptError, match=r"it failed; a pass over the data ended on rank 1 after step 4 and not on all"
    ):
        require_steps(failed, started_in=Path())
