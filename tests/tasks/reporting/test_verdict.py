from pathlib import Path
from typing import Any

import pytest

from tasks.records.gate import BORNE_OUT, QUIET_TURNS
from tasks.reporting.blocks import Answers
from tasks.reporting.collect import collect_results
from tasks.reporting.results import Results
from tasks.reporting.sections.verdict import make_blocks
from tests.tasks.reporting.comparison import (
    PARAMS,
    drop_updates,
    edit_json,
    edit_segment,
    outputs_of,
    write_comparison,
)
from tests.tasks.reporting.measured import arm, estimate, measurement, write_measurement
from tests.tasks.reporting.rendered import lacks

THREE = {"1proc": [6.0, 6.0], "2proc": [4.0, 4.0], "4proc": [2.5, 2.5]}
THREE_CELLS = PARAMS | {"cells": PARAMS["cells"] | {"4proc": {"strategy": "ddp", "world_size": 4}}}


def measure(folder: Path, seconds: dict[str, list[float]], params: dict[str, Any] | None = None) -> dict[str, Any]:
    """Write a comparison whose cells took so long, in the training and when they were timed."""
    params = write_comparison(folder, seconds=seconds, params=params)
    edit_json(folder / "machine.json", num_cpus=4)
    first, *others = (
        arm(cell, params["cells"][cell]["world_size"], seconds=sum(took) / 100,
            speedup=None if cell == "1proc" else estimate(sum(seconds["1proc"]) / sum(took)))
        for cell, took in seconds.items()
    )  # fmt: skip
    write_measurement(folder, measurement(arms=[first, *others], waterfalls=[]))
    return params


def verdict_with(folder: Path, seconds: dict[str, list[float]], params: dict[str, Any] | None = None) -> str:
    return collect_results(outputs_of(folder, measure(folder, seconds, params))).verdict


@pytest.mark.parametrize(
    ("seconds", "figures"),
    [
        ({"1proc": [4.0, 4.0], "2proc": [5.0, 5.0]}, ("slower", "0.80x", "40 %", "100 ms", "80.0 ms")),
        ({"1proc": [4.0, 4.1], "2proc": [4.0, 4.0]}, ("no measurable difference", "1.01x", "51 %")),
        # The best one first.
        (THREE, ("4proc trains 2.40x", "60 %", "50.0 ms", "120 ms", "2proc 1.50x", "75 %")),
    ],
)
def test_a_verdict_is_of_all_cells_and_their_figures(
    tmp_path: Path, seconds: dict[str, list[float]], figures: tuple[str, ...]
) -> None:
    assert not lacks(verdict_with(tmp_path, seconds, THREE_CELLS if "4proc" in seconds else None), *figures)


def test_the_headline_is_the_best_cell_that_passed_and_says_what_is_withheld_and_why(tmp_path: Path) -> None:
    params = measure(tmp_path, THREE, THREE_CELLS)
    edit_json(tmp_path / "machine.json", num_cpus=2)
    verdict = collect_results(outputs_of(tmp_path, params)).verdict
    assert verdict.startswith("Proven: 2proc trains 1.50x")
    assert not lacks(verdict, "4proc is withheld", "“Every rank has a device of its own”", "21 of 22")
    # The gate that needs the fewest words speaks for all.
    edit_segment(tmp_path, "4proc", "8-16", parameter_checksums=["05" * 8, "b", "c", "d"])
    assert not lacks(collect_results(outputs_of(tmp_path, params)).verdict, "“Same parameters on all ranks”", "1 other")


def test_a_proven_cell_is_the_headline_even_where_an_unproven_one_is_faster(tmp_path: Path) -> None:
    params = measure(tmp_path, THREE, THREE_CELLS)
    drop_updates(tmp_path, "4proc")
    results = collect_results(outputs_of(tmp_path, params))
    assert [cell.standing.state for cell in results.cells] == ["proven", "proven", "unproven"]
    assert results.verdict.startswith("Proven: 2proc trains 1.50x")
    assert not lacks(results.verdict, "4proc 2.40x", "4proc is unproven", "“Update equivalence”")


@pytest.mark.parametrize("two", [4.7, 4.95])
def test_a_speedup_above_linear_is_a_suspect_even_where_the_gate_believes_it(tmp_path: Path, two: float) -> None:
    # 10 s against 2 x 4.7 s are an efficiency of 1.06, against 2 x 4.95 s of 1.01: within the interval.
    verdict = verdict_with(tmp_path, {"1proc": [6.0, 4.0], "2proc": [2.7, two - 2.7]})
    assert "all 22" in verdict
    assert ("suspect: 2proc is above linear (106 %)" in verdict) == (two == 4.7)


def test_one_cell_has_no_speedup(tmp_path: Path) -> None:
    params = PARAMS | {"cells": {"1proc": PARAMS["cells"]["1proc"]}}
    verdict = verdict_with(tmp_path, {"1proc": [6.0, 4.0]}, params)
    assert not lacks(verdict, "Not measured: 1proc 10.0 s per epoch", "a speedup needs a second cell")
    assert "x as fast" not in verdict


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_label_follows_from_the_recorded_facts_not_from_the_name(tmp_path: Path, device: str) -> None:
    params = write_comparison(tmp_path, device=device)
    edit_json(tmp_path / "raw" / "manifest.json", kind="hub", label="arXiv abstracts")
    edit_json(tmp_path / "base_model" / "manifest.json", kind="hub", is_random_weights=False)
    label = collect_results(outputs_of(tmp_path, params)).label
    if device == "cuda":
        assert label is None
    else:
        assert label is not None
        assert not lacks(label, "1,000 parameters", "arXiv abstracts", "nothing about GPUs")
        assert "random" not in label


def test_who_was_disturbed_is_told_to_measure_again_and_who_did_other_work_to_mend_it(
    withheld_measured_results: Results,
) -> None:
    def tell_next(*failed: str) -> str:
        gates = [
            gate.model_copy(
                update={
                    "findings": [
                        one.model_copy(update={"verdict": "failed" if gate.name in failed else "passed"})
                        for one in gate.findings
                    ]
                }
            )
            for gate in withheld_measured_results.gates
        ]
        results = withheld_measured_results.model_copy(update={"gates": gates})
        assert sorted(results.failed_gates) == sorted(failed)
        (answers,) = [block for block in make_blocks(results) if isinstance(block, Answers)]
        return next(answer for question, answer, _ in answers.answers if question == "What next?")

    assert "make rebench" in tell_next(QUIET_TURNS, BORNE_OUT)
    for failed in ((BORNE_OUT,), (QUIET_TURNS, "Same parameters on all ranks")):
        assert "docs/gates.md" in tell_next(*failed)
        assert "make rebench" not in tell_next(*failed)
