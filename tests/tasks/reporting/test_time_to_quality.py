"""Time to quality, against arithmetic by hand; and a cell with another batch never passes for the same work."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tasks.gates import other_training
from tasks.gates.checks import Check, check_gates, compute_standings
from tasks.gates.other_training import check_seeds
from tasks.records.gate import Finding, make_finding, make_unchecked_finding
from tasks.records.outputs import Outputs
from tasks.reporting.collect import collect_results
from tasks.reporting.data_files import write_metrics
from tasks.reporting.document import make_document
from tasks.reporting.markdown import render_markdown
from tasks.reporting.results import Results
from tasks.reporting.time_to_quality import estimate_over_seeds, find_crossing
from tasks.services.tracked import make_gate_tags
from tests.tasks.reporting.comparison import (
    PARAMS,
    edit_json,
    end_checksum,
    outputs_of,
    write_comparison,
)

BIG = {"strategy": "ddp", "world_size": 2, "batch": {"factor": "world_size", "learning_rate": "sqrt"}}
LOSSES = {"1proc": [3.8, 3.2], "2big": [3.5, 3.0]}
"""On the held-out rows after each segment; the base model's is 4.0."""


def test_between_two_evaluations_the_loss_falls_evenly_with_the_seconds() -> None:
    path = [(0.0, 4.0), (10.0, 3.0), (30.0, 2.5)]
    assert find_crossing(path, 3.5) == pytest.approx(5.0)
    assert find_crossing(path, 3.0) == pytest.approx(10.0)
    assert find_crossing(path, 2.6) == pytest.approx(10 + 20 * 0.4 / 0.5)
    assert find_crossing(path, 2.4) is None, "not reached"
    assert find_crossing(path, 5.0) == 0.0
    assert find_crossing([(0.0, 4.0), (1.0, 4.5), (2.0, 3.5)], 4.25) == 0.0
    assert find_crossing([(0.0, 4.0), (1.0, math.nan), (2.0, 3.0)], 3.5) == pytest.approx(1.0), "none is passed over"
    assert find_crossing([(0.0, 4.0), (1.0, -math.inf)], 3.5) is None
    assert find_crossing([(0.0, 4.0), (1.0, 4.5), (2.0, 3.5)], 3.75) == pytest.approx(1.75), "it may rise before"


def test_seeds_are_averaged_as_ratios_and_three_make_an_interval() -> None:
    assert estimate_over_seeds([2.0]) == (2.0, None, None)
    assert estimate_over_seeds([2.0, 8.0]) == (pytest.approx(4.0), None, None)
    value, low, high = estimate_over_seeds([2.0, 4.0, 8.0])
    # ln 2 apart: a standard deviation of ln 2, and t(2) at 97.5 % is 4.302653.
    assert value == pytest.approx(4.0)
    assert low == pytest.approx(4.0 / 2 ** (4.302653 / 3**0.5), rel=1e-5)
    assert high == pytest.approx(4.0 * 2 ** (4.302653 / 3**0.5), rel=1e-5)


def _pass(outputs: Outputs, cell: str) -> Finding:
    return make_finding([], otherwise=f"{cell}: fine", numbers={})


CHECKS_THAT_PASS = [Check(name="All is well", question="Is it?", find=_pass, sees_baseline=True)]


def write_with_big(folder: Path, losses: dict[str, list[float]] = LOSSES, **quality: Any) -> Outputs:
    """Write a comparison whose second cell has twice the batch, and says so; 10 s against 6.4 s."""
    return _write(folder, "2big", BIG, losses, quality)


def _write(folder: Path, name: str, cell: Any, losses: dict[str, list[float]], quality: Any) -> Outputs:
    params: dict[str, Any] = {**PARAMS, "cells": {"1proc": PARAMS["cells"]["1proc"], name: cell}, "quality": quality}
    write_comparison(folder, params=params, seconds={"1proc": [6.0, 4.0], name: [4.0, 2.4]})
    evaluation = json.loads((folder / "evaluation" / "evaluation.json").read_text())
    figures = {key: value for key, value in evaluation["models"]["base"].items() if key != "checkpoint"}
    epochs = {
        cell: [
            figures
            | {"loss": loss, "range": part, "epoch": 1, "checkpoint": "c.pt", "parameter_checksum": end_checksum(first)}
            for loss, part, first in zip(found, PARAMS["ranges"], (1, 3), strict=True)
        ]
        for cell, found in losses.items()
    }
    models = evaluation["models"] | {"base": evaluation["models"]["base"] | {"loss": 4.0}}
    edit_json(folder / "evaluation" / "evaluation.json", epochs=epochs, models=models)
    return outputs_of(folder, params)


def find_time(outputs: Outputs, cell: str = "2big") -> Any:
    """Return the time to quality of a cell, whatever its gates say of files that were written by hand."""
    results = collect_results(outputs)
    assert results.time_to_quality is not None
    assert [one.cell for one in results.time_to_quality.cells] == ["1proc", cell]
    return results.time_to_quality


