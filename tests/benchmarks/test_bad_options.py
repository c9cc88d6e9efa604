"""Benchmarks that are asked for what cannot be measured say so in one line, before anything is."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("observer --widths 16 18", "--widths [16, 18]; allowed: multiples of 4"),
        ("throughput --data nowhere", "nowhere: no arxiv_abstracts.parquet; allowed: a folder with it"),
    ],
)
def test_a_benchmark_says_in_one_line_what_it_cannot_do(project: Path, words: str, says: str) -> None:
    name, *options = words.split()
    command = [sys.executable, "-m", f"benchmarks.{name}", *options]
    ended = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert says in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr
