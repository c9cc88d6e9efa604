import json
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
    edit_json,
    edit_segment,
    outputs_of,
    write_comparison,
)

THREE = {"1proc": [6.0, 6.0], "2proc": [4.0, 4.0], "4proc": [2.5, 2.5]}
THREE_CELLS = PARAMS | {"cells": PARAMS["cells"] | {"4proc": {"strategy": "ddp", "world_size": 4}}}


def verdict_with(folder: Path, seconds: dict[str, list[float]], params: dict[str, Any] | None = None) -> str:
    params = write_comparison(folder, seconds=seconds, params=params)
    edit_json(folder / "machine.json", num_cpus=4)
    return collect_results(outputs_of(folder, params)).verdict


def test_the_verdict_says_how_much_faster_at_what_times_and_with_what_doubt(clean_results: Results) -> None:
    assert clean_results.verdict == (
        "2proc trains 1.56x as fast as 1proc (78 % of linear) at equal work: 6.40 s against 10.0 s per epoch; "
        "all 17 gates passed; one run of each cell (single segments 1.50x to 1.67x), so no interval yet."
    )


def test_a_speedup_below_one_is_called_slower(tmp_path: Path) -> None:
    verdict = verdict_with(tmp_path, {"1proc": [4.0, 4.0], "2proc": [5.0, 5.0]})
    assert verdict.startswith(
        "2proc trains slower than 1proc at equal work (0.80x, 40 % of linear): 10.0 s against 8.00 s"
    )


def test_a_difference_of_a_few_percent_is_called_no_clear_difference(tmp_path: Path) -> None:
    verdict = verdict_with(tmp_path, {"1proc": [4.0, 4.1], "2proc": [4.0, 4.0]})
    assert verdict.startswith("No clear difference between 2proc and 1proc at equal work (1.01x, 51 %")


def test_several_cells_are_all_answered_the_best_one_first(tmp_path: Path) -> None:
    verdict = verdict_with(tmp_path, THREE, THREE_CELLS)
    assert verdict.startswith(
        "4proc trains 2.40x as fast as 1proc (60 % of linear) at equal work: 5.00 s against 12.0 s per epoch; others: "
        "2proc 1.50x (75 % of linear); all 17 gates passed;"
    )


def test_the_headline_is_the_best_cell_that_passed_and_says_what_is_withheld_and_why(tmp_path: Path) -> None:
    params = write_comparison(tmp_path, seconds=THREE, params=THREE_CELLS)
    assert collect_results(outputs_of(tmp_path, params)).verdict == (
        "2proc trains 1.50x as fast as 1proc (75 % of linear) at equal work: 8.00 s against 12.0 s per epoch; 4proc is "
        "withheld: “Every rank has a device of its own” failed: 4proc needs 4 CPUs and shares 2: a cell whose ranks "
        "share devices says nothing about scaling; 16 of 17 gates passed, 1 failed; one run of each cell (single "
        "segments 1.50x to 1.50x), so no interval yet."
    )
    # The gate that needs the fewest words speaks for all.
    edit_segment(tmp_path, "4proc", "8-16", parameter_checksums=["05" * 8, "b", "c", "d"])
    verdict = collect_results(outputs_of(tmp_path, params)).verdict
    assert (
        "4proc is withheld: “Same parameters on all ranks” and 1 other gate failed: 4proc 8-16 epoch 1: 4 d" in verdict
    )


def test_cells_that_one_gate_withholds_share_a_clause(tmp_path: Path) -> None:
    cells = THREE_CELLS["cells"] | {"3proc": {"strategy": "ddp", "world_size": 2}}
    seconds = {**THREE, "3proc": [4.1, 4.1]}
    params = write_comparison(tmp_path, params=PARAMS | {"cells": cells}, seconds=seconds)
    edit_json(tmp_path / "machine.json", num_cpus=4)
    for cell in ("3proc", "4proc"):
        edit_segment(tmp_path, cell, parameter_checksums=["03" * 8])
    verdict = collect_results(outputs_of(tmp_path, params)).verdict
    assert verdict.startswith("2proc trains 1.50x")
    assert (
        "; 4proc and 3proc are withheld: “Same parameters on all ranks” failed: 4proc 0-8 epoch 1: 1 checksums of 4 "
        "ranks; 3proc 0-8 epoch 1: 1 checksums of 2 ranks; 16 of"
    ) in verdict


