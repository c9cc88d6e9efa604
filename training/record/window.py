"""The steps between two log points: timed as one span, and looked at only when it is over."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from training.data.batches import MicroBatch
from training.data.plan import StepPlan
from training.process.distributed import Ranks
from training.process.failure import DivergedError, GradientNotFiniteError, RanksDisagreeError
from training.process.heartbeat import StepSection
from training.record.cpu_use import RecentCpuUse, compute_others_share
from training.step.strategy import StepResult


class DeviceClock:
    """Marks in the device's time, read when all is over: on CUDA nothing waits in between."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"

    def mark(self) -> Any:
        """Return a mark of now."""
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def measure(self, earlier: Any, later: Any) -> float:
        """Return the seconds from one mark to another; the device must have done all."""
        seconds: float = earlier.elapsed_time(later) / 1000 if self._is_cuda else later - earlier
        return seconds


class Pace:
    """Per step, the seconds from the end of one exchange of gradients to the last backward before the next.

    In between a rank waits for nobody. On CUDA they are seconds of the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._clock = DeviceClock(device)
        self.restart()

    def restart(self) -> None:
        """Forget what was noted; the first step begins now."""
        self._spans: list[tuple[Any, Any]] = []
        self._began = self._last_backward = self._clock.mark()

    def go_on(self) -> None:
        """Have the next step begin now, and keep what was noted."""
        self._began = self._clock.mark()

    def enter(self, section: StepSection) -> None:
        """Note what matters of the rank's way through a step."""
        if section is StepSection.BACKWARD:
            self._last_backward = self._clock.mark()
        elif section is StepSection.UPDATE:
            self._spans.append((self._began, self._last_backward))
            self._began = self._clock.mark()

    def seconds(self) -> list[float]:
        """Return the seconds of every step since `restart`; the device must have done all."""
        return [self._clock.measure(began, last) for began, last in self._spans]


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """One optimizer step, all ranks together."""

    step: int
    """From 1, over the whole run."""
    loss_sum: float
    """Sum of the losses of all labels."""
    num_tokens: int
    """What was learned from, in the workload's unit, as counted by the ranks that had it."""
    num_targets: int
    """Labels that were learned from: what `loss_sum` is divided by."""
    num_samples: int
    """Samples that were consumed."""
    num_padding_tokens: int
    """Positions that held padding."""
    learning_rate: float
    """Learning rate of the update."""
    grad_norm: float | None
    """L2 norm of the gradient before clipping; None if it was not finite and the fp16 scaler skipped the step."""
    seconds: float
    """Seconds of the span it belongs to / steps in it; the span of the slowest rank."""
    data_wait_seconds: float
    """Seconds that the rank which waited longest had no data; part of `seconds`."""
    other_seconds: float
    """Part of the clock's seconds in which a rank neither computed nor waited for data or for the device.

    Of the rank where it is farthest from 0; below 0 if the clock ran for less than all that. What was before a step is
    counted with it, what was after it only if the clock stopped then.
    """
    rank_own_seconds: list[float]
    """Of every rank: what it did without waiting for another; 0 where the strategy does not say."""
    rank_own_positions: list[int]
    """Of every rank: how many positions it computed in those seconds, a backward pass counted twice."""
    others_share: float | None = None
    """Share of the CPUs of its ranks that others used in the last second or two; None where that is not known."""
    heldout_loss: float | None = None
    """Mean loss on the held-out rows after it, in nats per label; None where they were not looked at."""
    heldout_rows: str | None = None
    """Digest of their slice."""
    heldout_seconds: float | None = None
    """What that took, no part of `seconds`."""


