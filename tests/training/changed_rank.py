"""A rank that is changed before it trains: `main` is what ForkedRanks runs."""

import sys
from pathlib import Path

from training.__main__ import main as train

BEFORE = "before.py"
"""In the work folder: what a rank runs first."""


def main() -> int:
    """Run that, then train; return the exit code."""
    exec((Path(sys.argv[-1]).parent / BEFORE).read_text(encoding="utf-8"), {})
    return train()
