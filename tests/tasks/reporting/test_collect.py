"""Every figure, recomputed by hand: see comparison.py and measured.py for what was written."""

import csv
from itertools import product

import pytest

from tasks.gates.clock import check_clock
from tasks.process.failure import DataError
from tasks.reporting import data_files
from tasks.reporting.collect import collect_results
from tasks.reporting.drawing import select_charts
from tasks.services.tracked import collect_final_figures
from tests.tasks.reporting.comparison import (
    BY_HAND,
    PARAMS,
    RANGES,
    STEPS_PER_SEGMENT,
    edit_json,
    edit_segment,
    edit_steps,
    outputs_of,
    write_comparison,
)
from tests.tasks.reporting.measured import arm, measurement, write_measurement
from tests.tasks.reporting.rendered import drawn_html_of, markdown_of


def test_the_reported_speedup_is_the_measured_one_and_the_whole_training_keeps_its_own(
    measured_results, withheld_measured_results
):
    given = measurement()
    assert [cell.speed for cell in measured_results.cells] == list(given.speeds.values())
    assert [cell.speedup for cell in measured_results.cells] == [None, given.speedups["2proc"]]
    metrics = data_files.collect_metrics(measured_results)
    found = collect_final_figures(measured_results.model_dump(mode="json"))
    expected = {
        "speedup": 68 / 42, "parallel_efficiency": 34 / 42, "karp_flatt": 4 / 17, "step_seconds": 0.042,
        "tokens_per_second": 15.5 / 0.042, "tokens_per_second_of_whole_training": 9.84375,
    }  # fmt: skip
    assert {name: found["2proc"][f"final/{name}"] for name in expected} == pytest.approx(expected)
    for name in ("speedup", "tokens_per_second"):
        assert found[None][f"final/{name}"] == metrics[name] == found["2proc"][f"final/{name}"]
    withheld = data_files.collect_metrics(withheld_measured_results)
    found = collect_final_figures(withheld_measured_results.model_dump(mode="json"))
    assert found[None]["final/tokens_per_second"] == withheld["tokens_per_second"] != expected["tokens_per_second"]
    (blocks,) = [one.readings for one in measured_results.hardware if one.cell == "2proc"]
    assert [one.host_gib for one in blocks] == [[0.5, 0.6]] * 24


def test_an_epoch_is_one_pass_over_all_ranges(tmp_path):
    params = PARAMS | {"train": PARAMS["train"] | {"epochs": 2}}
    seconds = {"1proc": [6.0, 5.0, 4.0, 3.0], "2proc": [4.0, 4.0, 2.0, 2.0]}
    results = collect_results(outputs_of(tmp_path, write_comparison(tmp_path, params=params, seconds=seconds)))
    one, two = results.cells
    assert [(part.epoch, part.train_seconds, part.num_tokens) for part in one.epochs] == [(1, 10.0, 63), (2, 8.0, 63)]
    assert (one.seconds_per_epoch, two.seconds_per_epoch) == (9.0, 6.0)


def test_losses_of_exactly_nothing_are_compared_and_drawn(tmp_path, collect):
    for cell, part, index in product(("1proc", "2proc"), RANGES, range(STEPS_PER_SEGMENT)):
        edit_steps(tmp_path, cell, part, index=index, loss=0.0)
    results = collect()
    assert results.failed_gates == []
    assert "0.0000" in drawn_html_of(results)
    edit_steps(tmp_path, "2proc", RANGES[1], loss=1e-9)
    assert collect().failed_gates == ["Loss curves coincide"]


def test_a_measurement_of_other_cells_is_refused(tmp_path, params, read):
    write_measurement(tmp_path, measurement(arm("1proc", 1), arm("2proc", 4)))
    with pytest.raises(DataError, match=r"cells \(ranks\) 1proc \(1\), 2proc \(4\), params.yaml has 1proc \(1\), 2pro"):
        read()


def test_of_classifiers_the_best_is_the_first_of_the_most_accurate_and_the_last_the_last(tmp_path):
    params = write_comparison(tmp_path)
    edit_json(tmp_path / "evaluation" / "evaluation.json", **BY_HAND["classified"])
    results = collect_results(outputs_of(tmp_path, params))
    marks = [
        (one.cell, one.range, one.is_best, one.is_last, one.step, one.train_seconds) for one in results.quality.epochs
    ]
    assert marks == [
        ("1proc", "0-8", False, False, 2, 6.0), ("1proc", "8-16", True, True, 4, 10.0),
        ("2proc", "0-8", True, False, 2, 4.0), ("2proc", "8-16", False, True, 4, 6.4),
    ]  # fmt: skip
    data_files.write_epochs(tmp_path / "epochs.csv", results)
    rows = list(csv.DictReader((tmp_path / "epochs.csv").open()))
    assert [(row["val_accuracy"], row["val_loss"]) for row in rows] == [("0.75", "1.25")] * 2
    assert data_files.collect_metrics(results)["heldout_accuracy"] == 0.75


def test_a_curve_has_every_look_at_todays_held_out_rows_and_the_report_says_who_looked_at_none(tmp_path):
    params = write_comparison(tmp_path, params={**PARAMS, "train": {**PARAMS["train"], "eval_every_steps": 2}})
    digest = outputs_of(tmp_path, params).slices[PARAMS["heldout"]].manifest.digest
    losses = zip(RANGES, (3.5, 3.25), strict=True)
    for (cell, rows), (part, loss) in product({"1proc": digest, "2proc": "others"}.items(), losses):
        edit_steps(tmp_path, cell, part, heldout_loss=loss, heldout_rows=rows, heldout_seconds=0.25)
    results = collect_results(outputs_of(tmp_path, params))
    seen = {one.cell: [*zip(one.steps, one.losses, strict=True)] for one in results.quality.heldout_curves}
    assert seen == {"1proc": [(2, 3.5), (4, 3.25)], "2proc": []}
    assert "heldout_curves" in select_charts(results)
    assert "no held-out loss in mid-training" in markdown_of(results)
    for part in RANGES:
        edit_steps(tmp_path, "2proc", part, heldout_rows=digest)
    assert "no held-out loss in mid-training" not in markdown_of(collect_results(outputs_of(tmp_path, params)))


def test_seconds_on_held_out_rows_are_accounted_for_by_the_clocks_gate(tmp_path, read):
    edit_segment(tmp_path, "2proc", "0-8", span_seconds=4 + 0.625 + 2.5, heldout_seconds=2.5)
    assert check_clock(read(), "2proc").outcome == "passed"
    edit_segment(tmp_path, "2proc", "0-8", heldout_seconds=0.0)
    assert check_clock(read(), "2proc").outcome == "failed"


def test_each_node_has_a_row_and_devices_of_its_own(tmp_path):
    params, run = write_comparison(tmp_path), tmp_path / "runs" / "2proc" / "run.json"
    edit_json(tmp_path / "machine.json", num_cpus=1)
    for num_cpus, verdict in ((1, "passed"), (0, "failed")):
        other = {"node_rank": 1, "host": "beta", "num_cpus": num_cpus, "gpu_energy_joules": 12_345.0}
        edit_json(run, num_nodes=2, nodes=[BY_HAND["node"], BY_HAND["node"] | other])
        results = collect_results(outputs_of(tmp_path, params))
        (gate,) = [one for one in results.gates if "needed" in one.findings[0].numbers]
        assert gate.outcome == verdict
        row = f"| 2proc | 1 | beta | 1 | EPYC | {num_cpus} | none | 10.0.0.1 (eth0) | 12.3 kJ |"
        assert row in markdown_of(results)
