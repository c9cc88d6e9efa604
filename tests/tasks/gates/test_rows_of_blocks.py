"""The timed rows have as many tokens as those of the training."""

from pathlib import Path
from typing import Any

from tasks.gates.rows_of_blocks import check_timed_rows
from tests.tasks.reporting.blocks import arm_blocks, write_blocks
from tests.tasks.reporting.comparison import outputs_of


def test_rows_of_the_whole_training_pass_and_longer_ones_fail(tmp_path: Path, params: dict[str, Any]) -> None:
    write_blocks(tmp_path)
    found = check_timed_rows(outputs_of(tmp_path, params), "2proc")
    assert found is not None
    assert found.verdict == "passed", found.compared
    write_blocks(tmp_path, arm_blocks("2proc", turn=None, num_tokens=36))
    found = check_timed_rows(outputs_of(tmp_path, params), "2proc")
    assert found is not None
    assert found.verdict == "failed"
    assert "14 % more, at most 10 % allowed" in found.compared


def test_without_a_measurement_it_says_nothing(tmp_path: Path, params: dict[str, Any]) -> None:
    assert check_timed_rows(outputs_of(tmp_path, params), "2proc") is None
