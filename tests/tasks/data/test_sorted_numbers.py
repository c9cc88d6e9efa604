"""Sorted numbers: none lost, none made up, equal ones together, little memory; nothing is left on the disk."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.data.sources import sorted_numbers
from tasks.data.sources.sorted_numbers import SortedNumbers, read_windows

few = st.integers(-4, 4) | st.sampled_from([-(2**63), 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)


@given(every=st.lists(st.lists(few, max_size=60), min_size=1, max_size=3), chunk=st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_windows_hold_all_numbers_in_order_and_the_same_span_of_each(every: list[list[int]], chunk: int) -> None:
    with patch.multiple(sorted_numbers, _RUN=8, _MARK_EVERY=2, _WINDOW=4):
        many = [SortedNumbers() for _ in every]
        for numbers, one in zip(every, many, strict=True):
            for first in range(0, len(numbers), chunk):
                one.extend(np.array(numbers[first : first + chunk]))
        found = list(read_windows(*many))
        again = list(read_windows(*many))
        assert [len(one) for one in many] == [len(numbers) for numbers in every]
    for index, numbers in enumerate(every):
        assert [int(number) for window in found for number in window[index]] == sorted(numbers)
        assert [int(number) for window in again for number in window[index]] == sorted(numbers)
    spans = [(min(both), max(both)) for window in found if (both := [*map(int, np.concatenate(window))])]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans))


def test_numbers_wait_in_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opened = len(os.listdir("/proc/self/fd"))
    numbers = SortedNumbers()
    for number in range(100_000, 0, -1):
        numbers.add(number)
    assert len(os.listdir("/proc/self/fd")) == opened + 1
    assert list((tmp_path / ".work").iterdir()) == []
    assert np.concatenate([window for (window,) in read_windows(numbers)]).tolist() == list(range(1, 100_001))
    del numbers
    assert len(os.listdir("/proc/self/fd")) == opened


_FULL = """
import resource, signal
import numpy as np
from tasks.process.failure import ResourceError
from tasks.data.sources.sorted_numbers import SortedNumbers
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))
try:
    SortedNumbers([np.arange(1_000_000)])
except ResourceError as error:
    print(int(error.exit_code), error)
"""


def test_a_full_disk_is_said_in_one_line_and_nothing_is_written_later(project: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(project)}
    command = [sys.executable, "-c", _FULL]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"4 {tmp_path}/.work: File too large; {done.stdout.partition('; ')[2]}"
    assert "make room" in done.stdout
    assert done.stderr == ""
