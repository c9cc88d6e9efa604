"""What a defect leaves in the records has the gate fail that is meant for it: no training is needed to see that."""

from pathlib import Path

import pytest

from tasks.gates.checks import compute_standings
from tests.museum.exhibits import EXHIBITS
from tests.museum.records import CELLS, RECORDS, judge, list_codes

CAUGHT_BY = {part.key: part.caught_by for part in EXHIBITS}


@pytest.mark.parametrize("key", RECORDS)
def test_a_changed_record_fails_the_gate_that_the_defect_fails(tmp_path: Path, key: str) -> None:
    gates = judge(tmp_path, key)
    assert list_codes(gates, CAUGHT_BY[key])
    assert compute_standings(gates, CELLS)["2proc"].state == "withheld"