def test_gates_about_the_same_work_do_not_apply_and_the_cell_is_judged_by_what_it_was_asked_for(tmp_path: Path) -> None:
    outputs = write_with_big(tmp_path)
    gates = {gate.name: gate for gate in check_gates(outputs)}
    said = {name: found for name, gate in gates.items() if (found := gate.find_cell_finding("2big")) is not None}
    unfit = {name for name, found in said.items() if found.verdict == "does not apply"}
    assert unfit == {
        "Loss curves coincide", "Same work in every cell", "Same rows in the same steps", "Speedup is plausible"
    }  # fmt: skip
    assert all("this cell is another training" in said[name].compared for name in unfit)
    # Written by hand at the baseline's batch: a run that did not do what was asked for.
    assert said["Only what it says differs"].verdict == "failed"
    assert "global batch size 4, expected 8" in said["Only what it says differs"].compared
    assert said["Steps are those asked for"].verdict == "failed"
    assert said["Every sample exactly once"].verdict == "passed"
    assert compute_standings(list(gates.values()), ["1proc", "2big"])["2big"].state == "withheld"


def test_a_batch_that_learns_less_is_caught_where_it_passes_for_the_same_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = write_with_big(tmp_path)
    edit_json(tmp_path / "runs" / "2big" / "run.json", global_batch_size=8)
    monkeypatch.setattr("tasks.params.Params.other_trainings", [])
    hidden = outputs_of(tmp_path, outputs.params.model_dump(mode="json"))
    gates = {gate.name: gate for gate in check_gates(hidden)}
    found = gates["Same work in every cell"].find_cell_finding("2big")
    assert found is not None
    assert found.verdict == "failed"
    assert "samples per optimizer step 8, expected 4" in found.compared
    results = collect_results(hidden)
    assert results.cells[1].state == "withheld"
    assert results.cells[1].speedup is None


def test_a_cell_with_another_batch_has_no_speedup_anywhere_and_a_withheld_one_no_time_to_quality(
    tmp_path: Path,
) -> None:
    results = collect_results(write_with_big(tmp_path))
    big = results.cells[1]
    assert big.is_other_training
    assert (big.speedup, big.parallel_efficiency, big.karp_flatt, big.speedup_of_segments) == (None,) * 4
    assert all(part.speedup is None for part in (big.whole, *big.epochs, *big.ranges, *big.segments))
    assert results.cost is None or [one.cell for one in results.cost.cells] == ["1proc"]
    assert results.answers == []
    found = find_time(write_with_big(tmp_path / "again"))
    assert (found.cells[1].speedup, found.cells[1].data) == (None, None), "its gates failed"


def test_one_training_does_not_pass_for_one_from_another_seed(tmp_path: Path) -> None:
    outputs = write_with_big(tmp_path)
    assert check_seeds(outputs, "1proc") is None, "there is one seed"
    epochs = {1: outputs.evaluation.epochs}
    again = dataclasses.replace(
        outputs, seeds={1: outputs.runs}, evaluation=outputs.evaluation.model_copy(update={"seeds": epochs})
    )
    found = check_seeds(again, "1proc")
    assert found is not None
    assert found.verdict == "failed"
    assert "1proc from seed 1: trained with other settings than params.yaml asks for" in found.compared
    assert "its rows are not in the order of seed 1" in found.compared
    run = outputs.runs["1proc"]
    other = dataclasses.replace(run, facts=run.facts.model_copy(update={"code_digest": "other"}))
    found = check_seeds(dataclasses.replace(again, seeds={1: {"1proc": other}}), "1proc")
    assert found is not None
    assert "1proc from seed 1: code digest is not that of the cell's first training" in found.compared


def test_the_clock_of_a_training_from_another_seed_is_held_to_what_that_of_the_first_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing else is said of files that were written by hand.
    own = [check for check in other_training._CHECKS_OF_A_SEED if check.__name__ == "check_clock"]
    monkeypatch.setattr(other_training, "_CHECKS_OF_A_SEED", own)
    outputs = write_with_big(tmp_path)
    run, epochs = outputs.runs["1proc"], {1: outputs.evaluation.epochs}
    # As if a checkpoint were in the baseline's seconds, which then come to the target ten times as late.
    late = [dataclasses.replace(one, facts=dataclasses.replace(one.facts, train_seconds=60.0)) for one in run.segments]
    again = dataclasses.replace(
        outputs,
        seeds={1: {**outputs.runs, "1proc": dataclasses.replace(run, segments=late)}},
        evaluation=outputs.evaluation.model_copy(update={"seeds": epochs}),
    )
    found = check_seeds(again, "1proc")
    assert found is not None
    assert found.verdict == "failed"
    assert "the clock of the steps ran while something else was timed too" in found.compared


def tell(results: Results) -> str:
    return render_markdown(make_document(results))


