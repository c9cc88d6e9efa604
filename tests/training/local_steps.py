"""What a rank of local SGD does for its tests: some steps by hand, and what every rank holds after each of them."""

import sys
from pathlib import Path
from typing import Any

import torch

from training.config import read_config
from training.data.plan import make_micro_batches, make_segment_plan
from training.model.weights import compute_parameter_checksum
from training.process.distributed import join_ranks
from training.process.files import write_json
from training.strategies import find_strategy
from training.workloads import find_workload, open_training_rows

NUM_STEPS = 5
LEARNING_RATE = 1e-3


def main() -> int:
    """Make the steps and end the segment; rank 0 writes told.json and weights.pt."""
    config = read_config(Path(sys.argv[-1]))
    torch.set_num_threads(1)
    with join_ranks(config) as ranks:
        workload = find_workload(config.workload)
        strategy = find_strategy(config.strategy).build(workload.load_model(config.model_dir), workload, config, ranks)
        source = open_training_rows(workload, config, config.segments[0])
        plan = make_segment_plan(source, config, config.segments[0])

        def micro_batches(number: int) -> list[Any]:
            share = {"rank": ranks.rank, "world_size": ranks.world_size}
            return list(
                make_micro_batches(source, plan.step(number), **share, seq_len=config.seq_len, seed=(1, number))
            )

        told: dict[str, Any] = {"held": [], "traffic": [], "models": [], "heldout": []}
        strategy.warm_up(micro_batches(1)[-1])
        for number in range(1, NUM_STEPS + 1):
            result = strategy.train_step(
                micro_batches(number), num_targets=plan.step(number).num_targets, learning_rate=LEARNING_RATE
            )
            result = strategy.end_step(result, ends_segment=number == NUM_STEPS)
            told["held"].append(ranks.gather_text(compute_parameter_checksum(strategy.module)))
            told["traffic"].append(dict(result.traffic))
            told["models"].append(strategy.digest().parameters)
            told["heldout"].append(ranks.gather_json(float(strategy.sum_losses(micro_batches(1)))))
        if ranks.is_first:
            write_json(config.work_dir / "told.json", told)
            torch.save(strategy.module.state_dict(), config.work_dir / "weights.pt")
    return 0
