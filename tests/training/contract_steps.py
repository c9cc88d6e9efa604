"""What a rank does for the contract of the strategies: a few steps by hand, and all that the seam says of them."""

import sys
from pathlib import Path

import torch

from tests.gpu.steps import open_steps
from training.config import read_config
from training.model.weights import load_tensors
from training.process.distributed import join_ranks
from training.process.files import write_json
from training.step.snapshot import STATE, WEIGHTS

NUM_STEPS = 3


def main():
    """Warm up, make steps, look at everything in between; rank 0 writes told.json and tensors.pt."""
    config = read_config(Path(sys.argv[-1]))
    torch.set_num_threads(1)
    with join_ranks(config) as ranks:
        strategy, plan, micro_batches = open_steps(config, ranks)
        told = {"start": strategy.digest()}
        strategy.warm_up(micro_batches(1)[-1])
        told["warm"] = strategy.digest()
        results = []
        for number in range(1, NUM_STEPS + 1):
            parts = micro_batches(number)
            targets = plan.step(number).num_targets
            if number == NUM_STEPS:
                told["is_finite"] = strategy.gives_finite_gradient(parts, num_targets=targets)
                told["before_last"] = strategy.digest()
            results.append(strategy.train_step(parts, num_targets=targets, learning_rate=1e-3))
        told |= {
            "end": strategy.digest(),
            "norms": [float(result.grad_norm) for result in results],
            "loss_sums": ranks.gather(torch.tensor([float(one.loss_sum) for one in results]).numpy()).sum(0).tolist(),
            "traffic": [dict(result.traffic) for result in results],
            "exchange": strategy.describe(),
            "num_rounds": [len(micro_batches(number)) for number in range(1, NUM_STEPS + 1)],
        }
        writes = []
        for part in strategy.snapshot():
            writes.append(part.content is not None)
            if part.content is not None:
                torch.save(dict(part.content), config.work_dir / f"{part.name}.pt")
        told["writes"] = ranks.gather_values(writes)
        # A new one takes up what this one gave, and makes the same step.
        again, _, _ = open_steps(config, ranks)
        folder = config.work_dir
        ranks.highest(0)
        weights, state = (load_tensors(folder / f"{name}.pt", is_mapped=True) for name in (WEIGHTS, STATE))
        again.restore(weights, state)
        weights.clear()
        state.clear()
        told["mapped"] = ranks.gather_values(str(folder) in Path("/proc/self/maps").read_text())
        told["restored"] = again.digest()
        # As every training does: DDP orders its buckets anew in the first step, and four ranks' sums with them.
        again.warm_up(micro_batches(1)[-1])
        for one in (strategy, again):
            one.train_step(micro_batches(1), num_targets=plan.step(1).num_targets, learning_rate=1e-3)
        told["next"] = [strategy.digest(), again.digest()]
        if ranks.is_first:
            write_json(folder / "told.json", told)
    return 0
