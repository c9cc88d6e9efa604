"""What the loop asks of a strategy: one optimizer step, and the state behind it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from training.combinations import LOOKS, SHARED_GPUS, SYNC_BATCH, find_conflict, list_asked, say
from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.sync_norm import list_statistics
from training.model.weights import compute_tensor_checksum
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.registry import import_file
from training.step.replica import Replica, prepare_model
from training.step.snapshot import Digests, Part
from training.step.traffic import Traffic
from training.workloads import Workload


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did on this rank; tensors stay on the device, so that nothing waits for it."""

    loss_sum: Tensor
    """() float64: sum of the losses of this rank's labels; all ranks' sums together are the step's."""
    grad_norm: Tensor
    """() float32: L2 norm of the whole gradient, all ranks', before clipping."""
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    """Kind of collective -> what this rank put into those of the step."""


class Strategy(ABC):
    """The seam between a training and a strategy: one optimizer step, and one state that all ranks hold together.

    What a strategy leaves as it is here is that of ranks which hold the whole model each, and rows of their own. No
    rank need hold the whole model, and nothing outside of a strategy may assume it. What is called collective has to be
    called by all ranks, in the same order.
    """

    has_replica = True
    """Whether every rank holds the whole model, whose step can be taken apart."""
    counts_rows = True
    """Whether the rows of its share are counted on this rank: true on one rank of those that have the same."""
    data_rank: int
    """Which share of every step's micro-batches this rank runs, from 0; several ranks may have the same."""
    data_world_size: int
    """Into how many shares a step's micro-batches are dealt."""

    def __init__(self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks) -> None:
        """`model`: the base model, on the CPU."""
        self._ranks = ranks
        self.data_rank, self.data_world_size = ranks.rank, ranks.world_size
        adapter = prepare_model(model, workload, config, ranks.device)
        updated = self.place(model)
        self.replica = Replica(model, workload, config, ranks.device, adapter=adapter, updated=updated)
        """Model and optimizer, or this rank's part of them, which tell a listener what comes next in a step."""
        self.module, self.optimizer = model, self.replica.optimizer

    def place(self, model: nn.Module) -> Collection[nn.Parameter] | None:
        """Put the prepared model, or this rank's part of it, on the device; return which parameters the rank updates.

        None: all that it has.
        """
        model.to(self._ranks.device)
        return None

    @property
    def kept_weights(self) -> Sequence[Tensor]:
        """What this rank keeps of weights beside those of the module, such as those that are updated in their stead."""
        return ()

    @property
    def updated_elsewhere(self) -> Sequence[Tensor]:
        """What this rank updates of the copy of the model that an earlier rank of it updates as well."""
        return ()

    @property
    def num_checkpoint_bytes(self) -> int:
        """About how much a checkpoint takes: weights and moments."""
        return self.replica.num_checkpoint_bytes

    @abstractmethod
    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update: the mean loss over the `num_targets` labels of all ranks' micro-batches. Collective.

        A gradient that is not finite on one rank leaves the parameters and moments of all ranks as they are.
        """

    @abstractmethod
    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing: first times cost more and are not timed.

        The first call does it twice; a later one is the lead-in of a timed block. Collective.
        """

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return the sum of this rank's losses, without dropout: () float64; changes nothing that is trained or saved.

        Collective, with as many micro-batches on every rank. Ranks that have the same micro-batches (`data_rank`) hold
        their losses between them, once. Never while a training is timed.
        """
        return self.replica.sum_losses(micro_batches)

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether this rank's micro-batches alone give a finite gradient; changes nothing. Collective."""
        return self.replica.gives_finite_gradient(micro_batches, weight=1 / max(num_targets, 1))

    def digest(self) -> Digests:
        """Return the digests of the whole state. Collective."""
        parameters, moments = self.replica.parameter_checksum(), compute_tensor_checksum(self.replica.collect_moments())
        return Digests(self._ranks.gather_text(parameters), self._ranks.gather_text(moments))

    def snapshot(self) -> Iterator[Part]:
        """Yield WEIGHTS, then STATE. Collective: all ranks have to go through both.

        Each part has to be done with before the next is asked for: no more than one is in memory at a time. The weights
        are the state dict of the whole model, on the CPU, in which what is tied is one tensor under several names.
        """
        return self.replica.snapshot(is_written=self._ranks.is_first)

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up what `snapshot` gave, the same on every rank. Collective.

        Raises MisfitError before anything is changed, and ValueError, KeyError, TypeError or AttributeError for what is
        no state at all, or is another one once restored.
        """
        self.replica.require_fit(weights, state)
        self.replica.load_state(state)
        self.replica.load_weights(weights, state)

    def describe(self) -> dict[str, Any]:
        """Return, as JSON, how the exchange is laid out once warmed up: what the strategy's expected.py reads of it."""
        return {}

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the seconds of a step's parts that the strategy's engine times by itself while `run` makes steps.

        {} where it times none.
        """
        return {}


class StrategyFile(Protocol):
    """What the step.py of a folder of training/strategies/ offers."""

    def build(
        self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
    ) -> Strategy:
        """Return the strategy around the base model, which is on the CPU.

        `communicates` is False for a step that leaves out its communication and nothing else, which a waterfall is
        measured with: only where `no_waterfall` of expected.py is None. Raises ValueError for ranks or a config that it
        is not for, of which UnfitModelError is one.
        """


def find_strategy(strategy: str) -> StrategyFile:
    """Return the module that computes the strategy's updates."""
    file: StrategyFile = import_file(f"training.strategies.{strategy}", "step")
    return file


def require_combination(
    strategy: str, model: nn.Module, config: TrainingConfig, ranks: Ranks, *, more: Mapping[str, bool] | None = None
) -> None:
    """Raise UnfitModelError for what a strategy does not go with (training/combinations.py).

    `more`: what else it cannot do -> whether that is asked for.
    """
    asked = list_asked(config, config.options)
    if not config.heldout_digest:
        asked.pop(LOOKS, None)
    if list_statistics(model):
        asked[SYNC_BATCH] = say(SYNC_BATCH)
    if config.oversubscribe and ranks.device.type == "cuda" and ranks.world_size > 1:
        asked[SHARED_GPUS] = say(SHARED_GPUS)
    problem = find_conflict(asked, strategy=strategy, workload=config.workload)
    for what, is_asked in (more or {}).items():
        if is_asked:
            problem = problem or f"{what} is not available for the strategy {strategy}; leave it, or use strategy ddp"
    if problem is not None:
        raise UnfitModelError(problem)
