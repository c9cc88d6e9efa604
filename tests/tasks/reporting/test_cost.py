"""What the comparison written by hand costs: 63 tokens in 10 s on one rank, in 6.4 s on two; see comparison.py."""

import pytest

from tasks.reporting.collect import collect_results
from tests.tasks.reporting.comparison import PARAMS, edit_json, outputs_of, write_comparison
from tests.tasks.reporting.measured import arm, measurement, write_measurement

PRICE = {"price_per_gpu_hour": 2.5, "price_date": "2026-11-01", "price_source": "an offer"}


def results_of(folder, *, measured=None, **params):
    content = PARAMS | {"cost": PRICE} | params
    write_comparison(folder, params=content)
    if measured is not None:
        write_measurement(folder, measured)
    return collect_results(outputs_of(folder, content))


def test_the_cost_of_a_training_is_worked_out_from_its_seconds(tmp_path):
    cost = results_of(tmp_path).cost
    one, two = cost.cells
    assert (cost.basis, one.num_devices, two.num_devices) == ("trained", 1, 2)
    figures = (one.usd_per_epoch, two.usd_per_epoch, one.usd_per_million_tokens, two.usd_per_million_tokens)
    per_second = 2.5 / 3600
    assert figures == pytest.approx((10 * per_second, 12.8 * per_second, *(s * per_second / 63e-6 for s in (10, 12.8))))
    # A result per 6.4 s, against two per 10 s.
    assert (one.num_baseline_jobs, two.num_baseline_jobs) == (None, 2)
    assert (two.result_seconds, two.results_per_hour, two.baseline_results_per_hour) == pytest.approx((6.4, 562.5, 720))


def test_where_speed_was_measured_the_cost_follows_from_the_measurement(tmp_path):
    # 15.5 tokens per step: in 68 ms on one rank, in 42 ms on two.
    measured = measurement(arm("1proc", 1), arm("2proc", 2, joules_per_token=0.0128))
    cost = results_of(tmp_path, measured=measured).cost
    one, two = cost.cells
    assert cost.basis == "measured"
    assert two.usd_per_epoch == pytest.approx(2.5 * 2 * 63 / (15.5 / 0.042) / 3600)
    assert one.kwh_per_epoch is None
    assert (two.kwh_per_epoch, two.kwh_per_million_tokens) == pytest.approx((63 * 0.0128 / 3.6e6, 12_800 / 3.6e6))
    # A copy of one rank's share takes 34.5 ms alone and 36.5 ms beside the other: 2 ms of contention.
    assert (one.baseline_slowdown, two.baseline_slowdown) == (None, pytest.approx(36.5 / 34.5))
    assert two.baseline_results_per_hour == pytest.approx(2 * one.results_per_hour * 34.5 / 36.5)


def test_more_jobs_than_one_are_told_by_devices_of_the_baseline(tmp_path):
    cells = {f"{size}proc": {"strategy": "ddp", "world_size": size} for size in (2, 4, 1)}
    params = PARAMS | {"cells": cells, "cost": PRICE}
    seconds = {"2proc": [6.0, 4.0], "4proc": [4.0, 2.4], "1proc": [12.0, 9.0]}
    write_comparison(tmp_path, params=params, seconds=seconds)
    edit_json(tmp_path / "machine.json", num_cpus=4)
    results = collect_results(outputs_of(tmp_path, params))
    assert results.cost is not None, results.verdict
    two, four, one = results.cost.cells
    assert (two.num_baseline_jobs, four.num_baseline_jobs) == (None, 2)
    assert four.baseline_results_per_hour == pytest.approx(720.0)
    assert (one.num_baseline_jobs, one.baseline_results_per_hour) == (None, None)  # half a job on one device
