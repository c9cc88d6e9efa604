"""Held-out rows are none that was learned from, and what was evaluated is what was trained."""

import json

import pytest

from tasks.gates.heldout import check_evaluated_weights, check_heldout_rows
from tests.tasks.reporting.comparison import edit_json


@pytest.mark.parametrize(("num_seen", "code"), [(1, "passed"), (2, "heldout_rows_repeated")])
def test_held_out_rows_of_other_numbers_that_repeat_what_is_trained_on_are_not_held_out(
    tmp_path, expect, num_seen, code
):
    edit_json(tmp_path / "raw" / "manifest.json", num_heldout_rows_seen=num_seen)
    expect(check_heldout_rows, code)


@pytest.mark.parametrize("name", ["2proc", "base"])
@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, "passed"), ({"rows_digest": "ab" * 32}, "other_heldout_rows"), ({"num_tokens": 15}, "other_tokens")],
)
def test_models_that_were_evaluated_on_other_rows_than_are_held_out_fail(tmp_path, expect, name, changes, code, read):
    file = tmp_path / "evaluation" / "evaluation.json"
    digest = read().slices["16-20"].manifest.digest
    models = {key: one | {"rows_digest": digest} for key, one in json.loads(file.read_text())["models"].items()}
    edit_json(file, models=models | {name: models[name] | changes})
    assert expect(check_evaluated_weights, code).numbers.get("model", name) == name
    edit_json(file, models={key: one | changes for key, one in models.items()})
    expect(check_evaluated_weights, code)


def test_held_out_rows_that_were_cut_at_another_length_fail(tmp_path, expect):
    edit_json(tmp_path / "evaluation" / "evaluation.json", seq_len=64)
    expect(check_evaluated_weights, "other_seq_len", found=64, expected=128)


@pytest.mark.parametrize(
    ("of_first", "code"), [("03" * 8, "passed"), ("05" * 8, "other_weights"), (None, "epoch_not_evaluated")]
)
def test_the_checkpoint_of_each_epoch_is_evaluated_and_held_against_the_end_of_that_epoch(
    tmp_path, expect, of_first, code
):
    points = [
        {"epoch": 1, "checkpoint": "a.pt", "loss": 3.5, "num_tokens": 16, "range": part, "parameter_checksum": checksum}
        for part, checksum in (("0-8", of_first), ("8-16", "05" * 8))
        if checksum
    ]
    edit_json(tmp_path / "evaluation" / "evaluation.json", epochs={"2proc": points})
    assert expect(check_evaluated_weights, code).numbers.get("range", "0-8") == "0-8"
