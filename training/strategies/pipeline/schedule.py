"""A step's micro-batches through the stages of a cut model, by the schedules of torch.distributed.pipelining.

Schedules want one shape per step, which micro-batches do not have. So hidden states travel as rows of one tensor that
is as long as the step's longest micro-batch needs, rounded up to a power of two: a few lengths, each with a schedule of
its own, and nothing is computed for what is filled up.
"""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)

from training.data.batches import MicroBatch
from training.process.heartbeat import StepSection
from training.step.replica import Replica
from training.step.traffic import SEND, Sent
from training.strategies.pipeline.split import Cut

ROW_DTYPE = torch.float32
"""Of hidden states on their way, as they are between the layers of our models even where those compute in bf16."""


def takes_micro_batches() -> bool:
    """Return whether torch's schedules take micro-batches as they are; earlier ones split a batch themselves."""
    return "kwarg_mbs" in inspect.signature(ScheduleGPipe.step).parameters


class _TimedStage(PipelineStage):
    """A stage whose backward can be timed."""

    time_pass: Callable[[], AbstractContextManager[None]] = nullcontext

    def backward_one_chunk(self, *arguments: Any, **more: Any) -> None:
        """Go backward through one micro-batch."""
        with self.time_pass():
            super().backward_one_chunk(*arguments, **more)


class _Stage(nn.Module):
    """What a schedule runs: given the rows that were received, it returns those that are to be handed on."""

    def __init__(self, run: Callable[[int, Tensor, int], Tensor], stage: int) -> None:
        super().__init__()
        self._run, self._stage = run, stage

    def forward(self, received: Tensor, *, number: int) -> Tensor:
        """`number`: which of the step's micro-batches it is."""
        return self._run(self._stage, received, number)