def test_the_time_to_the_loss_that_the_baseline_ends_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The files by hand are of one batch; what is held against them stands above.
    monkeypatch.setattr("tasks.gates.checks.CHECKS", [])
    monkeypatch.setattr("tasks.gates.checks.CHECKS_OF_OTHERS", CHECKS_THAT_PASS)
    results = collect_results(write_with_big(tmp_path))
    found = results.time_to_quality
    assert found is not None
    assert found.target_loss == 3.2
    first, big = found.cells
    # 2big: 3.5 after 4 s, 3.0 after 6.4 s, so 3.2 after 4 + 2.4 * 0.3 / 0.5 s.
    assert first.seeds[0].seconds_to_target == pytest.approx(10.0)
    assert big.seeds[0].seconds_to_target == pytest.approx(5.44)
    assert big.speedup == pytest.approx(10 / 5.44)
    assert (big.low, big.high) == (None, None)
    assert big.device_time == pytest.approx(2 * 5.44 / 10)
    tokens = [one.num_tokens for one in big.seeds[0].points]
    assert big.data == pytest.approx((tokens[1] + (tokens[2] - tokens[1]) * 0.6) / tokens[2])
    said = tell(results)
    assert (
        "2big, another training (batch 8, learning rate 0.00283), has a model as good as 1proc's 1.84x as soon" in said
    )
    assert "1.84x by 2big (batch 8, learning rate 0.00283), for 0.80 times the tokens and 1.09 times the device" in said
    assert "How much sooner is an equally good model there?" in said
    assert "trains 1.84x as fast" not in said
    # Nobody is told that it has a speedup, nor that one is withheld.
    assert results.cells[1].state == "another training"
    assert make_gate_tags(results.model_dump(mode="json"))["2big"]["speedup"] == "another training"
    write_metrics(tmp_path / "metrics.json", results)
    metrics = json.loads((tmp_path / "metrics.json").read_text())["2big"]
    assert (metrics["state"], metrics["speedup"]) == ("another training", None)
    assert (metrics["times_as_soon_as_good"], metrics["quality_state"]) == (pytest.approx(10 / 5.44), "proven")


def test_a_target_that_is_not_reached_is_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.gates.checks.CHECKS", [])
    monkeypatch.setattr("tasks.gates.checks.CHECKS_OF_OTHERS", CHECKS_THAT_PASS)
    results = collect_results(write_with_big(tmp_path, {"1proc": [3.8, 3.2], "2big": [3.6, 3.4]}))
    assert results.time_to_quality is not None
    big = results.time_to_quality.cells[1]
    assert (big.speedup, big.num_reached, big.seeds[0].seconds_to_target) == (None, 0, None)
    # All of its training, 6.4 s, did not come to the loss that the baseline came to in 10 s.
    assert big.speedup_below == pytest.approx(10 / 6.4)
    missed = "has no time to quality: 2big did not reach a held-out loss of 3.2000 in 1 of 1 training"
    assert f"{missed}, so that it is there less than {big.speedup_below:.2f}x as soon, if ever" in tell(results)
    stated = collect_results(write_with_big(tmp_path / "stated", target_heldout_loss=3.9))
    assert stated.time_to_quality is not None
    assert stated.time_to_quality.is_stated
    assert stated.time_to_quality.cells[0].seeds[0].seconds_to_target == pytest.approx(3.0)
    assert stated.time_to_quality.cells[1].speedup == pytest.approx(3.0 / (4.0 * 0.1 / 0.5))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (3.1, "1proc did not reach a held-out loss of 3.1000 in 1 of 1 training"),
        (4.5, "the base model has a held-out loss of 4.5000 already, before any training"),
    ],
)
def test_no_cell_is_blamed_for_a_target_that_it_came_to(
    target: float, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.gates.checks.CHECKS", [])
    monkeypatch.setattr("tasks.gates.checks.CHECKS_OF_OTHERS", CHECKS_THAT_PASS)
    said = tell(collect_results(write_with_big(tmp_path, target_heldout_loss=target)))
    assert f"has no time to quality: {why}" in said
    assert f"That cannot be said: {why}." in said
    assert "2big did not reach" not in said
    (row,) = [line for line in said.splitlines() if line.startswith("| 2big | 8 |")]
    assert "not reached" not in row


def test_a_time_to_quality_that_a_gate_could_not_tell_of_is_unproven_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_away(outputs: Outputs, cell: str) -> Finding:
        return make_unchecked_finding(f"{cell}: nothing to look at")

    monkeypatch.setattr("tasks.gates.checks.CHECKS", [])
    unchecked = [Check(name="All is well", question="Is it?", find=look_away, sees_baseline=True)]
    monkeypatch.setattr("tasks.gates.checks.CHECKS_OF_OTHERS", unchecked)
    results = collect_results(write_with_big(tmp_path))
    figures = [line for line in tell(results).splitlines() if "1.84x" in line]
    assert figures
    assert [line for line in figures if "nproven" not in line] == []
    # Whoever reads figures for machines is told so, too.
    write_metrics(tmp_path / "metrics.json", results)
    metrics = json.loads((tmp_path / "metrics.json").read_text())["2big"]
    assert metrics["times_as_soon_as_good"] == pytest.approx(10 / 5.44)
    assert metrics["quality_state"] == "unproven"
    tags = make_gate_tags(results.model_dump(mode="json"))
    assert tags["2big"]["speedup"].startswith("another training, unproven: All is well: 2big: nothing to look at")
