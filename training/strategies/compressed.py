"""Gradients exchanged compressed, with error feedback: PowerSGD, or 8 bits per number (training/step/compression.py).

In every step all ranks apply the same gradient, which is not that of the whole batch: what a rank could not send it
adds to its next one. So it is another training than one process's, and not judged by having the same updates. Weights
and moments are the same on all ranks; what each has left over is its own, and is part of every checkpoint.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.weights import compute_tensor_checksum, list_differences
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.process.heartbeat import StepSection
from training.step.compression import Compressor, EightBits, LowRank, shape_as_matrix
from training.step.own_state import gather_own
from training.step.replica import Replica
from training.step.replicated import Replicated
from training.step.strategy import STATE, Digests, MisfitError, Part, StepResult
from training.step.traffic import Traffic
from training.strategies.single import Single
from training.workloads import Workload

OPTIONS = {"compression": ("powersgd", "int8"), "rank": 4}
"""What params.yaml may say under `options` of a cell with this strategy, and the defaults, the first of several words.

compression: powersgd sends two factors of each matrix, int8 every number in 8 bits. rank: columns of each factor, of
powersgd alone."""
TAKES_ADAPTERS = False
"""Whether `train.adapter` is for it."""


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "Compressed":
    """Return the strategy, on two ranks or more; raises ValueError for exact mode, UnfitModelError for fp16 and for a
    rank at which nothing would become smaller.
    """
    if config.exact:
        raise ValueError("exact: true with strategy compressed; allowed: exact: false, or strategy ddp")
    if ranks.world_size == 1:
        raise ValueError("world_size=1 with strategy compressed; allowed: 2 or more, or strategy single")
    if config.precision == "fp16":
        # A step that overflows is a normal event there, and would be left over for ever.
        raise UnfitModelError("precision: fp16 is not available for the strategy compressed; take bf16, or ddp")
    replica = Replica(model, workload, config, ranks.device)
    named = {name: part for name, part in replica.module.named_parameters() if part.requires_grad}
    options: dict[str, Any] = {**OPTIONS, **config.options}
    make: Callable[[], Compressor] = (
        partial(EightBits, named, ranks)
        if options["compression"] == "int8"
        else partial(LowRank, named, ranks, rank=int(options["rank"]), seed=config.seed)
    )
    step = CompressedStep(replica, ranks, make)
    if not step.compressor.errors:
        raise UnfitModelError(
            f"options.rank: got {options['rank']}, at which no matrix of the model becomes smaller; allowed: less"
        )
    return Compressed(replica, ranks, step)


class CompressedStep(Single):
    """The step of one process, whose gradient is exchanged between the backward and the update."""

    def __init__(self, replica: Replica, ranks: Ranks, make: Callable[[], Compressor]) -> None:
        super().__init__(replica)
        self._make, self.compressor = make, make()
        self._world_size = ranks.world_size

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        # The mean of all ranks' gradients is then that of the whole batch.
        self._run(micro_batches, weight=self._world_size / max(num_targets, 1))
        traffic = self._exchange(self.compressor)
        loss_sum, grad_norm = self.replica.step(learning_rate)
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=traffic)

    def _exchange(self, compressor: Compressor) -> dict[str, Traffic]:
        """Put what all ranks apply in the place of this rank's gradient; return what was exchanged."""
        self.replica.on_section(StepSection.COLLECTIVE)
        names = [name for parcel in compressor.parcels for name in parcel]
        found, traffic = compressor.average(dict(zip(names, self.replica.take_gradient(), strict=True)))
        self.replica.put_gradient([found[name] for name in names])
        return traffic

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and the exchange, and change nothing: what is left over then is forgotten."""
        for micro_batches in self.replica.generate_warm_up_steps(micro_batch):
            self._run(micro_batches, weight=0.0)
            self._exchange(self._make())
            self.replica.forget_gradient()

    def describe(self) -> dict[str, Any]:
        """Return `parcels`: the gradients that are exchanged at once, each as [rows, columns] of a matrix."""
        named = dict(self.replica.module.named_parameters())
        return {"parcels": [[shape_as_matrix(named[name]) for name in names] for names in self.compressor.parcels]}


class Compressed(Replicated):
    """Every rank holds all weights and moments, and what it has left over of its own gradients."""

    def __init__(self, replica: Replica, ranks: Ranks, step: CompressedStep) -> None:
        super().__init__(replica, ranks, step)
        self._compressor = step.compressor

    @property
    def num_checkpoint_bytes(self) -> int:
        """About how much a checkpoint takes: weights and moments, and what every rank has left over."""
        errors = sum(part.nbytes for part in self._compressor.errors.values())
        return self.replica.num_checkpoint_bytes + self._ranks.world_size * errors

    def full_gradient(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the mean of what the ranks had to send, by name: what is applied, and the mean of what is left over.

        So long as nothing was left over before, it is the gradient of the whole batch.
        """
        for name, part in self.replica.full_gradient():
            whole = part.detach().cpu().clone()
            if name in self._compressor.errors:
                left = self._compressor.errors[name].cpu() / self._ranks.world_size
                dist.all_reduce(left)
                whole += left
            yield name, whole

    def digest(self) -> Digests:
        """Return every rank's digest of the weights, and of its moments, the factors and what all ranks have left."""
        factors = {f"factor of {name}": part for name, part in self._compressor.factors.items()}
        mine = compute_tensor_checksum({**self.replica.collect_moments(), **factors})
        left = "".join(self._ranks.gather_text(compute_tensor_checksum(self._compressor.errors)))
        return Digests(
            parameters=self._ranks.gather_text(self.replica.parameter_checksum()),
            optimizer=self._ranks.gather_text(hashlib.sha256((mine + left).encode()).hexdigest()),
        )

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state as any replica's, the factors and what every rank has left over beside it."""
        weights, state = self.replica.snapshot(is_written=self._ranks.is_first)
        yield weights
        errors = gather_own(self._compressor.errors, self._ranks)
        compressed = {"factors": self._compressor.factors, "errors": errors}
        yield Part(STATE, None if state.content is None else {**state.content, "compressed": compressed})

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up such a state, each rank what it had left over itself."""
        saved, own = state["compressed"], self._compressor
        if len(saved["errors"]) != self._ranks.world_size:
            raise ValueError(f"it is of {len(saved['errors'])} ranks; allowed: of {self._ranks.world_size}")
        pairs = [(saved["errors"][self._ranks.rank], own.errors), (saved["factors"], own.factors)]
        self.replica.require_fit(weights, state)
        if wrong := [line for found, wanted in pairs for line in list_differences(found, wanted)]:
            raise MisfitError(STATE, wrong)
        super().restore(weights, state)
        for found, wanted in pairs:
            for name, part in wanted.items():
                part.copy_(found[name])
