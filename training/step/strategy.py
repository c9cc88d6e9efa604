"""What the loop asks of a strategy: one optimizer step, and the state behind it.

Nothing outside of a strategy may assume that a rank holds the whole model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from training.data.batches import MicroBatch
from training.process.heartbeat import StepSection
from training.step.traffic import Traffic

WEIGHTS, STATE = "weights", "state"
"""The parts of a snapshot: the model's state dict, and all else that the next step depends on."""


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did on this rank; tensors stay on the device, so that nothing waits for it."""

    loss_sum: Tensor
    """() float64: sum of the losses of this rank's labels; all ranks' sums together are the step's."""
    grad_norm: Tensor
    """() float32: L2 norm of the whole gradient, all ranks', before clipping."""
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    """Kind of collective -> what this rank put into those of the step."""


class Part(NamedTuple):
    """One file of a snapshot."""

    name: str
    """WEIGHTS or STATE."""
    content: Mapping[str, Any] | None
    """What is to be written, whole: on rank 0, which writes it; None on the other ranks."""


class Digests(NamedTuple):
    """What is alike if and only if the state is: sha256 (hex), one of each whole copy that the ranks hold together.

    Where every rank holds a copy there is one per rank, where they share one between them there is one: all must be
    equal. The list is the same on all ranks, in the order of each copy's first rank.
    """

    parameters: list[str]
    """Of the parameters, and of the running statistics of batch normalisation."""
    optimizer: list[str]
    """Of what the next update depends on beside them: moments, loss scale."""


class MisfitError(ValueError):
    """A part of a snapshot is none of this model's or optimizer's; nothing has been changed."""

    def __init__(self, part: str, differences: Sequence[str]) -> None:
        super().__init__("; ".join(differences))
        self.part = part
        self.differences = list(differences)


class Strategy(Protocol):
    """The seam between a training and a strategy: one optimizer step, and one state that all ranks hold together.

    No rank need hold the whole model. What is called collective has to be called by all ranks, in the same order.
    """

    on_section: Callable[[StepSection], None]
    """Told what comes next in a step: forward, backward, update."""

    @property
    def module(self) -> nn.Module:
        """The module that this rank runs, for what it is; its parameters may be parts of the model's."""

    @property
    def optimizer(self) -> Optimizer:
        """What turns the gradient into this rank's updates, with the state that it keeps."""

    @property
    def kept_weights(self) -> Sequence[Tensor]:
        """What this rank keeps of weights beside those of the module, such as those that are updated in their stead."""

    @property
    def data_rank(self) -> int:
        """Which share of every step's micro-batches this rank runs, from 0; several ranks may have the same."""

    @property
    def data_world_size(self) -> int:
        """Into how many shares a step's micro-batches are dealt."""

    @property
    def counts_rows(self) -> bool:
        """Whether the rows of its share are counted on this rank: true on one rank of those that have the same."""

    @property
    def num_checkpoint_bytes(self) -> int:
        """About how much a checkpoint takes: weights and moments."""

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update: the mean loss over the `num_targets` labels of all ranks' micro-batches. Collective.

        A gradient that is not finite on one rank leaves the parameters and moments of all ranks as they are.
        """

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Return the sum of this rank's losses, without dropout: () float64; changes nothing that is trained or saved.

        Collective, with as many micro-batches on every rank. Ranks that have the same micro-batches (`data_rank`) hold
        their losses between them, once. Never while a training is timed.
        """

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing: first times cost more and are not timed.

        The first call does it twice; a later one is the lead-in of a timed block. Collective.
        """

    def may_overflow(self) -> bool:
        """Return whether a step with a non-finite gradient is a normal event: under fp16, until scaling cannot help.

        Waits for the device under fp16.
        """

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether this rank's micro-batches alone give a finite gradient; changes nothing. Collective."""

    def digest(self) -> Digests:
        """Return the digests of the whole state. Collective."""

    def snapshot(self) -> Iterator[Part]:
        """Yield WEIGHTS, then STATE. Collective: all ranks have to go through both.

        Each part has to be done with before the next is asked for: no more than one is in memory at a time. The weights
        are the state dict of the whole model, on the CPU, in which what is tied is one tensor under several names.
        """

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up what `snapshot` gave, the same on every rank. Collective.

        Raises MisfitError before anything is changed, and ValueError, KeyError, TypeError or AttributeError for what is
        no state at all, or is another one once restored.
        """

    def describe(self) -> dict[str, Any]:
        """Return, as JSON, how the exchange is laid out once warmed up: what `tasks/strategies/` reads of it."""

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the seconds of a step's parts that the strategy's engine times by itself while `run` makes steps.

        {} where it times none.
        """
