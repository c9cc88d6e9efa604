"""Pipeline: every rank has some layers of the model, and hands hidden states on to the next and gradients back.

All stages see the same micro-batches and run the workload's own loss (split.py); the schedules are those of torch
(schedule.py). With several replicas each is such a pipeline, sees its share of the micro-batches,
and every stage adds up its gradient with the same stage of the others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.data.batches import MicroBatch
from training.process.failure import UnfitModelError
from training.step.optimizer import clip_part
from training.step.strategy import Strategy
from training.step.traffic import ALL_REDUCE, BROADCAST, SEND
from training.strategies.pipeline.schedule import ROW_DTYPE, StagedSteps, takes_micro_batches
from training.strategies.pipeline.split import Cut
from training.strategies.zero1.step import Shares

_STAGES_PER_RANK = {"interleaved": 2}
_TIMED_RUNS = 3


class Pipeline(Strategy):
    """The ranks of a replica see the same micro-batches and hold one copy of the state between them."""

    name = "pipeline"
    has_replica = False

    @classmethod
    def find_unavailable(cls, model: nn.Module, options: Mapping[str, Any]) -> str | None:
        """Return an earlier torch."""
        return None if takes_micro_batches() else f"torch {torch.__version__}"

    def place_and_select_updated(self, model: nn.Module) -> Collection[nn.Parameter] | None:
        """Keep this rank's stages; see Strategy."""
        ranks, options = self._ranks, self._options
        num_replicas, size = int(options["replicas"]), ranks.world_size
        self._num_ranks = num_ranks = size // num_replicas
        self.data_rank, self._place = divmod(ranks.rank, num_ranks)
        self.data_world_size = num_replicas
        # Where the loss is: on the last stage.
        self.counts_rows = self._place == num_ranks - 1
        self.ranks_per_copy = num_ranks, size if options["zero1"] and num_replicas > 1 else num_ranks
        per_rank = _STAGES_PER_RANK.get(options["schedule"], 1) if num_ranks > 1 else 1
        self._stages = range(self._place, per_rank * num_ranks, num_ranks)
        self._group = ranks.join_group([range(start, start + num_ranks) for start in range(0, size, num_ranks)])
        self._alike: Any = None
        self._shares: Shares | None = None
        if num_replicas > 1:
            self._alike = ranks.join_group([range(place, size, num_ranks) for place in range(num_ranks)])
            ranks.counted_groups.append(self._alike)
            if options["zero1"]:
                self._shares = Shares(
                    replace(ranks, rank=self.data_rank, world_size=num_replicas, gradient_group=self._alike)
                )
        self._cut = Cut(model, partial(self._ask_whole_model, model), num_stages=per_rank * num_ranks)
        self._stages_of = self._cut.stages_of(model)
        self._cut.keep(self._stages)
        super().place_and_select_updated(model)
        if self._shares is None:
            return None
        return self._shares.deal([part for part in model.parameters() if part.requires_grad])

    def set_up(self) -> None:
        """Make the schedule's steps, and note where this rank's squares belong in the norm."""
        if self._ranks.world_size > 1:
            self.replica.clip = self._clip
        self._steps = StagedSteps(
            self.replica, self._cut, stages=self._stages, group=self._group, schedule=self._options["schedule"],
            sent=self._sent, has_dropout=self._num_ranks > 1 and self._workload.has_dropout(self.module),
        )  # fmt: skip
        self._shared = [
            self._own[name] for name, stages in self._stages_of.items() if len(stages) > 1 and name in self._own
        ]
        """What another rank has as well: a tied embedding, on the first and the last stage."""
        # On the device from the start: a list that becomes a tensor there in a step would have the host wait for it.
        places = {name: place for place, name in enumerate(self._whole.parameters)}
        self._places = torch.tensor([places[name] for name in self._own], device=self._ranks.device)
        counts = [float(self.data_rank == 0 and self._stages_of[name][0] in self._stages) for name in self._own]
        self._counts = torch.tensor(counts, dtype=torch.float64, device=self._ranks.device)
        """Of each parameter of this rank: whether its square counts here, or on another rank that has it."""

    def _accumulate_gradient(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Leave the gradient, added up with those of the same stages of other replicas, all at once."""
        self._steps.run(micro_batches, weight=weight)
        if self._alike is not None:
            parts = [part.grad for part in self._own.values() if part.grad is not None]
            flat = torch.cat([part.reshape(-1) for part in parts])
            self._sent.count(ALL_REDUCE, flat)
            dist.all_reduce(flat, group=self._alike)
            for part, whole in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(whole.view_as(part))
        self._add_shared()

    def _send_weights(self) -> None:
        """Have what this rank updated on the same ranks of all replicas, where it updates a share only."""
        if self._shares is not None:
            self._sent.add(BROADCAST, self._shares.send())

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
        squares = torch.zeros(len(self._whole.parameters), dtype=torch.float64, device=self._ranks.device)
        norms = dict(zip(gradient, torch._foreach_norm(list(gradient.values())), strict=True))
        without = torch.zeros((), device=self._ranks.device)
        every = torch.stack([norms.get(name, without) for name in self._own]).double()
        squares[self._places] = every.square() * self._counts
        self._sent.count(ALL_REDUCE, squares)
        dist.all_reduce(squares, group=self._ranks.gradient_group)
        return clip_part(list(gradient.values()), squares.sum(), most=self._config.max_grad_norm)

    def sum_losses(self, micro_batches: Sequence[MicroBatch]) -> Tensor:
        """Raise UnfitModelError, as `build` does where it is asked for: there is no forward alone here."""
        raise UnfitModelError("eval_every_steps is not available for the strategy pipeline")

    def warm_up(self, micro_batch: MicroBatch) -> None:
        """Run forward, backward and communication, change nothing, with all in memory that a step has there."""
        number = self._config.global_batch_size // self._config.micro_batch_size // self.data_world_size
        for micro_batches in self.replica.generate_warm_up_steps(micro_batch):
            self._accumulate_gradient(micro_batches[:1] * max(self._steps.count_filling(number), 1), weight=0.0)
            self._send_weights()
            self.replica.reset()

    def gives_finite_gradient(self, micro_batches: Sequence[MicroBatch], *, num_targets: int) -> bool:
        """Return whether this stage makes what is not finite: not where it was given that, forward or backward."""
        self.replica.reset()
        self._steps.is_watched = self._steps.was_given_finite = True
        self._steps.run(micro_batches, weight=1 / max(num_targets, 1))
        self._steps.is_watched = False
        is_finite = self.replica.has_finite_gradient()
        self.replica.reset()
        return is_finite or not self._steps.was_given_finite

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
        """Return the seconds of the quickest of the longest steps; see StagedSteps.time."""
        timed = [item for _ in range(_TIMED_RUNS) for item in self._steps.time(run)]
        return min(timed, key=lambda item: (-item["num_micro_batches"], item["pass_seconds"]))


STRATEGY = Pipeline
