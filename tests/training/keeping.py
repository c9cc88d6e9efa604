"""Ranks that keep what each update begins with: `main` is what ForkedRanks runs."""

import sys

from training import __main__ as rank


def main() -> int:
    """Train, and keep the updates."""
    sys.argv.append("--keep-updates")
    return rank.main()
