"""Renew the golden numbers: `python -m tests.training.golden`."""

import sys
import tempfile
from pathlib import Path

from tests.training.forked_ranks import ForkedRanks
from tests.training.golden.trainings import FILE, find_moved, list_trainings, read_golden, train
from training.numerics import NUMERICS_VERSION
from training.process.files import write_json


def main():
    """Write golden.json, unless numbers moved while the version stayed; ends with that line then."""
    before = read_golden()
    numbers, ranks = {}, ForkedRanks()
    try:
        for name in list_trainings():
            with tempfile.TemporaryDirectory() as folder:
                numbers[name] = train(name, Path(folder), ranks)
            is_known = before["numerics_version"] == NUMERICS_VERSION and name in before["numbers"]
            if is_known and (moved := find_moved(name, numbers[name], before)) is not None:
                sys.exit(moved)
    finally:
        ranks.close()
    write_json(FILE, {"numerics_version": NUMERICS_VERSION, "numbers": numbers})


if __name__ == "__main__":
    main()
