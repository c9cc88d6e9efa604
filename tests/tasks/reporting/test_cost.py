"""What the comparison written by hand costs: 63 tokens in 10 s on one rank, in 6.4 s on two; see comparison.py."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.process.wording import format_seconds, format_three_digits, format_usd
from tasks.report import write_report
from tasks.reporting.blocks import Table
from tasks.reporting.collect import collect_results
from tasks.reporting.cost import compute_token_cost
from tasks.reporting.results import Results, read_results, write_results
from tasks.reporting.sections import cost
from tests.tasks.reporting.comparison import PARAMS, edit_json, edit_segment, outputs_of, write_comparison
from tests.tasks.reporting.measured import arm, measurement, with_speedup, write_measurement
from tests.tasks.reporting.page import Page
from tests.tasks.reporting.rendered import html_of, markdown_of

PRICE = {"price_per_gpu_hour": 2.5, "price_date": "2026-11-01", "price_source": "an offer"}


def results_of(folder: Path, *, measured: Any = None, **params: Any) -> Results:
    content = PARAMS | {"cost": PRICE} | params
    write_comparison(folder, params=content)
    if measured is not None:
        write_measurement(folder, measured)
    return collect_results(outputs_of(folder, content))


def texts_of(results: Results) -> list[str]:
    """Return what the page and the markdown say, in one line each."""
    return [Page(html_of(results)).text, " ".join(markdown_of(results).replace("|", " ").split())]


def test_a_million_tokens_cost_price_times_devices_times_the_hours_they_take() -> None:
    # 1,000,000 tokens at 1,000 per second take 1,000 s on two GPUs of 3.60 dollars per hour: 0.002 dollars per second.
    assert compute_token_cost(3.6, 2, 1000.0) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="above 0"):
        compute_token_cost(3.6, 2, 0.0)


def test_the_cost_of_a_training_is_worked_out_from_its_seconds_and_its_speedup(tmp_path: Path) -> None:
    cost = results_of(tmp_path).cost
    assert cost is not None
    one, two = cost.cells
    assert cost.basis == "trained"
    assert (one.num_devices, two.num_devices) == (1, 2)
    assert one.usd_per_epoch == pytest.approx(2.5 * 10 / 3600)
    assert two.usd_per_epoch == pytest.approx(2.5 * 2 * 6.4 / 3600)
    assert one.usd_per_million_tokens == pytest.approx(2.5 * 10 / 3600 / 63 * 1e6)
    assert two.usd_per_million_tokens == pytest.approx(2.5 * 2 * 6.4 / 3600 / 63 * 1e6)
    # Twice the devices for 6.4 instead of 10 s; the dollars say the same.
    assert (one.cost_of_speedup, two.cost_of_speedup) == (None, pytest.approx(1.28))
    assert two.usd_per_epoch / one.usd_per_epoch == pytest.approx(1.28)
    assert two.cost_of_speedup_low is None
    # A result per 6.4 s, against two per 10 s.
    assert (two.result_seconds, two.results_per_hour) == (pytest.approx(6.4), pytest.approx(562.5))
    assert (two.num_baseline_jobs, two.baseline_results_per_hour) == (2, pytest.approx(720.0))
    assert one.num_baseline_jobs is None


def test_with_several_epochs_an_epoch_costs_its_share_of_the_result(tmp_path: Path) -> None:
    params = PARAMS | {"train": PARAMS["train"] | {"epochs": 2}, "cost": PRICE}
    write_comparison(tmp_path, params=params, seconds={"1proc": [6.0, 5.0, 4.0, 3.0], "2proc": [4.0, 3.0, 2.0, 1.0]})
    cost = collect_results(outputs_of(tmp_path, params)).cost
    assert cost is not None
    assert cost.cells[1].usd_per_epoch == pytest.approx(2.5 * 2 * 5.0 / 3600)
    assert cost.cells[1].usd_per_result == pytest.approx(2.5 * 2 * 10.0 / 3600)
    assert cost.cells[1].result_seconds == pytest.approx(10.0)


def test_where_speed_was_measured_the_cost_follows_from_the_measurement(tmp_path: Path) -> None:
    # 1,680 tokens per step: in 68 ms on one rank, in 42 ms on two.
    arms = [arm("1proc", 1), arm("2proc", 2, joules_per_token=0.0128), arm("1proc in a DDP wrapper", 1)]
    cost = results_of(tmp_path, measured=measurement(arms=arms)).cost
    assert cost is not None
    one, two = cost.cells
    assert cost.basis == "measured"
    assert two.usd_per_million_tokens == pytest.approx(2.5 * 2 / (3600 * 15.5 / 0.042) * 1e6)
    assert two.usd_per_epoch == pytest.approx(2.5 * 2 * 63 / (15.5 / 0.042) / 3600)
    assert two.cost_of_speedup == pytest.approx(2 * 42 / 68)
    # The speedup is known to +- 2.5 %; its upper end is the lower one of the cost.
    assert two.cost_of_speedup_low == pytest.approx(2 * 42 / 68 / 1.025)
    assert two.cost_of_speedup_high == pytest.approx(2 * 42 / 68 / 0.975)
    assert (one.kwh_per_epoch, one.kwh_per_million_tokens) == (None, None)
    assert two.kwh_per_million_tokens == pytest.approx(12_800 / 3.6e6)
    assert two.kwh_per_epoch == pytest.approx(63 * 0.0128 / 3.6e6)


def test_jobs_side_by_side_are_slower_by_the_contention_that_was_measured(tmp_path: Path) -> None:
    # A copy of one rank's share takes 34.5 ms alone and 36.5 ms beside the other: 2 ms of contention.
    results = results_of(tmp_path, measured=measurement(arms=[arm("1proc", 1), arm("2proc", 2)]))
    assert results.cost is not None
    one, two = results.cost.cells
    assert (one.baseline_slowdown, two.baseline_slowdown) == (None, pytest.approx(36.5 / 34.5))
    assert two.baseline_results_per_hour == pytest.approx(2 * one.results_per_hour * 34.5 / 36.5)
    seconds, per_hour = one.result_seconds * 36.5 / 34.5, 2 * one.results_per_hour * 34.5 / 36.5
    for text in texts_of(results):
        assert "1.06 times" in text
        assert f"2 jobs of 1proc 2 {format_seconds(seconds)} {format_three_digits(per_hour)} $" in text
        assert format_usd(2.5 * seconds / 3600) in text
        assert "as fast as alone" not in text


def test_in_weak_scaling_a_training_costs_what_it_took_itself(tmp_path: Path) -> None:
    # The cells were measured with batches that grow with their ranks; the training's does not.
    arms = [arm("1proc", 1), arm("2proc", 2), arm("1proc in a DDP wrapper", 1)]
    given = measurement(arms=arms)
    results = results_of(tmp_path, measured=given.model_copy(update={"scaling": "weak"}))
    assert results.cost is not None
    assert results.cost.basis == "trained"
    assert [one.tokens_per_second for one in results.cost.cells] == [
        cell.whole.tokens_per_second for cell in results.cells
    ]


def test_more_jobs_than_one_are_told_by_devices_of_the_baseline(tmp_path: Path) -> None:
    cells = {f"{size}proc": {"strategy": "ddp", "world_size": size} for size in (2, 4, 1)}
    params = PARAMS | {"cells": cells, "cost": PRICE}
    seconds = {"2proc": [6.0, 4.0], "4proc": [4.0, 2.4], "1proc": [12.0, 9.0]}
    write_comparison(tmp_path, params=params, seconds=seconds)
    edit_json(tmp_path / "machine.json", num_cpus=4)
    results = collect_results(outputs_of(tmp_path, params))
    assert results.cost is not None, results.verdict
    two, four, one = results.cost.cells
    assert (four.cost_of_speedup, one.cost_of_speedup) == (pytest.approx(1.28), pytest.approx(1.05))
    assert (two.num_baseline_jobs, four.num_baseline_jobs) == (None, 2)
    assert four.baseline_results_per_hour == pytest.approx(720.0)
    assert (one.num_baseline_jobs, one.baseline_results_per_hour) == (None, None)  # half a job on one device


@pytest.mark.parametrize(
    "row",
    [
        # 10 s and 2 x 6.4 s, in hours; 2.50 dollars for each; that for 63 tokens, times 1,000,000 / 63.
        "1proc 1 0.00278 $0.00694 $110 baseline",
        "2proc 2 0.00356 $0.00889 $141 1.28 times",
        "1 job of 2proc 2 6.40 s 562 $0.00889",  # 562.5, and Python rounds halves to even
        "2 jobs of 1proc 2 10.0 s 720 $0.00694",
        "$2.50 per device and hour (2026-11-01, an offer).",
    ],
)
def test_page_and_markdown_show_the_figures_worked_out_by_hand(priced_results: Results, row: str) -> None:
    page, markdown = texts_of(priced_results)
    assert row in page
    assert row in markdown


@pytest.fixture(scope="module")
def priced_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results_of(tmp_path_factory.mktemp("priced"))


def test_measured_figures_stand_with_their_interval_and_unknown_energy_is_not_available(tmp_path: Path) -> None:
    arms = [arm("1proc", 1), arm("2proc", 2, joules_per_token=0.0128)]
    for text in texts_of(results_of(tmp_path, measured=measurement(arms=arms))):
        assert "2proc 2 9.48e-05 $0.000237 $3.76 1.24 times (1.21 to 1.27) 2.24e-07 kWh 0.00356 kWh" in text
        assert "1proc 1 7.68e-05 $0.000192 $3.05 baseline n/a n/a" in text
        assert "measured in turns (strong scaling)." in text


def test_without_a_price_there_is_no_money_but_the_cost_of_the_speedup(clean_results: Results) -> None:
    for text in texts_of(clean_results):
        told = text.rpartition("What it costs")[2].partition("Glossary")[0]
        assert "2proc 2 0.00356 1.28 times" in told
        assert "1 job of 2proc 2 6.40 s 562" in told
        assert "No price is stated (cost.price" in told
        assert "$" not in told


def test_a_withheld_speedup_withholds_every_cost(tmp_path: Path) -> None:
    params = PARAMS | {"cost": PRICE}
    write_comparison(tmp_path, params=params)
    write_measurement(tmp_path, with_speedup(1.6))
    edit_segment(tmp_path, "2proc", "8-16", parameter_checksums=["05" * 8, "bb"])
    results = collect_results(outputs_of(tmp_path, params))
    assert results.is_withheld
    assert results.cost is None
    assert not [block for block in cost.make_blocks(results) if isinstance(block, Table)]
    for text in texts_of(results):
        assert "What it costs Withheld" in text.replace("## ", "")
        assert "1.25 times" not in text.rpartition("Glossary")[0]  # 2 / 1.6
        assert "$" not in text


def test_results_of_before_there_was_a_cost_are_still_rendered(tmp_path: Path, measured_results: Results) -> None:
    write_results(tmp_path / "new.json", measured_results)
    content = json.loads((tmp_path / "new.json").read_text())
    del content["cost"], content["quality"]["time_to_loss"]
    for source in ("model", "dataset"):
        del content["comparison"][source]["license"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    write_report(read_results(tmp_path / "old.json"), tmp_path / "reports")
    for name in ("index.html", "report.md"):
        text = (tmp_path / "reports" / name).read_text()
        assert "of an earlier version" in text
        assert "Time to quality" not in text
