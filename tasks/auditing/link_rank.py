"""What the link between ranks can do by itself: `python -m tasks.auditing.link_rank` as every rank, for an audit."""

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from training.probing.sweep import sweep_exchange
from training.process.distributed import join_ranks
from training.process.files import write_json

_REPEATS = 30
_SECONDS = 5.0


def main() -> None:
    """Time all-reduces of the sizes asked for, with nothing beside them; rank 0 writes the sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--bytes", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    # All that joining asks of a whole config.
    config: Any = SimpleNamespace(world_size=asked.ranks, device=asked.device, oversubscribe=False)
    with join_ranks(config) as ranks:
        swept = sweep_exchange(ranks, sizes=asked.bytes, num_repeats=_REPEATS, seconds_budget=_SECONDS)
        if ranks.is_first:
            write_json(asked.out, swept)


if __name__ == "__main__":
    main()
