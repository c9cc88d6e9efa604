"""What a defect leaves in the records has the gate fail that is meant for it: no training is needed to see that."""

from pathlib import Path

import pytest

from tasks.gates.checks import compute_standings
from tests.museum.exhibits import EXHIBITS
from tests.museum.records import CELLS, NUM_STEPS, RECORDS, judge, list_codes

OF_KEY = {part.key: part for part in EXHIBITS}
EDITIONS = [
    (key, first) for key in RECORDS for first in range(1, NUM_STEPS + 1) if first == 1 or OF_KEY[key].begins_anywhere
]


@pytest.mark.parametrize(("key", "first"), EDITIONS)
def test_a_changed_record_fails_the_gate_that_the_defect_fails(tmp_path: Path, key: str, first: int) -> None:
    gates, exhibit = judge(tmp_path, key, first), OF_KEY[key]
    assert list_codes(gates, exhibit.caught_by if first == 1 else exhibit.late_caught_by)
    assert compute_standings(gates, CELLS)["2proc"].state == "withheld"
