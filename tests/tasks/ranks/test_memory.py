"""What runs out of memory is tried with smaller micro-batches, and what is left over is one line."""

import dataclasses
import weakref
from pathlib import Path

import pytest
import torch

from tasks.process.failure import ConfigurationError, OutOfMemoryError
from tasks.ranks.memory import name_out_of_memory, try_within_memory
from tests.tiny import make_config
from training.config import parse_config
from training.strategies import count_shares

TOLD = make_config(Path(), Path(), [], micro_batch_size=12, global_batch_size=24, world_size=2, strategy="ddp")
SEGMENT = {"range": "0-24", "epoch": 1, "slice_dir": "slice", "fingerprint": "tested"} | {
    "schedule_begin": 0,
    "schedule_total": 0,
}
CONFIG = parse_config({**TOLD, "segments": [SEGMENT]})


def _try(room, **changes):
    """Return with how many samples it went, and with how many it was tried, where memory has room for so many."""
    tried = []

    def attempt(config):
        tried.append(config.micro_batch_size)
        if tried[-1] > room:
            with name_out_of_memory("a training"):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.32 GiB")
        return tried[-1]

    config = dataclasses.replace(CONFIG, **changes)
    num_shares = count_shares(config.strategy, config.world_size, config.options)
    return try_within_memory(config, attempt, num_shares=num_shares), tried


def test_micro_batches_are_halved_until_they_fit():
    assert _try(12) == (12, [12])
    assert _try(5) == (3, [12, 6, 3])
    with pytest.raises(OutOfMemoryError, match=r"^a training: out of memory: CUDA out of memory\. Tried .* 2.32 GiB"):
        _try(0)


def test_ranks_that_see_the_same_rows_halve_within_what_all_of_them_have():
    # At most half of 8 that divides what a rank has of a step: 20 for each of two stages, 10 for each of two shares.
    changes = {"global_batch_size": 20, "micro_batch_size": 8}
    assert _try(4, **changes, strategy="pipeline") == (4, [8, 4])
    assert _try(4, **changes) == (2, [8, 2])


def test_in_exact_mode_they_are_not():
    with pytest.raises(OutOfMemoryError, match="with exact: true the weights depend on micro_batch_size=12"):
        _try(5, exact=True)


def test_what_is_no_lack_of_memory_stays_what_it_is():
    with pytest.raises(RuntimeError, match="device-side assert"), name_out_of_memory("a training"):
        raise RuntimeError("CUDA error: device-side assert triggered")
    with pytest.raises(ConfigurationError, match="a rank's own out of memory"), name_out_of_memory("a training"):
        raise ConfigurationError("a rank's own out of memory")


def test_what_was_computed_until_then_is_free_when_it_is_tried_again():
    left = []

    def compute():
        gradient = torch.zeros(1000)
        left.append(weakref.ref(gradient))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def attempt(_):
        if len(left) == 2:
            return all(gradient() is None for gradient in left)
        with name_out_of_memory("a training"):
            compute()
        return False

    assert try_within_memory(CONFIG, attempt, num_shares=2)
