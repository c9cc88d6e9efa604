"""What a defect leaves in the records has the gate fail that is meant for it: no training is needed to see that."""

import pytest

from tasks.gates.checks import compute_standings
from tests.museum.records import CELLS, RECORDS, judge, list_codes

_LATE = (
    "raw module, trainer's check removed", "no no_sync", "zero1: shares clipped one by one", "dropped samples",
    "another order per cell",
)  # fmt: skip
"""Tried from the last step on as well: a gate for each kind of record."""


@pytest.mark.parametrize(
    ("gate", "key", "first"),
    [
        (gate, key, first)
        for gate, keys in RECORDS.items()
        for key in keys
        for first in ((1, 4) if key in _LATE else (1,))
    ],
)
def test_a_changed_record_fails_the_gate_that_the_defect_fails(tmp_path, gate, key, first):
    gates = judge(tmp_path, gate, key, first)
    assert list_codes(gates, gate)
    assert compute_standings(gates, CELLS)["2proc"].state == "withheld"
