"""`python -m tests.phantom.true_arms FOLDER`: what `measure` has on two cards of Qwen2-0.5B, by its own code.

First the certificate's one process, as far as its second update; then, beside what is left of it, every arm of the
cells and a block of each. The model is made from its dimensions: a file of zeros that
takes no room. Writes what was allocated at most (GiB): by the one process, and of each arm by each of its ranks.
"""

import gc
import json
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tasks.equivalence.certificate import make_certificate_config
from tasks.equivalence.orders import make_rank_order
from tasks.equivalence.reference.update import OneProcess
from tasks.measuring.arms import Cell
from tasks.measuring.bench import Bench
from tasks.measuring.held import count_all_trained
from tasks.measuring.session import has_room
from tasks.measuring.timed_comparison import TimedComparison
from tasks.measuring.workers import open_workers
from tests.machines import make_machine
from tests.tiny import make_config
from tests.true_models import NUM_PARAMETERS, make_true_case, write_zeros
from training.config import TrainingConfig, parse_config

_MODEL = "Qwen2-0.5B"
_CELLS = {"1gpu": ("single", 1), "2gpu": ("ddp", 2)}


def main(folder: Path) -> None:
    """Write what was found to standard output."""
    case = make_true_case(folder, _MODEL, num_steps=1)
    model, slices = write_zeros(case.pop("model_dir"), case["workload"]), case.pop("slices")
    case |= {"precision": "fp16", "micro_batch_size": 4, "global_batch_size": 8}
    configs = {
        cell: parse_config(
            make_config(folder / cell, model, slices, **case, cell=cell, strategy=strategy, world_size=num)
        )
        for cell, (strategy, num) in _CELLS.items()
    }
    # Four micro-batches, so that it adds up those of each of two ranks.
    certified = make_certificate_config(replace(configs["2gpu"], global_batch_size=16))
    found = {"one process": _make_updates(certified)}
    json.dump(found | _build_arms(configs), sys.stdout)


def _make_updates(config: TrainingConfig) -> float:
    """Return the most that was allocated (GiB), of which nothing is left."""
    process = OneProcess(config)
    for number in (1, 2):
        found = process.gradient(number, make_rank_order(config))
        if number == 1:
            process.apply(found.by_order[-1], number)
        del found
    del process
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.max_memory_allocated() / 2**30


def _build_arms(configs: dict[str, TrainingConfig]) -> dict[str, Any]:
    comparison = TimedComparison(
        cells=[
            Cell(name=name, strategy=one.strategy, world_size=one.world_size, global_batch_size=one.global_batch_size)
            for name, one in configs.items()
        ],
        has_copy=True, is_weak=False, is_exact=False, half_width=0.1, max_seconds=1.0, waterfall_seconds=1.0,
        most_share=1.0, block_seconds=0.01, seed=1,
    )  # fmt: skip
    arms = [*comparison.arms, *comparison.counterfactuals]
    machine = make_machine(num_gpus=2, memory_gib=torch.cuda.get_device_properties(0).total_memory / 2**30)
    fits = partial(
        has_room, cells=comparison.cells, machine=machine, device="cuda", held=count_all_trained(NUM_PARAMETERS[_MODEL])
    )
    launchers = dict.fromkeys(configs, "torchrun")
    with open_workers(configs, launchers=launchers, stop=threading.Event()) as workers:
        bench = Bench(workers, seed=1, holds_all=fits(arms))
        allocated = {}
        for arm in arms:
            bench.run(arm, [1])
            allocated[arm.name] = [one["peak_memory_gib"] for one in bench.facts(arm)]
        return {"holds all": bench.holds_all, **allocated}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
