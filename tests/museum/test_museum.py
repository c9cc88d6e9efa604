"""Wrong trainers, trained, are caught by the gate that is meant for them; those that seconds tell: test_times.py.

One for each gate and each refusal of the trainer's, several at once where each leaves the others' gates alone. What
other defects leave in the records is judged in test_records.py.
"""

import pytest

from tasks.records.gate import Gate
from tests.museum.exhibits import BY_KEY, EXHIBITS
from tests.museum.museum import ABOUT_SECONDS, Museum
from tests.museum.records import RECORDS, judge, list_codes

pytestmark = pytest.mark.slow

_TOGETHER = (
    ("raw module, trainer's check removed", "different global batch per cell"),
    ("no no_sync", "another order per cell", "different start weights per cell"),
    ("rows not shuffled in every cell", "trained on the held-out rows"),
    ("labels from the wrong column in every cell", "another model evaluated"),
)
_SINGLE = {part.key for part in EXHIBITS if part.caught_by not in ABOUT_SECONDS}
_SINGLE -= {key for keys in _TOGETHER for key in keys}


@pytest.fixture(scope="module")
def museum(tmp_path_factory, project):
    """The comparison without a defect, run once, and the exhibits beside it."""
    return Museum(tmp_path_factory.mktemp("museum"), project, is_timed=False)


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
    "keys", [*_TOGETHER, *((part.key,) for part in EXHIBITS if part.key in _SINGLE)], ids=" + ".join
)
def test_the_defect_is_caught_by_the_named_gate_and_no_speedup_is_printed(museum, keys, tmp_path):
    outcome = museum.show(*(BY_KEY[key] for key in keys))
    for key in keys:
        assert_is_caught(outcome, key, tmp_path / key)


def test_every_gate_with_a_record_has_an_exhibit_that_is_trained():
    assert {exhibit.caught_by for exhibit in EXHIBITS if ": " not in exhibit.caught_by} == RECORDS.keys()
