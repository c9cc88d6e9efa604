"""What runs out of memory is done again with smaller micro-batches, the same on all ranks, at the same global batch."""

import contextlib
import dataclasses
import gc
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ddp_audit.process.redaction import redact_line
from tasks.process.failure import OutOfMemoryError, StageError
from tasks.ranks.cell_ranks import run_ranks
from training.config import TrainingConfig
from training.process.failure import is_out_of_memory

_log = logging.getLogger(__name__)

_MOST_HALVINGS = 3

Found = TypeVar("Found")


def run_within_memory(config: TrainingConfig, *, num_shares: int, **options: Any) -> None:
    """Run the ranks as `run_ranks` does; where one is out of memory all start again with half the micro-batch.

    They go on from the last checkpoint; see try_within_memory.
    """
    try_within_memory(config, lambda text: run_ranks(text, **options), num_shares=num_shares)


def try_within_memory(config: TrainingConfig, attempt: Callable[[TrainingConfig], Found], *, num_shares: int) -> Found:
    """Return what `attempt` gives for this config of ranks; where it is out of memory with half the micro-batch.

    A step's samples, tokens and learning rate stay what they were; its sum has other parts, so that weights differ by
    rounding, and each micro-batch its own masks of dropout. At most three times; OutOfMemoryError (exit code 4) after
    that, and at once in exact mode, whose bits depend on the micro-batch, and with batch normalisation. `num_shares`:
    into how many a step's samples are dealt.
    """
    for _ in range(_MOST_HALVINGS):
        try:
            return attempt(config)
        except OutOfMemoryError as error:
            config = _halve_micro_batch(config, error, num_shares=num_shares)
    return attempt(config)


@contextlib.contextmanager
def name_out_of_memory(what: str) -> Iterator[None]:
    """Have memory that is not there, in this process, become an OutOfMemoryError of one line, which names `what`."""
    reason = None
    try:
        yield
    except StageError:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = redact_line(str(error))[:300]
        # What was computed until then lives in the frames that the error names.
        traceback.clear_frames(error.__traceback__)
    if reason is not None:
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        raise OutOfMemoryError(f"{what}: out of memory: {reason}")


def _halve_micro_batch(config: TrainingConfig, error: OutOfMemoryError, *, num_shares: int) -> TrainingConfig:
    """Return the config with at most half the micro-batch; raises OutOfMemoryError where there is none."""
    size, per_rank = config.micro_batch_size, config.global_batch_size // num_shares
    if config.statistics_rows:
        raise OutOfMemoryError(
            f"{error}; with norm: sync_batch the weights depend on which {config.statistics_rows} rows are normalised "
            f"together, so that micro_batch_size={size} was not made smaller; set a smaller one in all cells"
        )
    if config.exact:
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
        error, half, size, -(-per_rank // half), config.global_batch_size,
    )  # fmt: skip
    return dataclasses.replace(config, micro_batch_size=half)
