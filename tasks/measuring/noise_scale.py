"""The gradient noise scale: how many samples a batch has when noise and signal in its gradient are as large.

Of McCandlish et al. 2018, An Empirical Model of Large-Batch Training, appendix A.1, for parts with any number of
labels. A batch is cut at random into k parts. The gradient of part i, the mean over its n_i labels, has the expected
squared norm |G|^2 + T / n_i, where G is the true gradient and T the trace of the covariance of one label's; that of all
N labels together has |G|^2 + T / N. Weighted by n_i / N, the parts give two equations for both. Ratios of means over
many batches are what is reported, never means of ratios, and their interval is Fieller's (1954, Some Problems in
Interval Estimation), which has no upper end where the noise leaves no gradient to be seen.

It is taken at fixed weights, by one process without a clock: nothing of it is in any timed step. A training by AdamW
has the noise scale of AdamW's coordinates (tasks/equivalence/reference/batch_squares.py), in which an update is one of
plain gradients: Pollux's own definition (Qiao et al. 2021, OSDI), which preconditions the gradient.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tasks.records.noise_scale import NoiseScale
from training.config import TrainingConfig

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from tasks.equivalence.reference.batch_squares import BatchSquares, SecondMoments
    from tasks.equivalence.reference.update import OneProcess

_FEWEST_PARTS = 4
"""Of a batch: with two, half of its freedom is spent on the mean."""
FEWEST_BATCHES = 4
"""Below, the interval says hardly anything."""
_FEWEST_UNTIL_KNOWN = 8
"""Before so many batches nobody asks whether more are needed: of few, an interval may be narrow by luck."""
_KNOWN_TO = 0.1
"""Half of the interval of the samples that 4 times the batch needs, as a share, at which no more batches are taken."""
FILLING = 4
"""Batches from which AdamW's memory is filled where the training has none."""


class Moments(NamedTuple):
    """What a batch says of the gradient, both without bias."""

    squared_norm: float
    """Of the true gradient."""
    trace: float
    """Of the covariance of one sample's gradient."""


@dataclass(frozen=True)
class Ratio:
    """A ratio of two means and its interval; above 0."""

    value: float | None
    """None where the lower mean is not above 0."""
    low: float
    high: float | None
    """None where the interval has no end."""


def estimate_moments(batch: "BatchSquares") -> Moments:
    """Return the two unknowns of the two equations above; ValueError for fewer than two parts."""
    labels, k = np.asarray(batch.num_labels, dtype=np.float64), len(batch.num_labels)
    if k < 2:
        raise ValueError(f"a batch of {k} parts tells no noise; allowed: at least 2")
    total = labels.sum()
    of_label = (batch.mean_square - batch.square_of_all) * total / (k - 1)
    return Moments(batch.square_of_all - of_label / total, of_label * batch.num_samples / total)


def estimate_noise_ratio(moments: Sequence[Moments]) -> Ratio:
    """Return mean trace / mean squared norm over batches that are independent of each other, in samples; at 95 %.

    Raises ValueError for fewer than `FEWEST_BATCHES`.
    """
    if len(moments) < FEWEST_BATCHES:
        raise ValueError(f"{len(moments)} batches give no interval; allowed: at least {FEWEST_BATCHES}")
    from scipy.special import stdtrit  # a third of a second

    norms, traces = np.array(moments).T
    spread = np.cov(norms, traces) / len(moments) * float(stdtrit(len(moments) - 1, 0.975)) ** 2
    norm, trace = float(norms.mean()), float(traces.mean())
    # Fieller: the ratios r with (trace - r norm)^2 <= t^2 var(trace - r norm), a r^2 - 2 b r + c <= 0.
    a, b, c = norm**2 - spread[0, 0], trace * norm - spread[0, 1], trace**2 - spread[1, 1]
    root = math.sqrt(max(b * b - a * c, 0.0))
    value = max(trace / norm, 0.0) if norm > 0 else None
    if a > 0 and norm > 0:
        return Ratio(value, max((b - root) / a, 0.0), max((b + root) / a, 0.0))
    # Of the two branches of a hyperbola the one above 0.
    return Ratio(value, max((b - root) / a, 0.0) if a < 0 < c else 0.0, None)


class Origin(NamedTuple):
    """Where the second moments come from that AdamW's coordinates follow from."""

    second_moments: Literal["training", "batches"] | None
    """As NoiseScale says."""
    why: str | None
    """Why not from the training, which is beyond its start."""


