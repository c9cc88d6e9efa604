"""The gate on updates that were computed a second time, and what the report shows of them."""

import pytest

from tasks.gates.equivalence import check_update_equivalence, compute_probability
from tests.tasks.reporting.comparison import edit_json, edit_segment, make_checked_update, write_updates
from tests.tasks.reporting.measured import arm, measurement, write_measurement

SKIPPED = {"compared": {"loss": {"difference": 0.0, "noise_floor": 0.0, "tolerance": 1e-3}}}
"""What is known of a step that the loss scale of fp16 skipped."""


def test_right_updates_pass_with_their_number_and_what_they_would_have_seen(params, expect, collect):
    wanted = {"checked": 4, "drawn": 4, "steps": 4, "probability": 1.0, "weights_difference": 3e-7}
    for cell in params["cells"]:
        expect(check_update_equivalence, "passed", cell, **wanted)
    assert compute_probability(12) == pytest.approx(0.968, abs=1e-3)
    shown = collect().equivalence
    assert [(one.cell, one.compared, one.num_checked) for one in shown] == [
        (cell, kind, 4) for cell in ("1proc", "2proc") for kind in ("gradient", "weights")
    ]


def test_updates_that_are_checked_always_tell_nothing_of_the_others(tmp_path, expect):
    def put(part, *updates, **more):
        edit_segment(tmp_path, "2proc", part, checked_updates=updates, **more)

    # Of 100 steps the first four are checked, three of which by chance, and the last one.
    first, second, *others, last = (make_checked_update(step) for step in (1, 2, 3, 4, 100))
    put("0-8", first, second, num_steps=50, last_step=50)
    put("8-16", *others, last, num_steps=50, last_step=100)
    expect(check_update_equivalence, "passed", probability=1 - 0.75**3)
    put("0-8", first | SKIPPED, second)
    expect(check_update_equivalence, "passed", checked=4, drawn=4, skipped=1, probability=1 - 0.75**2)
    for changes, code in (
        ({"verdict": "not checked", "problem": "noise hides its weights"}, "passed"),
        ({"verdict": "not checked", "problem": "no disk", "compared": {}}, "last_not_checked"),
        ({"step": 99}, "last_not_checked"),
        (SKIPPED, "last_not_checked"),
    ):
        put("8-16", *others, last | changes)
        expect(check_update_equivalence, code, outcome="not checked")
    put("8-16", *others, last)
    for by_chance in ([], [second | SKIPPED]):
        put("0-8", first, *by_chance)
        expect(check_update_equivalence, "no_update_checked", outcome="not checked")


def test_figures_outrank_their_own_verdict(tmp_path, expect):
    off = {"gradient": {"difference": 5e-8, "noise_floor": 1e-9, "tolerance": 1e-9, "largest_in": None}}
    write_updates(tmp_path, "2proc", compared=off)
    expect(check_update_equivalence, "update_differs", wrong=4)


def test_what_is_timed_on_other_steps_than_trained_is_checked_on_those_as_well(tmp_path, expect):
    timed = measurement(arm("1proc", 1), arm("2proc", 2, global_batch_size=8), scaling="weak")
    write_measurement(tmp_path, timed)
    expect(check_update_equivalence, "batch_not_checked", outcome="not checked", batch=8)
    for verdict, code in (("passed", "passed"), ("failed", "update_differs")):
        checked = [make_checked_update(1, verdict=verdict, problem=verdict)]
        edit_json(tmp_path / "measurements" / "speed.json", checked_updates={"2proc": checked})
        expect(check_update_equivalence, code)
    edit_json(tmp_path / "measurements" / "speed.json", checked_updates={"2proc": [make_checked_update(1) | SKIPPED]})
    expect(check_update_equivalence, "batch_not_checked", outcome="not checked")
