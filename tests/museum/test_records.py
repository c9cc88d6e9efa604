"""What a defect leaves in the records has the gate fail that is meant for it: no training is needed to see that."""

import pytest

from tasks.gates.checks import compute_standings
from tests.museum.exhibits import BY_KEY, EXHIBITS
from tests.museum.records import CELLS, RECORDS, judge, list_codes

_LATE = (
    "raw module, trainer's check removed", "no no_sync", "zero1: shares clipped one by one", "dropped samples",
    "another order per cell",
)  # fmt: skip
"""Tried from the last step on as well: a gate for each kind of record."""


def test_the_page_has_every_exhibit_at_its_gate(project):
    text = (project / "docs" / "museum.md").read_text()
    for gate, keys in RECORDS.items():
        shown = "; ".join(f"**{key}**" if key in BY_KEY else key for key in keys)
        assert f"| {gate} | {shown} |" in text
    for exhibit in EXHIBITS:
        stage, _, words = exhibit.caught_by.partition(": ")
        assert not words or f"| `{stage}` refuses: “{words}” | **{exhibit.key}** |" in text


@pytest.mark.parametrize(
    ("gate", "key", "first"),
    [
        (gate, key, first)
        for gate, keys in RECORDS.items()
        for key in keys
        for first in (1, 4)
        if first == 1 or key in _LATE
    ],
)
def test_a_changed_record_fails_the_gate_that_the_defect_fails(tmp_path, gate, key, first):
    gates = judge(tmp_path, gate, key, first)
    assert list_codes(gates, gate)
    assert compute_standings(gates, CELLS)["2proc"].state == "withheld"
