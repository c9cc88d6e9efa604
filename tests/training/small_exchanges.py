"""A rank of fsdp2 that gathers few tensors at once, as one of a large model does: several exchanges for each state."""

from training import __main__ as rank
from training.strategies.fsdp2 import shards


def main() -> int:
    """Train as a rank does."""
    shards._TOGETHER_BYTES = 6000
    return rank.main()
