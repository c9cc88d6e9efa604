"""`python -m tests.phantom.shapes FOLDER JSON`: steps of packed rows on one card, and what each asked of it.

JSON: changes of the config. Writes, step by step, kernels, waits of the host and reserved bytes; and how many graphs
were compiled, if any.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo.utils

from tests.gpu.steps import read_told
from tests.phantom.counts import read_counts
from tests.tiny import make_config, make_slice, make_tiny_model
from training.data.plan import make_micro_batches, make_segment_plan
from training.process.distributed import join_ranks
from training.step.strategy import find_strategy
from training.workloads import find_workload


def main(folder: Path, counts: Path, changes: dict[str, Any]) -> None:
    """Warm up and run a segment, all steps on one rank."""
    rows = make_slice(folder / "slice", num_rows=60, min_len=8, max_len=60)
    told = make_config(
        folder / "work", make_tiny_model(folder / "model"), [rows], device="cuda", precision="bf16",
        micro_batch_size=4, seq_len=64, **changes,
    )  # fmt: skip
    config = read_told(told, folder)
    workload, steps = find_workload(config.workload), []
    with join_ranks(config) as ranks:
        trainer = find_strategy(config.strategy).build(workload.load_model(config.model_dir), workload, config, ranks)
        source = workload.open_slice(config.segments[0].slice_dir)
        plan = make_segment_plan(source, config, config.segments[0])
        for number in range(plan.num_steps + 1):
            step = plan.step(number or plan.find_largest_step())
            parts = make_micro_batches(source, step, rank=0, world_size=1, seq_len=64, seed=(1, number))
            micro_batches = [part.to(ranks.device) for part in parts]
            (before,) = (one for one in read_counts(counts) if one.pid == os.getpid())
            if number:
                trainer.train_step(micro_batches, num_targets=step.num_targets, learning_rate=1e-3)
            else:
                trainer.warm_up(micro_batches[-1])
            (after,) = (one for one in read_counts(counts) if one.pid == os.getpid())
            steps.append(
                {
                    "kernels": after.launches - before.launches,
                    "waits": after.waits - before.waits,
                    "micro_batches": len(micro_batches),
                    "reserved_bytes": torch.cuda.memory_reserved(),
                    "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
                }
            )
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        json.dump({"warm_up": steps[0], "steps": steps[1:], "graphs": graphs}, sys.stdout)
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
