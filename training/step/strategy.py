"""What the loop asks of a strategy: one optimizer step, and the state behind it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from training.combinations import EVALUATES, SHARED_GPUS, SYNC_BATCH, find_conflict, list_asked, split_key
from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.sync_norm import keep_statistics, list_statistics
from training.model.weights import TensorDigest, copy_alone
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.process.heartbeat import StepSection
from training.registry import fill_options, import_file
from training.step.optimizer import get_local_rows
from training.step.replica import Replica, prepare_model
from training.step.snapshot import STATE, WEIGHTS, Digests, Part, Piece, WholeModel, generate_whole, list_copies
from training.step.traffic import Sent, Traffic
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

    name: ClassVar[str]
    """As params.yaml has it."""
    in_exact_mode: "ClassVar[type[Strategy] | None]" = None
    """What computes the update in exact mode, if another class does."""
    has_replica = True
    """Whether every rank holds the whole model, whose step can be taken apart."""
    counts_rows = True
    """Whether the rows of its share are counted on this rank: true on one rank of those that have the same."""
    begins_alone = False
    """Whether a micro-batch is first run by itself in a warm-up."""
    ranks_per_copy = 1, 1
    """So many neighbours hold a copy of the parameters between them, and so many one of the moments."""
    data_rank: int
    """Which share of every step's micro-batches this rank runs, from 0; several ranks may have the same."""
    data_world_size: int
    """Into how many shares a step's micro-batches are dealt."""

    @classmethod
    def build(
        cls, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
    ) -> "Strategy":
        """Return the strategy around the base model, which is on the CPU.

        `communicates` is False for a step that leaves out its communication and nothing else, which a waterfall is
        measured with: only where `no_waterfall` of expected.py is None. Raises ValueError for ranks or a config that it
        is not for, of which UnfitModelError is one.
        """
        options = fill_options(cls.name, config.options)
        traits = import_file(f"training.strategies.{cls.name}", "expected").TRAITS
        if problem := traits.explain_unfit(config.options, world_size=ranks.world_size):
            raise ValueError(problem)
        _require_combination(cls.name, model, config, ranks)
        if what := cls.find_unavailable(model, options):
            raise UnfitModelError(f"{what} is not available for the strategy {cls.name}; leave it, or use strategy ddp")
        kind = cls.in_exact_mode if config.exact and cls.in_exact_mode else cls
        return kind(model, workload, config, ranks, options, communicates=communicates)

    @classmethod
    def find_unavailable(cls, model: nn.Module, options: Mapping[str, Any]) -> str | None:
        """Return what the strategy cannot do of what is asked for, beside training/combinations.py; None: nothing."""
        return None

    def __init__(
        self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, options: Mapping[str, Any],
        *, communicates: bool,
    ) -> None:  # fmt: skip
        """`model`: the base model, on the CPU; `options`: all of the strategy."""
        self._workload, self._config, self._ranks, self._options = workload, config, ranks, options
        self._communicates = communicates
        self._group: Any = ranks.gradient_group
        """Over which gradients go."""
        self._sent = Sent()
        """What this rank put into the exchanges of steps."""
        self.data_rank, self.data_world_size = ranks.rank, ranks.world_size
        adapter = prepare_model(model, workload, config, ranks.device)
        self._whole = WholeModel(model, config, adapter)
        updated = self.place_and_select_updated(model)
        self.replica = Replica(model, workload, config, ranks.device, adapter=adapter, updated=updated)
        """Model and optimizer, or this rank's part of them, which tell a listener what comes next in a step."""
        self.module, self.optimizer = model, self.replica.optimizer
        self._own = {self._whole.tied.get(name, name): part for name, part in model.named_parameters()}
        """What this rank has of the parameters, by their first names."""
        self.set_up()

    def place_and_select_updated(self, model: nn.Module) -> Collection[nn.Parameter] | None:
        """Put the prepared model, or this rank's part of it, on the device; return which parameters the rank updates.

        None: all that it has.
        """
        model.to(self._ranks.device)
        return None

    def set_up(self) -> None:  # noqa: B027
        """Make what else a step needs, once model and optimizer are there."""

    def _ask_whole_model(self, model: nn.Module) -> None:
        """Run a model that is whole, which the workload may ask something: whether its head is a plain matrix, say."""
        model.eval()
        with torch.no_grad():
            self._workload.loss_sum(model, self._workload.make_dummy_micro_batch(self._config.seq_len))

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
        return self._whole.num_checkpoint_bytes

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update: the mean loss over the `num_targets` labels of all ranks' micro-batches. Collective.

        A gradient that is not finite on one rank leaves the parameters and moments of all ranks as they are.
        """
        self._sent.take()
        self._accumulate_gradient(micro_batches, weight=1 / max(num_targets, 1))
        loss_sum, grad_norm = self.replica.optimizer_step(learning_rate)
        self._send_weights()
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=self._sent.take())

    def _send_weights(self) -> None:  # noqa: B027
        """Send what only this rank updated to the others that have it."""

    @abstractmethod
    def _accumulate_gradient(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Leave the gradient of a step's micro-batches: of the sum of all ranks' losses times the weight."""

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing: first times cost more and are not timed.

        The first call does it twice; a later one is the lead-in of a timed block. Collective.
        """
        for micro_batches in self.replica.generate_warm_up_steps(micro_batch, begins_alone=self.begins_alone):
            self._accumulate_gradient(micro_batches, weight=0.0)
            self._send_weights()
            self.replica.reset()

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return the sum of this rank's losses, without dropout: () float64; changes nothing that is trained or saved.

        Collective, with as many micro-batches on every rank. Ranks that have the same micro-batches (`data_rank`) hold
        their losses between them, once. Never while a training is timed.
        """
        total = torch.zeros((), dtype=torch.float64, device=self._ranks.device)
        with self.replica.evaluate(), torch.no_grad():
            for micro_batch in micro_batches:
                self.replica.on_section(StepSection.FORWARD)
                total += self._compute_loss(micro_batch)
        return total

    def _compute_loss(self, micro_batch: MicroBatch) -> Tensor:
        """Return the sum of a micro-batch's losses."""
        return self.replica.forward(self.module, micro_batch)

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether this rank's micro-batches alone give a finite gradient; changes nothing. Collective."""
        self.replica.reset()
        with keep_statistics(self.module):
            for micro_batch in micro_batches:
                self.replica.forward_backward(self.module, micro_batch, weight=1 / max(num_targets, 1))
        is_finite = self.replica.has_finite_gradient()
        self.replica.reset()
        return is_finite

    def find_start(self, part: Tensor) -> int:
        """Return the first element of a parameter, or of what the optimizer keeps of it, that this rank has."""
        return 0

    def list_weights(self) -> dict[str, Piece]:
        """Return what this rank has of each parameter, by its first name."""
        return {
            name: Piece(get_local_rows(part), part.shape, self.find_start(part)) for name, part in self._own.items()
        }

    def list_moments(self) -> dict[str, Piece]:
        """Return what this rank has of all that the optimizer keeps: `KIND of PARAMETER`."""
        return {
            f"{key} of {name}": Piece(get_local_rows(value), value.shape, self.find_start(value))
            for name, part in self._own.items()
            for key, value in self.optimizer.state.get(part, {}).items()
        }

    def _generate_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the whole parameters, an adapter's merged, and running statistics, by name. Collective."""
        if (adapter := self.replica.adapter) is not None:
            return adapter.merge(dict(self.module.named_parameters()), adapter.factors())
        statistics = {name: Piece(part, part.shape) for name, part in list_statistics(self.module).items()}
        return generate_whole(self._ranks, self.list_weights() | statistics)

    def digest_order(self, title: str) -> Any:
        """Return by what moments are sorted for their digest."""
        return title

    def digest(self) -> Digests:
        """Return the digests of the whole state. Collective."""
        others = {name: Piece(part, part.shape) for name, part in self.replica.collect_others().items()}
        moments = generate_whole(self._ranks, self.list_moments() | others, order=self.digest_order)
        results = []
        for tensors, size in zip((self._generate_weights(), moments), self.ranks_per_copy, strict=True):
            digest = TensorDigest()
            for name, tensor in tensors:
                digest.add(name, tensor)
            results.append(list_copies(self._ranks.gather_values(digest.hex()), size))
        return Digests(*results)

    def snapshot(self) -> Iterator[Part]:
        """Yield WEIGHTS, then STATE. Collective: all ranks have to go through both.

        Each part has to be done with before the next is asked for: no more than one is in memory at a time. The weights
        are the state dict of the whole model, on the CPU, in which what is tied is one tensor under several names.
        """
        is_first = self._ranks.is_first
        tensors = {name: copy_alone(whole) for name, whole in self._generate_weights() if is_first}
        weights = self._whole.collect_weights(tensors, self.module) if is_first else {}
        yield Part(WEIGHTS, weights if is_first else None)
        # Whoever has written them may hold the part still, and the moments are twice as large.
        tensors.clear()
        weights.clear()
        moments = generate_whole(self._ranks, self.list_moments())
        tensors = {title: copy_alone(whole) for title, whole in moments if is_first}
        others = self.replica.state_of_all()
        yield Part(STATE, self._whole.collect_state(self.optimizer, tensors, others) if is_first else None)

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up what `snapshot` gave, the same on every rank. Collective.

        Raises MisfitError before anything is changed, and ValueError, KeyError, TypeError or AttributeError for what is
        no state at all, or is another one once restored.
        """
        self._whole.require_fit(weights, state)
        self.replica.load_state(self._whole.select_state(state, self.optimizer, self._own, cut=self.cut_moment))
        if self.replica.adapter is not None:
            # Its base stays as it is.
            self.replica.adapter.load_factors(state["adapter"])
            return
        with torch.no_grad():
            for name, part in self.module.state_dict().items():
                get_local_rows(part).copy_(self.cut(weights[name], part))

    def cut(self, whole: Tensor, like: Tensor) -> Tensor:
        """Return of a whole tensor what this rank has of `like`."""
        start, own = self.find_start(like), get_local_rows(like)
        return whole.reshape(-1)[start : start + own.numel()].view(own.shape)

    def cut_moment(self, whole: Tensor, parameter: nn.Parameter) -> Tensor:
        """Return of a whole moment this rank's, as the optimizer keeps it."""
        return self.cut(whole, parameter)

    def describe(self) -> dict[str, Any]:
        """Return, as JSON, how the exchange is laid out once warmed up: what the strategy's expected.py reads of it."""
        return {}

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the seconds of a step's parts that the strategy's engine times by itself while `run` makes steps.

        {} where it times none.
        """
        return {}


def find_strategy(name: str) -> type[Strategy]:
    """Return the class that computes the strategy's updates."""
    strategy: type[Strategy] = import_file(f"training.strategies.{name}", "step").STRATEGY
    return strategy


def _require_combination(strategy: str, model: nn.Module, config: TrainingConfig, ranks: Ranks) -> None:
    """Raise UnfitModelError for what a strategy does not go with (training/combinations.py)."""
    asked = list_asked(config, config.options)
    if not config.heldout_digest:
        asked.pop(EVALUATES, None)
    if list_statistics(model):
        asked[SYNC_BATCH] = split_key(SYNC_BATCH)
    if config.oversubscribe and ranks.device.type == "cuda" and ranks.world_size > 1:
        asked[SHARED_GPUS] = split_key(SHARED_GPUS)
    if problem := find_conflict(asked, strategy=strategy, workload=config.workload):
        raise UnfitModelError(problem)
