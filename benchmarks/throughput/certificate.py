"""Two ranks on one device, over gloo, held against one process that makes the same updates by itself."""

import dataclasses
from pathlib import Path
from typing import Any

from benchmarks.ranks import run_to_end
from benchmarks.throughput.groups import Setup
from tasks.equivalence.updates import compare_with_one_process, judge
from training.config import read_config
from training.process.files import write_json

_STEPS = 3
_ROWS_PER_STEP = 16
_TIMEOUT = 540.0


def certify_two_ranks(setup: Setup, work: Path) -> dict[str, Any]:
    """Return how far updates of two ranks are from one process's, in fp32, beside the noise floor of re-ordered sums.

    Raises RuntimeError with the ranks' last words if they do not end well.
    """
    one = dataclasses.replace(
        setup, world_size=2, precision="fp32", global_batch_size=_ROWS_PER_STEP,
        slice_dir=_first_rows(setup.slice_dir, work / "rows"), num_rows=_STEPS * _ROWS_PER_STEP,
    )  # fmt: skip
    told = {**one.training(work), "oversubscribe": True, "micro_batch_size": 4}
    write_json(work / "config.json", told)
    run_to_end(
        work / "config.json", world_size=2, threads=setup.threads, arguments=["--keep-updates"], most_seconds=_TIMEOUT
    )
    config = read_config(work / "config.json")
    updates, problems = compare_with_one_process(config, on_update=_nothing)
    verdict, problem = judge(updates, problems)
    compared = {
        "gradient": [update.gradient for update in updates if update.gradient],
        "weights": [update.weights for update in updates if update.weights],
    }
    return {
        **{kind: max(part.found.relative_l2 for part in parts) for kind, parts in compared.items()},
        "noise_floor": {kind: max(part.noise_floor for part in parts) for kind, parts in compared.items()},
        "steps": len(updates),
        "device": setup.device,
        "passed": verdict == "passed",
        "problem": problem,
    }


def _first_rows(rows: Path, folder: Path) -> Path:
    """Write as many rows as the steps take, as a slice of their own."""
    from benchmarks.throughput.rows import write_rows
    from training.data.batches import open_slice

    source = open_slice(rows)
    return write_rows(folder, [source.row(index, 1 << 30) for index in range(_STEPS * _ROWS_PER_STEP)])


def _nothing() -> None:
    """Take no notice of a step."""