def test_a_proven_cell_is_the_headline_even_where_an_unproven_one_is_faster(tmp_path: Path) -> None:
    params = write_comparison(tmp_path, seconds=THREE, params=THREE_CELLS)
    edit_json(tmp_path / "machine.json", num_cpus=4)
    certificate = tmp_path / "measurements" / "certificate.json"
    only_two = [one for one in json.loads(certificate.read_text())["cells"] if one["cell"] == "2proc"]
    edit_json(certificate, cells=only_two)
    results = collect_results(outputs_of(tmp_path, params))
    assert [cell.standing.state for cell in results.cells] == ["proven", "proven", "unproven"]
    assert results.verdict.startswith("2proc trains 1.50x as fast as 1proc")
    assert "; others: 4proc 2.40x (60 % of linear); 4proc is unproven: “Update equivalence” was not " in results.verdict


@pytest.mark.parametrize("two", [4.7, 4.95])
def test_a_speedup_above_linear_is_a_suspect_even_where_the_gate_believes_it(tmp_path: Path, two: float) -> None:
    # 10 s against 2 x 4.7 s are an efficiency of 1.06, against 2 x 4.95 s of 1.01: within the noise of one run.
    verdict = verdict_with(tmp_path, {"1proc": [6.0, 4.0], "2proc": [2.7, two - 2.7]})
    assert "all 17 gates passed" in verdict
    warning = (
        "; suspect: 2proc is above linear (106 %), which its ranks alone cannot make; probably something slowed 1p"
    )
    assert (warning in verdict) == (two == 4.7)


def test_one_cell_has_no_speedup(tmp_path: Path) -> None:
    params = PARAMS | {"cells": {"1proc": PARAMS["cells"]["1proc"]}}
    verdict = verdict_with(tmp_path, {"1proc": [6.0, 4.0]}, params)
    assert verdict == (
        "1proc needs 10.0 s per epoch; a speedup needs a second cell to compare with; "
        "11 of 17 gates passed, 6 not checked."
    )


def test_a_failed_gate_is_the_verdict(withheld_results: Results) -> None:
    assert withheld_results.verdict == (
        "Speedup withheld: the gate “Same parameters on all ranks” failed: "
        "2proc 8-16 epoch 1: 2 different checksums on 2 ranks."
    )


def test_several_failed_gates_are_all_named(tmp_path: Path, params: dict[str, Any]) -> None:
    edit_segment(tmp_path, "2proc", traffic={}, data_wait_seconds=2.0)
    verdict = collect_results(outputs_of(tmp_path, params)).verdict
    assert verdict == "Speedup withheld: the 2 gates “Gradients were synchronised” and “Not data-bound” failed."


def test_the_label_says_what_a_demonstration_does_not_show(clean_results: Results) -> None:
    assert clean_results.label == (
        "This built-in demonstration trains a model of 1,000 parameters that starts from random weights on the CPU; "
        "its texts are docstrings of the installed packages. Its speedup says something about the cores of this "
        "machine, and nothing about GPUs. Its loss shows that training works, not what a useful model reaches."
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_label_follows_from_the_recorded_facts_not_from_the_name(tmp_path: Path, device: str) -> None:
    params = write_comparison(tmp_path, device=device)
    edit_json(tmp_path / "raw" / "manifest.json", kind="hub", label="arXiv abstracts")
    edit_json(tmp_path / "base_model" / "manifest.json", kind="hub", is_random_weights=False)
    label = collect_results(outputs_of(tmp_path, params)).label
    if device == "cuda":
        assert label is None
    else:
        assert label == (
            "This comparison trains a model of 1,000 parameters on the CPU; its texts are arXiv abstracts. Its speedup "
            "says something about the cores of this machine, and nothing about GPUs."
        )


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

    assert tell_next(QUIET_TURNS, BORNE_OUT).startswith("Type “make rebench” while nothing else runs")
    assert tell_next(BORNE_OUT).startswith("Mend what the failed gate names")
    assert tell_next(QUIET_TURNS, "Same parameters on all ranks").startswith("Mend what the failed gate names")