class Window:
    """Collects steps without looking at the device; `close` waits for it and returns what they were."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.pace = Pace(ranks.device)
        self._cpu_use = RecentCpuUse()
        self.open()

    def open(self) -> None:
        """Start the clock."""
        self._steps: list[tuple[int, StepPlan, float]] = []
        self._results: list[StepResult] = []
        self._counts: list[tuple[int, int, int, int, float, int]] = []
        self._others: list[float] = []
        self._computed = self._known = 0.0
        self._ranks.synchronize()
        self._cpu_use.mark()
        self.pace.restart()
        self._started = self._seen = time.perf_counter()

    @contextlib.contextmanager
    def time_computation(self) -> Iterator[None]:
        """Count what runs inside as seconds that belong to a step: the step itself, a word among the ranks."""
        started = time.perf_counter()
        yield
        self._computed += time.perf_counter() - started

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Let the clock stand between two steps, once the device has done the first of them."""
        with self.time_computation():
            self._ranks.synchronize()
        stopped = time.perf_counter()
        yield
        gone = time.perf_counter() - stopped
        self._started += gone
        self._seen += gone
        self.pace.go_on()

    def add(
        self, step: int, result: StepResult, micro_batches: Sequence[MicroBatch], *,
        planned: StepPlan, learning_rate: float, data_wait_seconds: float, counts_rows: bool = True,
    ) -> None:  # fmt: skip
        """Note a step; `planned` is what the plan says of all ranks.

        `counts_rows`: whether this rank counts what is in them, or another one that has the same.
        """
        now = time.perf_counter()
        known = self._computed + data_wait_seconds
        self._others.append(now - self._seen - known)
        self._known += known
        self._seen, self._computed = now, 0.0
        self._steps.append((step, planned, learning_rate))
        self._results.append(result)
        counted = micro_batches if counts_rows else ()
        self._counts.append(
            (
                sum(part.num_tokens for part in counted),
                sum(part.num_targets for part in counted),
                sum(part.num_samples for part in counted),
                sum(part.num_padding_tokens for part in counted),
                data_wait_seconds,
                count_own_positions(micro_batches),
            )
        )

    def close(self, *, forgives_overflow: Callable[[], bool]) -> list[StepFacts]:
        """Stop the clock on all ranks and return the steps since `open`.

        Raises DivergedError, on all ranks alike, if a loss is not finite, and GradientNotFiniteError for the norm of a
        gradient; a norm may be where `forgives_overflow`, which is asked when the clock stands, since it may wait.
        """
        waited_from = time.perf_counter()
        self._ranks.synchronize()
        seconds = time.perf_counter() - self._started
        self._known += self._computed + time.perf_counter() - waited_from
        # All that the clock has run for and no step can account for, as the clock has it.
        self._others[-1] += seconds - self._known - sum(self._others)
        self.closed_at = time.perf_counter()
        used = self._cpu_use.measure()
        losses = torch.stack([result.loss_sum for result in self._results]).double().tolist()
        norms = torch.stack([result.grad_norm for result in self._results]).double().tolist()
        own = self.pace.seconds() or [0.0] * len(losses)
        noted = zip(losses, norms, self._others, own, self._counts, strict=True)
        mine = [(loss, norm, seconds, other, alone, *counts, *used) for loss, norm, other, alone, counts in noted]
        everyones = self._ranks.gather(mine)
        forgives = forgives_overflow()
        return [self._make_step_facts(*step, everyones[:, index], forgives) for index, step in enumerate(self._steps)]

    def _make_step_facts(
        self, step: int, planned: StepPlan, learning_rate: float, ranks: np.ndarray, forgives_overflow: bool
    ) -> StepFacts:
        """Return the step's facts; `ranks`: (world_size, 16), one row per rank."""
        losses, norms, seconds, others, own, tokens, targets, samples, padding, waits, positions = ranks.T[:11]
        if problem := _explain_not_finite(step, "loss", losses):
            raise DivergedError(problem)
        if not forgives_overflow and (problem := _explain_not_finite(step, "gradient norm", norms)):
            raise GradientNotFiniteError(problem, step=step)
        both = ((tokens, planned.num_tokens, "tokens"), (targets, planned.num_targets, "labels"))
        for counted, expected, what in both:
            if int(counted.sum()) != expected:
                seen = f"step {step}: the ranks learned from {counted.astype(int).tolist()} {what}"
                raise RanksDisagreeError(f"{seen}, the plan has {expected}")
        return StepFacts(
            step=step,
            loss_sum=float(losses.sum()),
            num_tokens=planned.num_tokens,
            num_targets=planned.num_targets,
            num_samples=int(samples.sum()),
            num_padding_tokens=int(padding.sum()),
            learning_rate=learning_rate,
            grad_norm=float(norms[0]) if math.isfinite(norms[0]) else None,
            seconds=float(seconds.max()) / len(self._steps),
            data_wait_seconds=float(waits.max()),
            other_seconds=float(others[np.abs(others).argmax()]),
            rank_own_seconds=own.tolist(),
            rank_own_positions=positions.astype(int).tolist(),
            others_share=compute_others_share([RecentCpuUse.read(row) for row in ranks[:, 11:]]),
        )


