"""What `make test` leaves out is there to be run by `make test-all`."""

import re
from pathlib import Path

import pytest

from tests.tiers import LONG, is_long


@pytest.mark.parametrize("pattern", LONG)
def test_a_long_test_exists(pattern, project):
    file, _, name = pattern.partition("::")
    text = (project / "tests" / file).read_text(encoding="utf-8")
    assert f"def {re.split('[*[]', name)[0]}" in text


def test_a_pattern_is_of_a_whole_file_or_of_tests_by_name_and_parameters():
    assert is_long(Path("phantom/test_memory.py"), "test_anything[1]")
    assert is_long(Path("training/test_strategy_contract.py"), "test_any[ddp of 4]")
    assert not is_long(Path("training/test_strategy_contract.py"), "test_any[ddp]")