def split_for_noise(config: TrainingConfig) -> tuple[TrainingConfig, int]:
    """Return what one process is told, whose steps are the parts of a batch, in fp32; and how many make a batch.

    A batch is about as large as the training's.
    """
    # Batch normalisation is over parts of one size.
    size = config.statistics_rows or max(min(config.micro_batch_size, config.global_batch_size // _FEWEST_PARTS), 1)
    told = dataclasses.replace(
        config, strategy="single", options={}, world_size=1, precision="fp32", exact=False, compile=False,
        micro_batch_size=size, global_batch_size=size,
    )  # fmt: skip
    return told, max(config.global_batch_size // size, _FEWEST_PARTS)


def collect_squares(
    config: TrainingConfig,
    weights: Mapping[str, "Tensor"] | None,
    *,
    num_batches: int,
    state: Mapping[str, Any] | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[list["BatchSquares"], Origin]:
    """Return the squares of the first batches of the training's segments, at these weights or the base model's.

    With AdamW in its coordinates, by the second moments of `state`: what stands in a checkpoint's state.pt. Without
    one, by those of the segments' last batches. `advance` is told of each batch. Fewer where the segments have no more,
    a batch fewer than two parts with labels, or the interval is narrow enough.
    """
    from tasks.equivalence.reference.update import OneProcess

    told, num_parts = split_for_noise(config)
    process, found = OneProcess(told), list["BatchSquares"]()
    if weights is not None:
        process.begin_at(weights)
    moments, origin = _find_moments(process, told, weights, state)
    if origin.second_moments == "batches":
        for turn in range(min(FILLING, process.num_steps // num_parts)):
            last = process.num_steps - turn * num_parts
            process.square_gradients(range(last + 1 - num_parts, last + 1), moments)
    for first in range(1, process.num_steps + 2 - num_parts, num_parts):
        if len(found) == num_batches or is_known(found, config.global_batch_size):
            break
        one = process.square_gradients(range(first, first + num_parts), moments)
        advance(1)
        if one.num_samples == num_parts * told.global_batch_size and len(one.num_labels) > 1:
            found.append(one)
    return found, origin


def _find_moments(
    process: "OneProcess",
    config: TrainingConfig,
    weights: Mapping[str, "Tensor"] | None,
    state: Mapping[str, Any] | None,
) -> tuple["SecondMoments | None", Origin]:
    """Return what AdamW's coordinates follow from, and where it comes from; None of SGD, whose update is plain."""
    from tasks.equivalence.reference.batch_squares import SecondMoments, read_second_moments

    if config.optimizer != "adamw":
        return None, Origin(None, None)
    fresh = SecondMoments(beta2=config.adam_beta2, max_norm=config.max_grad_norm)
    if weights is None:
        return fresh, Origin("batches", None)
    if state is None:
        return fresh, Origin("batches", "no optimizer's state stands beside the checkpoint")
    found = read_second_moments(state, weights, process.weights, beta2=config.adam_beta2, max_norm=config.max_grad_norm)
    if isinstance(found, str):
        return fresh, Origin("batches", found)
    return found, Origin("training", None)


def is_known(found: Sequence["BatchSquares"], own: int) -> bool:
    """Return whether it is known well enough how many samples 4 times the batch needs."""
    if len(found) < _FEWEST_UNTIL_KNOWN:
        return False
    ratio = estimate_noise_ratio([estimate_moments(one) for one in found])
    if ratio.value is None or ratio.high is None:
        return False
    needed = [(one + 4 * own) / (one + own) for one in (ratio.low, ratio.value, ratio.high)]
    return needed[0] - needed[2] <= 2 * _KNOWN_TO * needed[1]


def measure_noise_scale(
    config: TrainingConfig,
    weights: Mapping[str, "Tensor"] | None,
    *,
    epoch: int,
    num_batches: int,
    state: Mapping[str, Any] | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> NoiseScale | None:
    """Return the noise scale on the rows of the config's one segment; None where it has too few of them.

    `epoch`: after which the weights were so; `state`: as above. `num_batches`: at most.
    """
    told, num_parts = split_for_noise(config)
    found, origin = collect_squares(config, weights, num_batches=num_batches, state=state, advance=advance)
    if len(found) < FEWEST_BATCHES:
        return None
    moments = [estimate_moments(one) for one in found]
    ratio, means = estimate_noise_ratio(moments), np.mean(moments, axis=0).tolist()
    return NoiseScale(
        range=config.segments[0].range, epoch=epoch, value=ratio.value, low=ratio.low, high=ratio.high,
        squared_norm=means[0], trace=means[1], num_batches=len(found),
        batch_size=num_parts * told.global_batch_size, num_parts=num_parts,
        second_moments=origin.second_moments, instead=origin.why,
    )  # fmt: skip
