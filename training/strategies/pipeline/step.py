"""Pipeline: every rank has some layers of the model, and hands hidden states on to the next and gradients back.

All stages see the same micro-batches and run the workload's own loss (split.py); the schedules are those of torch
(schedule.py). With several replicas each is such a pipeline, sees its share of the micro-batches,
and every stage adds up its gradient with the same stage of the others.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.weights import TensorDigest
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.step.optimizer import Squares, clip_part
from training.step.snapshot import (
    STATE,
    Digests,
    Part,
    ScatteredMoments,
    WholeModel,
    collect_state,
    list_copies,
    select_own,
    send_from,
)
from training.step.strategy import StepResult, Strategy, require_combination
from training.step.traffic import ALL_REDUCE, BROADCAST, SEND, Sent
from training.strategies import fill_options
from training.strategies.pipeline.schedule import ROW_DTYPE, StagedSteps, takes_micro_batches
from training.strategies.pipeline.split import Cut
from training.strategies.zero1.step import Shares
from training.workloads import Workload

_STAGES_PER_RANK = {"interleaved": 2}
_TIMED_RUNS = 3


def build(
    model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks, *, communicates: bool = True
) -> "Pipeline":
    """Return the strategy, with `replicas` pipelines of as many ranks each.

    Raises ValueError for ranks that do not share out; UnfitModelError for what it does not go with, an earlier torch,
    and a model that cannot be cut.
    """
    replicas = fill_options("pipeline", config.options)["replicas"]
    if ranks.world_size % replicas:
        raise ValueError(f"world_size={ranks.world_size} with replicas={replicas}; allowed: a divisor of world_size")
    early = {f"torch {torch.__version__}": not takes_micro_batches()}
    require_combination("pipeline", model, config, ranks, more=early)
    return Pipeline(model, workload, config, ranks)


class Pipeline(Strategy):
    """The ranks of a replica see the same micro-batches and hold one copy of the state between them."""

    has_replica = False

    def __init__(self, model: nn.Module, workload: Workload, config: TrainingConfig, ranks: Ranks) -> None:
        options = fill_options("pipeline", config.options)
        self._workload, self._config = workload, config
        num_replicas, size = int(options["replicas"]), ranks.world_size
        self._num_ranks = num_ranks = size // num_replicas
        data_rank, self._place = divmod(ranks.rank, num_ranks)
        per_rank = _STAGES_PER_RANK.get(options["schedule"], 1) if num_ranks > 1 else 1
        self._num_stages = per_rank * num_ranks
        self._stages = range(self._place, self._num_stages, num_ranks)
        self._sent = Sent()
        replicas = [range(start, start + num_ranks) for start in range(0, size, num_ranks)]
        self._group: Any = ranks.join_group(replicas)
        self._alike: Any = None
        self._shares: Shares | None = None
        if num_replicas > 1:
            self._alike = ranks.join_group([range(place, size, num_ranks) for place in range(num_ranks)])
            ranks.counted_groups.append(self._alike)
            if options["zero1"]:
                alike = replace(ranks, rank=data_rank, world_size=num_replicas, gradient_group=self._alike)
                self._shares = Shares(alike)
        super().__init__(model, workload, config, ranks)
        self.data_rank, self.data_world_size = data_rank, num_replicas
        # Where the loss is: on the last stage.
        self.counts_rows = self._place == num_ranks - 1
        if size > 1:
            self.replica.clip = self._clip
        self._own = {self._whole.tied.get(name, name): part for name, part in self.module.named_parameters()}
        self._steps = StagedSteps(
            self.replica, self._cut, stages=self._stages, group=self._group, schedule=options["schedule"],
            sent=self._sent, has_dropout=num_ranks > 1 and workload.has_dropout(model),
        )  # fmt: skip
        self._moments = ScatteredMoments(self.optimizer, ranks, self._own, self._whole.parameters)
        self._shared = [
            self._own[name] for name, stages in self._stages_of.items() if len(stages) > 1 and name in self._own
        ]
        """What another rank has as well: a tied embedding, on the first and the last stage."""
        counted = {name: data_rank == 0 and self._stages_of[name][0] in self._stages for name in self._own}
        self._squares = Squares(list(self._whole.parameters), counted, ranks.device)

    def place(self, model: nn.Module) -> Collection[nn.Parameter] | None:
        """Keep this rank's stages; see Strategy."""
        self._whole = WholeModel(model, self._config)

        def run() -> None:
            # While there is a whole model, which the workload may ask something too.
            model.eval()
            with torch.no_grad():
                self._workload.loss_sum(model, self._workload.make_dummy_micro_batch(self._config.seq_len))

        self._cut = Cut(model, run, num_stages=self._num_stages)
        self._stages_of = self._cut.stages_of(model)
        self._cut.keep(self._stages)
        super().place(model)
        if self._shares is None:
            return None
        return self._shares.deal([part for part in model.parameters() if part.requires_grad])

    @property
    def num_checkpoint_bytes(self) -> int:
        """About how much a checkpoint takes, which is whole."""
        return self._whole.num_checkpoint_bytes

    def train_step(self, micro_batches: Sequence[MicroBatch], *, num_targets: int, learning_rate: float) -> StepResult:
        """Apply one update; see Strategy."""
        before = dict(self._sent.counts)
        self._steps.run(micro_batches, weight=1 / max(num_targets, 1))
        self._add_replicas()
        self._add_shared()
        loss_sum, grad_norm = self.replica.step(learning_rate)
        self._send_shares()
        return StepResult(loss_sum=loss_sum, grad_norm=grad_norm, traffic=self._sent.since(before))

    def _send_shares(self) -> None:
        """Have what this rank updated on the same ranks of all replicas, where it updates a share only."""
        if self._shares is not None:
            self._sent.add(BROADCAST, self._shares.send())

    def _add_replicas(self) -> None:
        """Have this rank's gradient added up with those of the same stages of other replicas, all at once."""
        if self._alike is None:
            return
        parts = [part.grad for part in self._own.values() if part.grad is not None]
        flat = torch.cat([part.reshape(-1) for part in parts])
        self._sent.count(ALL_REDUCE, flat)
        dist.all_reduce(flat, group=self._alike)
        for part, whole in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
            part.copy_(whole.view_as(part))

    @property
    def updated_elsewhere(self) -> Sequence[Tensor]:
        return [part for name, part in self._own.items() if self._stages_of[name][0] not in self._stages]

    def _add_shared(self) -> None:
        """Have both stages that hold a parameter apply the sum of their gradients of it, the same to the bit."""
        other = self._num_ranks - 1 - self._place
        for part in self._shared:
            assert part.grad is not None, "a tied embedding without a gradient"
            mine, its = part.grad.contiguous(), torch.empty_like(part.grad)
            self._sent.count(SEND, mine)
            peer = dist.get_global_rank(self._group, other)
            ops = [dist.P2POp(dist.isend, mine, peer, self._group), dist.P2POp(dist.irecv, its, peer, self._group)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            part.grad = mine + its

    def _clip(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Scale this stage's part of the gradient by the norm of the whole, in which a tied parameter counts once.

        The squares are added in the order of the parameters, wherever the model is cut.
        """
        gradient = {name: part.grad for name, part in self._own.items() if part.grad is not None}
        squares = self._squares.collect(gradient)
        self._sent.count(ALL_REDUCE, squares)
        group: Any = self._ranks.gradient_group
        dist.all_reduce(squares, group=group)
        return clip_part(list(gradient.values()), squares.sum(), most=self._config.max_grad_norm)

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Raise UnfitModelError, as `build` does where it is asked for: there is no forward alone here."""
        raise UnfitModelError("eval_every_steps is not available for the strategy pipeline")

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing, with all in memory that a step has there."""
        number = self._config.global_batch_size // self._config.micro_batch_size // self.data_world_size
        for micro_batches in self.replica.generate_warm_up_steps(micro_batch):
            self._steps.run(micro_batches[:1] * max(self._steps.count_filling(number), 1), weight=0.0)
            self._add_replicas()
            self._add_shared()
            self._send_shares()
            self.replica.forget_gradient()

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether this stage makes what is not finite: not where it was given that, forward or backward."""
        self.replica.forget_gradient()
        self._steps.is_watched = self._steps.was_given_finite = True
        self._steps.run(micro_batches, weight=1 / max(num_targets, 1))
        self._steps.is_watched = False
        is_finite = all(bool(part.grad.isfinite().all()) for part in self._own.values() if part.grad is not None)
        self.replica.forget_gradient()
        return is_finite or not self._steps.was_given_finite

    def digest(self) -> Digests:
        """Return the digest of each replica's copy; several of one whose stages differ in what they share."""
        parameters, results = TensorDigest(), list[list[str]]()
        for name, part in self._gather_parameters(sorted(self._whole.parameters)):
            parameters.add(name, part)
        for item in (parameters.hex(), self._moments.digest(self.replica.collect_others())):
            # With zero1 all replicas hold one copy of the moments.
            size = self._ranks.world_size if results and self._shares is not None else self._num_ranks
            results.append(list_copies(self._ranks.gather_text(item), size))
        return Digests(*results)

    def _gather_parameters(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield these parameters, on the CPU of every rank, each from the first rank that has it."""
        for name in names:
            like, source = self._whole.parameters[name], self._stages_of[name][0] % self._num_ranks
            blank = torch.empty(like.shape, dtype=like.dtype)
            yield name, send_from(source, self._ranks, self._own.get(name), blank)

    def snapshot(self) -> Iterator[Part]:
        """Yield weights and state, gathered tensor by tensor; rank 0 keeps them, as one process would have them."""
        whole, is_first = self._whole, self._ranks.is_first
        yield whole.collect_weights(self._gather_parameters(whole.parameters), is_kept=is_first)
        moments, others = self._moments.generate(), self.replica.state_of_all()
        yield Part(STATE, collect_state(self.optimizer, whole.groups, moments, others, is_kept=is_first))

    def restore(self, weights: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Take up a whole state, every stage its part of it."""
        self._whole.require_fit(weights, state)
        self.replica.load_state(select_own(self.optimizer, self._whole.groups, state, self._own))
        with torch.no_grad():
            for name, own in self._own.items():
                own.copy_(weights[name])

    def describe(self) -> dict[str, Any]:
        """Return the cut, and what is sent: `layers` of each stage, `row_bytes` of a position's hidden state, and
        `most_rows` of them; `tied_bytes` that two stages have, `rank_bytes` of each rank's parameters; their number.
        """
        sizes = {name: part.nbytes for name, part in self._whole.parameters.items()}
        rank_bytes = [0] * self._num_ranks
        for name, stages in self._stages_of.items():
            for stage in stages:
                rank_bytes[stage % self._num_ranks] += sizes[name]
        return {
            "layers": [[numbers[0], numbers[-1]] for numbers in self._cut.layers_of_stages],
            "row_bytes": self._cut.hidden_size * ROW_DTYPE.itemsize,
            "most_rows": self._steps.most_rows,
            "tied_bytes": [sizes[name] for name, stages in self._stages_of.items() if len(stages) > 1],
            "rank_bytes": rank_bytes,
            "num_parameters": len(sizes),
        }

    def own_timers(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the seconds of forward and backward passes in the quickest full step, and what of them is this rank's.

        `num_micro_batches`: of that step.
        """
        timed = [item for _ in range(_TIMED_RUNS) for item in self._steps.time(run)]
        most = max(item.num_micro_batches for item in timed)
        best = min((item for item in timed if item.num_micro_batches == most), key=lambda item: item.seconds)
        return {
            "pass_seconds": best.seconds, "own_seconds": best.own_seconds, "num_micro_batches": best.num_micro_batches
        }  # fmt: skip
