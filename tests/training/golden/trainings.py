"""Three steps of every strategy with every workload, in fp32, and the numbers that they come to."""

import json
from pathlib import Path

import torch

from tasks.params.choices import list_file_names
from tests.tiny import make_config, make_tiny_workload
from tests.training.conftest import steps_of, weights_at_end
from training.numerics import NUMERICS_VERSION
from training.registry import list_strategies

FILE = Path(__file__).with_name("golden.json")
_MORE = {
    "causal_lm single sgd": {"optimizer": "sgd", "learning_rate": 0.1},
    "causal_lm single packing": {"packing": True},
    "causal_lm single cosine": {"schedule": "cosine", "schedule_floor": 0.1},
    "causal_lm ddp exact": {"exact": True},
    "image_classification single augmented": {"augment": "flip_shift"},
}
"""Pair, and what stands beside it -> what its ranks are told otherwise."""
_CLOSE = 2e-5
"""Share by which a number may differ: the sums of another machine have another order, whatever it is called."""


def list_trainings():
    """Return name -> what its ranks are told, of everything that is trained."""
    pairs = {
        f"{workload} {strategy}": {}
        for workload in list_file_names("training/workloads")
        for strategy, excluded in list_strategies().items()
        if workload not in excluded
    }
    return pairs | _MORE


def train(name, folder, ranks):
    """Return the numbers of one training, whose files stand in the folder: loss and gradient norm of each step, and
    weights by directions."""
    workload, strategy = name.split()[:2]
    model, slices = make_tiny_workload(workload, folder)
    config = make_config(
        folder / "work", model, slices[1:], global_batch_size=12, micro_batch_size=3, workload=workload,
        strategy=strategy, world_size=1 if strategy == "single" else 2, **list_trainings()[name],
    )  # fmt: skip
    steps = steps_of(ranks.train(config))
    return {
        "loss": [step["loss"] for step in steps],
        "gradient": [step["grad_norm"] for step in steps],
        "weights": _project(weights_at_end(config)),
    }


def _project(weights):
    """Return where the weights stand along their own size and three directions that are drawn once and for all."""
    flat = torch.cat([weights[name].double().flatten() for name in sorted(weights)])
    drawn = torch.randn(3, len(flat), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return [float(flat.norm()), *(float(one @ flat) for one in drawn)]


def read_golden():
    """Return the golden file: `numerics_version` and, of every training, its `numbers`."""
    return json.loads(FILE.read_bytes())


def find_moved(name, found, golden):
    """Return in one line that the numbers of a training are not those of the golden file, and what to do."""
    kept = golden["numbers"].get(name)
    if golden["numerics_version"] != NUMERICS_VERSION or kept is None:
        return f"{name} has no golden numbers of NUMERICS_VERSION {NUMERICS_VERSION}: python -m tests.training.golden"
    for what, numbers in found.items():
        most = _CLOSE * max(map(abs, kept[what]))
        if len(numbers) != len(kept[what]) or any(abs(a - b) > most for a, b in zip(numbers, kept[what], strict=True)):
            return (
                f"{name}: {what} {numbers}, golden {kept[what]}: where that is meant, raise NUMERICS_VERSION in "
                "training/numerics.py, then renew the file: python -m tests.training.golden"
            )
    return None
