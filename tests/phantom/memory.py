"""`python -m tests.phantom.memory FOLDER MODEL JSON`: what a training of a true model holds of a card.

The model is made from its dimensions alone: its weights are zeros that take no memory of this machine. JSON changes
values of the config; `num_steps` in it has so many steps made instead of three.
"""

import contextlib
import json
import mmap
import sys
from pathlib import Path

import torch

from tests.gpu.steps import open_steps, read_told
from tests.phantom.true_models import make_true_case
from tests.tiny import make_config
from training.process.distributed import join_ranks
from training.workloads import find_workload

_NUM_STEPS = 3
_LARGE = 100_000


def main(folder, model, changes):
    """Warm up, train a few steps as the preset of its workload says, and write the memory (GiB) to standard output."""
    torch.cuda.memory._set_allocator_settings("expandable_segments:" + str(changes.pop("is_expandable", False)))
    asked = changes.pop("num_steps", None)
    case = make_true_case(folder, model, num_steps=asked or _NUM_STEPS + 1)
    told = make_config(folder / "work", case.pop("model_dir"), case.pop("slices"), **{**case, **changes})
    config = read_told(told, folder)
    with join_ranks(config) as ranks:
        trainer, plan, make = open_steps(config, ranks, _make_model(find_workload(config.workload), config))
        largest = plan.find_largest_step()
        trainer.warm_up(make(largest)[0].to(ranks.device))
        found = {"warm_up_gib": torch.cuda.max_memory_allocated() / 2**30}
        found["warm_up_reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
        torch.cuda.reset_peak_memory_stats()
        made = range(1, asked + 1) if asked else sorted({1, 2, largest}, key=lambda step: step == largest)
        for step in made:
            micro_batches = [part.to(ranks.device) for part in make(step)]
            trainer.train_step(micro_batches, num_targets=plan.step(step).num_targets, learning_rate=0.0)
        found |= {
            "allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
            "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
            "parameters": sum(part.numel() for part in trainer.replica.parameters),
        }
    json.dump(found, sys.stdout)


def _make_model(workload, config):
    with torch.device("meta"):
        model = workload.outline_model(config.model_dir)
    model.to_empty(device="cpu")
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    with torch.no_grad():
        for part in (*model.parameters(), *model.buffers()):
            if part.numel() < _LARGE:
                part.zero_()
            else:
                # Memory that this process has freed may hold something. In a private mapping, every page that is only
                # read is the kernel's one page of zeros; a huge one takes fewer faults, where the kernel has such.
                pages = mmap.mmap(-1, part.numel() * part.element_size(), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                with contextlib.suppress(OSError):
                    pages.madvise(mmap.MADV_HUGEPAGE)
                part.data = torch.frombuffer(pages, dtype=part.dtype).view(part.shape)
    return model


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