def _explain_not_finite(step: int, name: str, values: np.ndarray) -> str | None:
    bad = [rank for rank, value in enumerate(values.tolist()) if not math.isfinite(value)]
    if not bad:
        return None
    where = "every rank" if len(bad) == len(values) else f"rank {', '.join(map(str, bad))}"
    return (
        f"diverged at step {step}: {name} is {values[bad[0]]} on {where}; nothing of it was saved; lower "
        "learning_rate, or look at the samples that ledger and plan name for this step"
    )


def count_own_positions(micro_batches: Sequence[MicroBatch]) -> int:
    """Return how much work those seconds hold: positions once for each forward and twice for each backward but the
    last."""
    sizes = [part.num_positions for part in micro_batches]
    return 3 * sum(sizes) - 2 * sizes[-1]


_ASTRAY_MULTIPLE = 2.0
_ASTRAY_NATS = 1.0
"""A smoothed loss above so many times the segment's first, and above that by so many nats per token, has gone astray.

Both, since small losses vary by multiples and large ones by nats."""
_ASTRAY_STEPS = 5
"""For so many steps on end."""
_FIRST_ROWS = 8
"""The first loss is the largest of the steps until so many rows were seen: a few may be easy."""
_EASY_BY_NATS = 5.0
"""By so much at most are the first step's rows taken to be easier: above that it is the weights."""
_SMOOTHING = 0.8
"""What the smoothed loss keeps of itself in a step: it remembers about five."""


class DivergenceRule:
    """Takes the losses of a segment in order; those of its first rows are where it comes from.

    In all but the smallest steps that is the loss before any update of the segment, on rows of the same range. The same
    on all ranks, since the losses are.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._highest_first = math.inf
        self._num_rows = 0
        self._smoothed = 0.0
        self._num_above = 0

    def take(self, step: int, loss: float, *, num_targets: int, num_samples: int) -> None:
        """Take the next step's loss, nats per token; raises DivergedError once the rule says so.

        A step without a target has no loss, and logs 0: as the first one it would have every other go astray.
        """
        if not num_targets:
            return
        if self._first is None:
            self._first = self._smoothed = loss
            self._highest_first = loss + _EASY_BY_NATS
        elif self._num_rows < _FIRST_ROWS:
            self._first = max(self._first, min(loss, self._highest_first))
        self._num_rows += num_samples
        self._smoothed = _SMOOTHING * self._smoothed + (1 - _SMOOTHING) * loss
        allowed = max(_ASTRAY_MULTIPLE * self._first, self._first + _ASTRAY_NATS)
        self._num_above = self._num_above + 1 if self._smoothed > allowed else 0
        if self._num_above >= _ASTRAY_STEPS:
            raise DivergedError(
                f"diverged at step {step}: the smoothed loss is {self._smoothed:.4g} and has been above {allowed:.4g} "
                f"for {_ASTRAY_STEPS} steps, the segment began at {self._first:.4g}; nothing of it was saved after the "
                "last checkpoint; lower learning_rate, or use more warmup_steps"
            )
