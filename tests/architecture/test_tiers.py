"""What `make test` leaves out is there to be run by `make test-all`."""

import re

import pytest

from tests.tiers import LONG


@pytest.mark.parametrize("pattern", LONG)
def test_a_long_test_exists(pattern, project):
    file, _, name = pattern.partition("::")
    text = (project / "tests" / file).read_text(encoding="utf-8")
    assert f"def {re.split('[*[]', name)[0]}" in text
