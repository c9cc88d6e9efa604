"""What transformers.Trainer and accelerate are fed with: lists of tokens, an order of them, a collator."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from benchmarks.throughput.job import AS_GIVEN, BY_LENGTH, Job, padded
from training.workloads.causal_lm import load_model

_LENGTH_MULTIPLE = 8


class Rows(Dataset[dict[str, Any]]):
    """The rows as lists of tokens, all made before any clock starts."""

    def __init__(self, job: Job) -> None:
        self._rows = [job.tokens(index).tolist() for index in range(len(job.source))]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self._rows[index]}


def pad_to_longest(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a micro-batch as long as its longest row, up to a multiple of 8."""
    tokens = [np.asarray(row["input_ids"]) for row in rows]
    return padded(tokens, length=max(len(row) for row in tokens), multiple_of=_LENGTH_MULTIPLE)


def collators() -> dict[str, Callable[[Sequence[dict[str, Any]]], dict[str, Any]]]:
    """Return the collators by name: padding to the longest row, or all rows in one without padding."""
    from transformers import DataCollatorWithFlattening

    return {"padding": pad_to_longest, "flattening": DataCollatorWithFlattening()}


def feeding_settings(job: Job) -> list[dict[str, Any]]:
    """Return collator, order and micro-batch sizes worth trying."""
    ways = [("padding", BY_LENGTH), ("flattening", AS_GIVEN)]
    if job.training.world_size > 1:
        # Nothing is padded, but processes that are dealt rows of like length wait less for each other.
        ways.append(("flattening", BY_LENGTH))
    return [
        {"collator": collator, "order": order, "micro_batch_size": size}
        for collator, order in ways
        for size in job.micro_batch_sizes
    ]


def loaded_model(job: Job, setting: Mapping[str, Any]) -> Any:
    """Return the model, compiled at its first call if the setting says so.

    In place: what Trainer and accelerate do themselves is settled for all settings of a process by the first of them.
    """
    model = load_model(job.training.model_dir)
    if setting.get("compile"):
        model.compile()
    return model


def rows_in_order(job: Job, setting: Mapping[str, Any], *, first_block: int) -> list[int]:
    """Return all rows in the order of the setting, from the block on that is run first."""
    return job.sequence(by_length=setting["order"] == BY_LENGTH, first_block=first_block)
