"""Ranks whose batch normalisation is over each rank's own rows: a defect. `main` is what ForkedRanks runs."""

from training import __main__ as rank
from training.strategies.ddp import step as ddp


def main():
    """Train so."""
    ddp.share_statistics = lambda *_, **__: None
    return rank.main()
