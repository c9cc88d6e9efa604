"""What `make test` leaves out is there to be run by `make test-all`."""

from pathlib import Path

from tests.tiers import is_long


def test_a_pattern_is_of_a_whole_file_or_of_tests_by_name_and_parameters():
    assert is_long(Path("phantom/test_memory.py"), "test_anything[1]")
    assert is_long(Path("training/test_strategy_contract.py"), "test_any[ddp of 4]")
    assert not is_long(Path("training/test_strategy_contract.py"), "test_any[ddp]")
