"""Wrong trainers, trained, are caught by the gate that is meant for them, and right ones pass every gate.

One for each gate and each refusal of the trainer's, several at once where each leaves the others' gates alone. What
other defects leave in the records is judged in test_records.py. What seconds tell from a right one is tried alone.
"""

import functools

import pytest

from tasks.records.gate import Gate
from tests.museum.exhibits import BY_KEY, EXHIBITS
from tests.museum.museum import ABOUT_DEVICES, ABOUT_SECONDS, MEASURE, Museum, compare
from tests.museum.project import CELLS, Size, change_params, make_project
from tests.museum.records import RECORDS, judge, list_codes
from tests.museum.stage_process import run_elsewhere

pytestmark = pytest.mark.slow

_TOGETHER = (
    ("raw module, trainer's check removed", "different global batch per cell"),
    ("no no_sync", "another order per cell", "different start weights per cell"),
    ("rows not shuffled in every cell", "trained on the held-out rows"),
    ("labels from the wrong column in every cell", "another model evaluated"),
)
_SINGLE = [(part.key,) for part in EXHIBITS if not any(part.key in keys for keys in _TOGETHER)]
_WEAK = MEASURE | {
    "max_seconds": 4, "block_seconds": 0.12, "waterfall_seconds": 1, "memory": True, "scaling": "weak",
}  # fmt: skip
_RIGHT = {
    # 47 rows are one batch of 30 and one of 17: most ranks run dummies in its last round.
    "five ranks and partial batches": (
        5, Size(num_rows=(47, 29), train={"global_batch_size": 30, "micro_batch_size": 1}),
    ),
    "weak scaling, timed": (2, Size(num_rows=(61, 29), measure=_WEAK)),
}  # fmt: skip
_OWED = (
    "Update equivalence", "Gradients were synchronised", "Same parameters on all ranks", "Every sample exactly once",
    "Loss curves coincide",
)  # fmt: skip


def _is_timed(keys):
    return BY_KEY[keys[0]].caught_by in ABOUT_SECONDS


@pytest.fixture(scope="module")
def museum(tmp_path_factory, project):
    """Return the comparison without a defect, run once, or until its times were undisturbed; exhibits are beside it."""
    return functools.cache(lambda is_timed: Museum(tmp_path_factory.mktemp("museum"), project, is_timed=is_timed))


def assert_is_caught(outcome, key, folder):
    """Fail unless the gate that is meant for the exhibit caught it, and no speedup was printed.

    The changed record that stands for the exhibit has to fail that gate for the same reason.
    """
    gate = BY_KEY[key].caught_by
    assert outcome.is_caught_by(gate), outcome.says
    if outcome.refusal is None:
        assert outcome.results["cells"][-1]["standing"]["state"] == "withheld"
        assert [cell["speedup"] for cell in outcome.results["cells"]] == [None, None]
        codes = list_codes([Gate.model_validate(gate) for gate in outcome.results["gates"]], gate)
        assert codes & list_codes(judge(folder, gate, key), gate), codes


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(keys, id=" + ".join(keys), marks=[pytest.mark.alone] * _is_timed(keys))
        for keys in (*_TOGETHER, *_SINGLE)
    ],
)
def test_the_defect_is_caught_by_the_named_gate_and_no_speedup_is_printed(museum, keys, tmp_path):
    exhibits = [BY_KEY[key] for key in keys]
    outcome = museum(_is_timed(keys)).show(*exhibits)
    caught_by = exhibits[0].caught_by
    if _is_timed(keys) and exhibits[0].scenario == "timed" and outcome.verdicts.get(caught_by) == "not checked":
        pytest.skip(f"the machine was too busy for “{caught_by}” to tell: {outcome.says}")
    for key in keys:
        assert_is_caught(outcome, key, tmp_path / key)


def _require_right(outcome, *gates):
    """Fail unless these gates, and those that several ranks owe, passed of the last cell, and none failed."""
    assert outcome.refusal is None, outcome.says
    assert set(outcome.failed_gates) <= {ABOUT_DEVICES, *ABOUT_SECONDS}, outcome.says
    findings = {gate["name"]: gate["findings"] for gate in outcome.results["gates"]}
    for name in (*_OWED, *gates):
        assert [one["outcome"] for one in findings[name] if one["cell"] == CELLS[-1]] == ["passed"], name


def test_the_comparison_without_a_defect_passes(museum):
    _require_right(museum(False).clean)


@pytest.mark.parametrize(("world_size", "size"), _RIGHT.values(), ids=_RIGHT)
def test_a_right_comparison_passes_and_each_update_is_one_processs(tmp_path, project, world_size, size):
    run_elsewhere(make_project, tmp_path, project, size)
    change_params(tmp_path, {"cells.2proc.world_size": world_size})
    _require_right(compare(tmp_path), *["Timed blocks did the work"] * bool(size.measure))


@pytest.mark.alone
def test_the_comparison_without_a_defect_raises_no_alarm_timed_or_not(museum):
    for outcome in (museum(True).clean, museum(True).show_timed()):
        assert outcome.refusal is None, outcome.says
        assert outcome.failed_gates == [], outcome.says
    assert outcome.results["cells"][1]["speedup"] is not None


def test_every_gate_with_a_record_has_an_exhibit_that_is_trained():
    assert {exhibit.caught_by for exhibit in EXHIBITS if ": " not in exhibit.caught_by} == RECORDS.keys()
