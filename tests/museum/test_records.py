"""What a defect leaves in the records has the gate fail that is meant for it: no training is needed to see that."""

from pathlib import Path
from typing import Any

import pytest

from tasks.gates.checks import check_gates, compute_standings
from tests.museum.exhibits import EXHIBITS
from tests.museum.records import CELLS, RECORDS
from tests.tasks.reporting.comparison import outputs_of, write_comparison

CAUGHT_BY = {part.key: part.caught_by for part in EXHIBITS}


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    """What params.yaml holds; the comparison's files are in tmp_path."""
    return write_comparison(tmp_path)


@pytest.mark.parametrize("key", RECORDS)
def test_a_changed_record_fails_the_gate_that_the_defect_fails(
    tmp_path: Path, params: dict[str, Any], key: str
) -> None:  # fmt: skip
    RECORDS[key](tmp_path, params)
    gates = check_gates(outputs_of(tmp_path, params))
    assert CAUGHT_BY[key] in [gate.name for gate in gates if gate.verdict == "failed"]
    assert compute_standings(gates, CELLS)["2proc"].state == "withheld"
