"""What the comparison written by hand costs: 63 tokens in 10 s on one rank, in 6.4 s on two; see comparison.py."""

import pytest

from tasks.reporting.collect import collect_results
from tests.tasks.reporting.comparison import PARAMS, edit_json, outputs_of, write_comparison

PRICE = {"price_per_gpu_hour": 2.5, "price_date": "2026-11-01", "price_source": "an offer"}


def test_the_cost_of_a_training_is_worked_out_from_its_seconds(tmp_path):
    cost = collect_results(outputs_of(tmp_path, write_comparison(tmp_path, params=PARAMS | {"cost": PRICE}))).cost
    one, two = cost.cells
    assert (cost.basis, one.num_devices, two.num_devices) == ("trained", 1, 2)
    figures = (one.usd_per_epoch, two.usd_per_epoch, one.usd_per_million_tokens, two.usd_per_million_tokens)
    per_second = 2.5 / 3600
    assert figures == pytest.approx((10 * per_second, 12.8 * per_second, *(s * per_second / 63e-6 for s in (10, 12.8))))
    # A result per 6.4 s, against two per 10 s.
    assert (one.num_baseline_jobs, two.num_baseline_jobs) == (None, 2)
    assert (two.result_seconds, two.results_per_hour, two.baseline_results_per_hour) == pytest.approx((6.4, 562.5, 720))


def test_more_jobs_than_one_are_told_by_devices_of_the_baseline(tmp_path):
    cells = {f"{size}proc": {"strategy": "ddp", "world_size": size} for size in (2, 4, 1)}
    params = PARAMS | {"cells": cells, "cost": PRICE}
    seconds = {"2proc": [6.0, 4.0], "4proc": [4.0, 2.4], "1proc": [12.0, 9.0]}
    write_comparison(tmp_path, params=params, seconds=seconds)
    edit_json(tmp_path / "machine.json", num_cpus=4)
    two, four, one = collect_results(outputs_of(tmp_path, params)).cost.cells
    assert (two.num_baseline_jobs, four.num_baseline_jobs) == (None, 2)
    assert four.baseline_results_per_hour == pytest.approx(720.0)
    assert (one.num_baseline_jobs, one.baseline_results_per_hour) == (None, None)  # half a job on one device
