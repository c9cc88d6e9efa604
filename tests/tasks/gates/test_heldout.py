"""Held-out rows are none that was learned from, and what was evaluated is what was trained."""

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.gates.heldout import check_evaluated_weights, check_heldout_rows
from tests.tasks.reporting.comparison import edit_json, edit_ledger, outputs_of, write_comparison


def test_a_cell_that_learned_from_a_held_out_row_fails_and_the_other_passes(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    edit_ledger(tmp_path, "2proc", lambda arrays: arrays["row_id"].put(3, 17))
    outputs = outputs_of(tmp_path, params)
    clean, found = (check_heldout_rows(outputs, cell) for cell in ("1proc", "2proc"))
    known = {"samples": 16, "held_out_rows": 4, "held_out_rows_seen": 0}
    assert (clean.code, clean.numbers) == ("passed", known | {"cell": "1proc", "held_out_samples": 0})
    more = {"cell": "2proc", "held_out_samples": 1, "where": "2proc 0-8 epoch 1", "times": 1}
    assert (found.verdict, found.code, found.numbers) == ("failed", "heldout_rows_trained", known | more)


@pytest.mark.parametrize(("num_seen", "verdict"), [(1, "passed"), (2, "failed")])
def test_held_out_rows_of_other_numbers_that_repeat_what_is_trained_on_are_not_held_out(
    tmp_path: Path, num_seen: int, verdict: str
) -> None:
    params = write_comparison(tmp_path)
    edit_json(tmp_path / "raw" / "manifest.json", num_heldout_rows_seen=num_seen)
    found = check_heldout_rows(outputs_of(tmp_path, params), "2proc")
    assert (found.verdict, found.code) == (verdict, "passed" if verdict == "passed" else "heldout_rows_repeated")


def test_weights_that_are_not_those_the_ranks_ended_with_fail(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    file = tmp_path / "evaluation" / "evaluation.json"
    models = json.loads(file.read_text())["models"]
    models["2proc"]["parameter_checksum"] = "other weights"
    edit_json(file, models=models)
    outputs = outputs_of(tmp_path, params)
    clean, found = (check_evaluated_weights(outputs, cell) for cell in ("1proc", "2proc"))
    assert clean.verdict == "passed", clean.compared
    assert (found.verdict, found.code, found.numbers["range"]) == ("failed", "other_weights", "8-16")


def test_the_checkpoint_of_an_epoch_is_held_against_the_end_of_that_epoch(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    # The first range's figures were made with the last range's weights.
    figures = {"loss": 3.5, "num_tokens": 16, "parameter_checksum": "05" * 8}
    epoch = {"range": "0-8", "epoch": 1, "checkpoint": "a.pt"} | figures
    last = epoch | {"range": "8-16"}
    edit_json(tmp_path / "evaluation" / "evaluation.json", epochs={"2proc": [epoch, last]})
    found = check_evaluated_weights(outputs_of(tmp_path, params), "2proc")
    assert (found.code, found.numbers["range"]) == ("other_weights", "0-8")
    assert (found.numbers["found"], found.numbers["expected"]) == ("05" * 6, "03" * 6)


def _edit_model(folder: Path, name: str, **changes: Any) -> None:
    file = folder / "evaluation" / "evaluation.json"
    models = json.loads(file.read_text())["models"]
    edit_json(file, models=models | {name: models[name] | changes})


@pytest.mark.parametrize("name", ["2proc", "base"])
@pytest.mark.parametrize(
    ("changes", "code"), [({"rows_digest": "ab" * 32}, "other_heldout_rows"), ({"num_tokens": 15}, "other_tokens")]
)
def test_models_that_were_evaluated_on_other_rows_than_are_held_out_fail(
    tmp_path: Path, name: str, changes: dict[str, Any], code: str
) -> None:
    params = write_comparison(tmp_path)
    digest = outputs_of(tmp_path, params).slices["16-20"].manifest.digest
    for model in ("base", *params["cells"]):
        _edit_model(tmp_path, model, rows_digest=digest)
    assert check_evaluated_weights(outputs_of(tmp_path, params), "2proc").verdict == "passed"
    _edit_model(tmp_path, name, **changes)
    found = check_evaluated_weights(outputs_of(tmp_path, params), "2proc")
    assert (found.verdict, found.code) == ("failed", code)
    assert found.numbers.get("model", name) == name


def test_held_out_rows_that_were_cut_at_another_length_fail(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    edit_json(tmp_path / "evaluation" / "evaluation.json", seq_len=64)
    found = check_evaluated_weights(outputs_of(tmp_path, params), "2proc")
    assert (found.code, found.numbers["found"], found.numbers["expected"]) == ("other_seq_len", 64, 128)


def test_a_segment_after_which_one_cell_was_not_evaluated_and_others_were_fails(tmp_path: Path) -> None:
    params = write_comparison(tmp_path)
    file = tmp_path / "evaluation" / "evaluation.json"
    checksums = {"0-8": "03" * 8, "8-16": "05" * 8}
    points = [
        {"range": part, "epoch": 1, "checkpoint": "a.pt", "loss": 3.5, "num_tokens": 16, "parameter_checksum": checksum}
        for part, checksum in checksums.items()
    ]
    edit_json(file, epochs=dict.fromkeys(params["cells"], points))
    assert check_evaluated_weights(outputs_of(tmp_path, params), "2proc").verdict == "passed"
    edit_json(file, epochs={"1proc": points, "2proc": points[1:]})
    found = check_evaluated_weights(outputs_of(tmp_path, params), "2proc")
    assert (found.verdict, found.code, found.numbers["range"]) == ("failed", "epoch_not_evaluated", "0-8")
