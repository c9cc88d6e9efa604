"""Held-out rows are none that was learned from, and what was evaluated is what was trained."""

import pytest

from tasks.gates.heldout import check_evaluated_weights, check_heldout_rows
from tests.tasks.reporting.comparison import edit_json


@pytest.mark.parametrize(("num_seen", "code"), [(1, "passed"), (2, "heldout_rows_repeated")])
def test_held_out_rows_of_other_numbers_that_repeat_what_is_trained_on_are_not_held_out(
    tmp_path, expect, num_seen, code
):
    edit_json(tmp_path / "raw" / "manifest.json", num_heldout_rows_seen=num_seen)
    expect(check_heldout_rows, code)


@pytest.mark.parametrize(
    ("changes", "code"),
    [({}, "passed"), ({"rows_digest": "ab" * 32}, "other_heldout_rows"), ({"num_tokens": 15}, "other_tokens")],
)
def test_models_that_were_evaluated_on_other_rows_than_are_held_out_fail(tmp_path, expect, changes, code, read):
    digest = read().slices["16-20"].manifest.digest
    models = read().evaluation.model_dump(mode="json")["models"]
    # One of them, or all alike.
    for names in (["2proc"], ["base"], [*models]):
        right = {name: one | {"rows_digest": digest} for name, one in models.items()}
        edited = right | {name: right[name] | changes for name in names}
        edit_json(tmp_path / "evaluation" / "evaluation.json", models=edited)
        assert expect(check_evaluated_weights, code).numbers.get("model", names[0]) in names


def test_held_out_rows_that_were_cut_at_another_length_fail(tmp_path, expect):
    edit_json(tmp_path / "evaluation" / "evaluation.json", seq_len=64)
    expect(check_evaluated_weights, "other_seq_len")


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
