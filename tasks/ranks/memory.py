"""Ranks that run out of memory go on with smaller micro-batches, all alike and at the same global batch."""

import logging
from typing import Any

from tasks.process.failure import OutOfMemoryError
from tasks.ranks.cell_ranks import run_ranks

_log = logging.getLogger(__name__)

_MOST_HALVINGS = 3


def run_within_memory(config: dict[str, Any], **options: Any) -> None:
    """Run the ranks as `run_ranks` does; where one is out of memory all start again with half the micro-batch.

    They go on from the last checkpoint. The step's samples, tokens and learning rate stay what they were; its sum has
    other parts, so that the weights differ by rounding. At most three times; OutOfMemoryError (exit code 4) after that,
    and at once in exact mode, whose bits depend on the micro-batch.
    """
    for _ in range(_MOST_HALVINGS):
        try:
            return run_ranks(config, **options)
        except OutOfMemoryError as error:
            config = _halve_micro_batch(config, error)
    return run_ranks(config, **options)


def _halve_micro_batch(config: dict[str, Any], error: OutOfMemoryError) -> dict[str, Any]:
    """Return the config with at most half the micro-batch; raises OutOfMemoryError where there is none."""
    size, per_rank = config["micro_batch_size"], config["global_batch_size"] // config["world_size"]
    if config["exact"]:
        raise OutOfMemoryError(
            f"{error}; with exact: true the weights depend on micro_batch_size={size} to the bit, so that it was not "
            "made smaller; set a smaller one"
        )
    half = next((part for part in range(size // 2, 0, -1) if per_rank % part == 0), None)
    if half is None:
        raise OutOfMemoryError(f"{error}; micro_batch_size={size} cannot be made smaller; use a smaller seq_len")
    _log.warning(
        "%s; all ranks go on from the last checkpoint with micro_batch_size %d instead of %d and %d of them in a step; "
        "global_batch_size stays %d",
        error, half, size, -(-per_rank // half), config["global_batch_size"],
    )  # fmt: skip
    return {**config, "micro_batch_size": half}
