"""Weights and moments that all variants of a step have in common: one of each per rank, however many are built.

While a rank is measured the learning rate is 0, so that weights stay those of the base model, and moments decide
nothing. A variant has gradients and buckets of its own. What is sharded over ranks is not shared.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from training.config import TrainingConfig
from training.model.adapter import make_plain
from training.step.replica import Replica
from training.workloads import Workload


class SharedState:
    """What the first variant of a base model has; later ones of that model take it over."""

    def __init__(self) -> None:
        self._weights: dict[str, dict[str, Tensor]] = {}
        """Folder of a base model -> name -> the weight, where it is."""
        self._moments: defaultdict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        """Folder and optimizer -> name of the parameter -> what the optimizer keeps of it."""

    def lend(self, workload: Workload) -> Workload:
        """Return the workload, whose models take over the weights that are there when they are prepared."""

        def prepare(model: nn.Module, config: TrainingConfig) -> None:
            workload.prepare(model, config)
            kept = self._weights.get(str(config.model_dir), {})
            for name, part in model.named_parameters():
                if name in kept:
                    part.data = kept[name]

        lending: Any = SimpleNamespace(**{**vars(workload), "prepare": prepare})
        found: Workload = lending
        return found

    def take_in(self, replica: Replica, config: TrainingConfig) -> None:
        """Share the weights and moments of a model that was just built."""
        kept = self._weights.setdefault(str(config.model_dir), {})
        moments = self._moments[f"{config.optimizer} {config.momentum} {config.model_dir}"]
        updated = {part for group in replica.optimizer.param_groups for part in group["params"]}
        state = replica.optimizer.state
        for name, part in replica.module.named_parameters():
            # Not what waits in 4 bits: a model begins with all in fp32, and rounds it itself.
            if part.is_floating_point():
                kept.setdefault(make_plain(name), part.data)
            if part in updated:
                state[part] = moments.setdefault(name, state[part])

    def clear(self) -> None:
        """Forget everything."""
        self._weights.clear()
        self._moments.clear()
