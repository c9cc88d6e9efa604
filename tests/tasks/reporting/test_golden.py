"""What three reports say, word by word."""

import pytest

from tests.golden import REPORTS, render


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_says_what_stands_in_the_golden_files(name, tmp_path):
    for file, text in render(name, tmp_path):
        assert text == file.read_text(encoding="utf-8"), "reworded on purpose? make golden, and read what it changed"