class StagedSteps:
    """Runs the forward and backward passes of this rank's stages; the gradient is added to the parameters'."""

    def __init__(
        self,
        replica: Replica,
        cut: Cut,
        *,
        stages: Sequence[int],
        group: Any,
        schedule: str,
        sent: Sent,
        has_dropout: bool,
    ) -> None:
        """`group`: the ranks whose stages these are, which have them in turn; `has_dropout`: whether random numbers are
        drawn, which each stage then goes on to draw where the one before it ended, as one process would.
        """
        self._replica, self._cut, self._stages = replica, cut, stages
        self._last = len(cut.layers_of_stages) - 1
        self._group, self._schedule, self._sent = group, schedule, sent
        self._num_ranks = (self._last + 1) // len(stages)
        self._schedules: dict[tuple[int, int], Any] = {}
        """(Micro-batches, rows) -> the schedule of such a step."""
        self._step: Sequence[MicroBatch] = ()
        self._weight = 0.0
        self._num_rows = 0
        self.most_rows = 0
        """The longest that rows were."""
        self._own_seconds: float | None = None
        num_bytes = _get_random_state(replica.device).nbytes if has_dropout else 0
        self._num_state_rows = -(-num_bytes // (cut.hidden_size * ROW_DTYPE.itemsize))
        self.is_watched = self.was_given_finite = False
        """Whether it is looked for what is not finite; and whether that was not among what other stages gave."""

    def count_filling(self, number: int) -> int:
        """Return how many micro-batches bring in memory all that a step of so many does.

        Those whose hidden states are there at most and, where they come one by one, another that has left its gradient.
        """
        return min(number, self._num_ranks + 1) if self._schedule == "1f1b" else number

    def time(self, run: Callable[[], object]) -> list[dict[str, float]]:
        """Return what each step took that `run` makes; each pass is then waited for by itself.

        `pass_seconds`: from the first forward or backward pass to the last, all ranks' waits for each other included;
        `own_seconds`: of them what this rank computed; `num_micro_batches`: of the step.
        """
        timeds: list[dict[str, float]] = []

        def run_timed(micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
            self._own_seconds = 0.0
            started = _read_time(self._replica.device)
            StagedSteps.run(self, micro_batches, weight=weight)
            seconds = _read_time(self._replica.device) - started
            timeds.append(
                {"pass_seconds": seconds, "own_seconds": self._own_seconds, "num_micro_batches": len(micro_batches)}
            )
            self._own_seconds = None

        self.run = run_timed  # type: ignore[method-assign]
        try:
            run()
        finally:
            del self.run
        return timeds

    @contextmanager
    def _time_pass(self) -> Iterator[None]:
        """Count what comes inside as computing, where it is timed."""
        if self._own_seconds is None:
            yield
            return
        started = _read_time(self._replica.device)
        yield
        self._own_seconds += _read_time(self._replica.device) - started

    def run(self, micro_batches: Sequence[MicroBatch], *, weight: float) -> None:
        """Run all forward and backward passes of a step."""
        self._step, self._weight = micro_batches, weight
        longest = max(part.input_ids.numel() for part in micro_batches)
        self._num_rows = (1 << (longest - 1).bit_length()) + self._num_state_rows
        self.most_rows = max(self.most_rows, self._num_rows)
        key = (len(micro_batches), self._num_rows)
        if key not in self._schedules:
            self._schedules[key] = self._make_schedule(*key)
        numbers = list(range(len(micro_batches)))
        given = (torch.empty(0, device=self._replica.device),) if 0 in self._stages else ()
        self._schedules[key].step(
            arg_mbs=[given for _ in numbers], kwarg_mbs=[{"number": number} for number in numbers],
            target_mbs=numbers, return_outputs=False,
        )  # fmt: skip
        self._step = ()

    def _make_schedule(self, number: int, num_rows: int) -> Any:
        rows = torch.empty(num_rows, self._cut.hidden_size, dtype=ROW_DTYPE, device="meta", requires_grad=True)
        stages: list[Any] = [
            _TimedStage(
                _Stage(self._run_stage, stage), stage, self._last + 1, self._replica.device,
                input_args=torch.empty(0, device="meta") if stage == 0 else rows,
                output_args=torch.empty((), device="meta", requires_grad=True) if stage == self._last else rows,
                group=self._group,
            )
            for stage in self._stages
        ]  # fmt: skip
        for stage in stages:
            stage.time_pass = self._time_pass
        more: dict[str, Any] = {"loss_fn": self._weigh_loss, "scale_grads": False}
        if len(stages) > 1:
            # torch's interleaved 1F1B takes rounds of equally many; the last step of a range may have one too many.
            is_even = number % max(number // self._num_ranks, 1) == 0
            return (ScheduleInterleaved1F1B if is_even else ScheduleLoopedBFS)(stages, number, **more)
        # With fewer micro-batches than stages 1F1B is GPipe, and torch's refuses.
        is_1f1b = self._schedule == "1f1b" and number > self._last
        return (Schedule1F1B if is_1f1b else ScheduleGPipe)(stages[0], number, **more)

    def _run_stage(self, stage: int, rows: Tensor, number: int) -> Tensor:
        """Return the sum of losses on the last stage, else rows to be handed on."""
        micro_batch = self._step[number]
        self._replica.on_section(StepSection.FORWARD)
        received, num_rows = None, micro_batch.input_ids.numel()
        if stage > 0:
            rows.register_hook(lambda gradient: self._sent.count(SEND, gradient))
            received = rows[:num_rows].view(*micro_batch.input_ids.shape, -1)
            self._watch(received)
        with self._time_pass():
            result = self._cut.run(
                stage, received,
                lambda: self._replica.forward(self._replica.module, micro_batch, weight=self._weight),
                begin=partial(self._go_on_drawing, rows),
            )  # fmt: skip
        if stage == self._last:
            return result
        num_blank = self._num_rows - num_rows - self._num_state_rows
        handed_on = F.pad(result.to(ROW_DTYPE).reshape(num_rows, -1), (0, 0, 0, num_blank))
        if self._num_state_rows:
            handed_on = torch.cat([handed_on, self._make_state_rows()])
        handed_on.register_hook(self._note_received_gradient)
        self._sent.count(SEND, handed_on)
        return handed_on

    def _make_state_rows(self) -> Tensor:
        """Return rows whose bytes are where the random numbers stand."""
        state = _get_random_state(self._replica.device)
        size = self._num_state_rows * self._cut.hidden_size * ROW_DTYPE.itemsize
        rows = F.pad(state, (0, size - len(state))).view(ROW_DTYPE)
        return rows.view(self._num_state_rows, -1).to(self._replica.device)

    def _go_on_drawing(self, rows: Tensor) -> None:
        """Have random numbers go on where the stage before has ended, which is in the last rows."""
        if self._num_state_rows:
            state = rows.detach()[-self._num_state_rows :].cpu().view(-1).view(torch.uint8)
            _set_random_state(self._replica.device, state)

    def _weigh_loss(self, loss_sum: Tensor, number: int) -> Tensor:
        self._replica.on_section(StepSection.BACKWARD)
        self._replica.count_loss(loss_sum)
        return loss_sum * self._weight

    def _note_received_gradient(self, gradient: Tensor) -> None:
        self._replica.on_section(StepSection.BACKWARD)
        self._watch(gradient)

    def _watch(self, given: Tensor) -> None:
        if self.is_watched:
            self.was_given_finite = self.was_given_finite and bool(given.isfinite().all())


def _read_time(device: torch.device) -> float:
    """Return the clock's seconds once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _get_random_state(device: torch.device) -> Tensor:
    """Return where the random numbers of the device stand: (n,) uint8, on the CPU."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_random_state(device: torch.device, padded: Tensor) -> None:
    """Have them go on from there."""
    state = padded[: len(_get_random_state(device))].clone()
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
