"""How an update is computed on several ranks: one file per strategy, found by its name in params.yaml.

Each file is what StrategyFile says. What the stages have to know of a strategy without running it, such as what it must
exchange, stands in tasks/strategies/ under the same name.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn

from training.config import TrainingConfig
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.registry import import_file
from training.step.strategy import Strategy
from training.workloads import Workload


class StrategyFile(Protocol):
    """What a file of this folder offers.

    Three more constants are read from its text, and are false where it has none: `TAKES_ADAPTERS`, whether
    `train.adapter` is for it, `SYNCS_STATISTICS`, whether `model.norm: sync_batch` is, and `IS_EXACT`, whether
    `train.exact` is.
    """

    @property
    def OPTIONS(self) -> Mapping[str, Any]:  # noqa: N802
        """What params.yaml may say under `options`, a literal: name -> default; of several words a tuple, the first the
        default."""

    def build(
        self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
    ) -> Strategy:
        """Return the strategy around the base model, which is on the CPU.

        `communicates` is False for a step that leaves out its communication and nothing else, which a waterfall is
        measured with: only where tasks/strategies/ says that there is one. Raises ValueError for ranks or a config
        that it is not for.
        """


def read_options(known: Mapping[str, Any], config: TrainingConfig) -> dict[str, Any]:
    """Return all options that a strategy knows, those that are not said by their defaults."""
    return {name: one[0] if isinstance(one, tuple) else one for name, one in known.items()} | dict(config.options)


def refuse(strategy: str, asked: Mapping[str, bool]) -> None:
    """Raise UnfitModelError for the first that is asked for of what the strategy cannot do."""
    for what, is_asked in asked.items():
        if is_asked:
            raise UnfitModelError(f"{what} is not available for the strategy {strategy}; leave it, or use strategy ddp")


def find_strategy(name: str) -> StrategyFile:
    """Return the file of this folder with that name."""
    found: StrategyFile = import_file("training.strategies", name)
    return found
