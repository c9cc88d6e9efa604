"""How much sooner another training has a model as good as the baseline's: held-out loss over training seconds.

As MLPerf does (Mattson et al. 2020, MLPerf Training Benchmark): one target for all, evaluated at stated points outside
the clock, several seeds, and who does not come there has no time. Between two points the loss is taken to fall evenly
with the seconds. The speed per token, which says nothing of the model, stands beside it and is another figure.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from tasks.params import Params
from tasks.process import wording
from tasks.records.arm_figures import select_arm
from tasks.records.estimate import Estimate
from tasks.records.evaluation import EvaluatedEpoch
from tasks.records.facts import Record
from tasks.records.gate import Standing
from tasks.records.outputs import Outputs, RunOutputs
from tasks.reporting.goodput import compute_data, pair_scales
from tasks.reporting.own_noise import explain_left_out

_FEWEST_FOR_INTERVAL = 3
"""Seeds; two say next to nothing of their spread."""


class QualityPoint(Record):
    """A training where its model was evaluated."""

    train_seconds: float
    """Seconds of optimizer steps up to there, the slowest rank's."""
    num_tokens: int
    """Tokens learned from up to there."""
    heldout_loss: float
    """On the held-out rows, in nats per label."""


class SeedQuality(Record):
    """One training of a cell."""

    seed: int
    """What it was trained from."""
    points: list[QualityPoint]
    """Where it was evaluated: the base model, then after each segment."""
    seconds_to_target: float | None
    """Seconds of optimizer steps until the target; null if it was not reached."""
    tokens_to_target: float | None
    """Tokens until the target; null likewise."""


class CellQuality(Record):
    """One cell's way to the target."""

    cell: str
    """Name of the cell."""
    global_batch_size: int
    """Samples per optimizer step."""
    learning_rate: float
    """Peak."""
    rule: str | None
    """How the learning rate grew with the batch: sqrt, linear or none; null for cells with the baseline's own batch."""
    betas: tuple[float, float] | None = None
    """AdamW's, where they grew with the batch so that its memory lasts as many samples; null where they did not."""
    how: str | None = None
    """How its strategy is another training, such as `exchanges every 8 steps`; null where it is not."""
    seeds: list[SeedQuality]
    """Its trainings."""
    speed_per_token: Estimate | None = None
    """Tokens per second / the baseline's, as measured in turns; null if not measured or withheld. Not of a model."""
    speedup: float | None = None
    """Baseline's seconds to the target / the cell's, geometric mean over seeds; null if a seed did not come there."""
    low: float | None = None
    """Lower end of its 95 % interval over seeds; null with fewer than three."""
    high: float | None = None
    """Upper end."""
    data: float | None = None
    """Tokens to the target / the baseline's, geometric mean over seeds; null as the speedup is."""
    speedup_below: float | None = None
    """What the speedup is below where a seed did not come there: all that it trained stands for the time it would have
    taken. Null where all came there, or one of the baseline did not."""
    data_above: float | None = None
    """What the tokens to the target / the baseline's are above; null likewise."""
    device_time: float | None = None
    """Ranks x seconds to the target / the baseline's; null as the speedup is."""
    predicted: Estimate | None = None
    """The speedup that the noise scale and the measured speed per token foretold; null where either is not known."""
    predicted_error: float | None = None
    """predicted / speedup - 1; null where either is."""
    predicted_data: Estimate | None = None
    """The tokens to the target / the baseline's that the noise scale foretold; null where `not_predicted` says why."""
    predicted_data_error: float | None = None
    """predicted_data / data - 1; null where either is."""
    prediction_doubt: str | None = None
    """What the prediction takes for granted and this cell does not do; null where it does all of it."""
    not_predicted: str | None = None
    """Why no tokens are predicted; null where they are, of the baseline and of a withheld cell."""
    standing: Standing
    """What the gates leave of it; those that ask for the same work are not among them."""

    @property
    def num_reached(self) -> int:
        """Trainings that came to the target."""
        return sum(one.seconds_to_target is not None for one in self.seeds)


class TimeToQuality(Record):
    """When the cells came to a held-out loss."""

    target_loss: float
    """In nats per label."""
    is_stated: bool
    """Whether params.yaml states it; else it is the highest that a seed of the baseline ends with."""
    cells: list[CellQuality] = Field(min_length=1)
    """The baseline first, then the cells that are another training."""


def find_crossing(values: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return at which x the loss first is the target or below; (x, loss) by x, between which it falls evenly.

    None if it never is. The first point counts as reached where it already is. A loss that is no finite number, as of
    nothing that was to be predicted, is none: its point is passed over.
    """
    values = [(x, loss) for x, loss in values if math.isfinite(loss)]
    for place, (x, loss) in enumerate(values):
        if loss <= target:
            if place == 0:
                return x
            before_x, before = values[place - 1]
            return before_x + (x - before_x) * (before - target) / (before - loss)
    return None


def estimate_over_seeds(ratios: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the geometric mean of ratios above 0, and the ends of Student's 95 % interval of its logarithm."""
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    mean = float(logs.mean())
    if len(logs) < _FEWEST_FOR_INTERVAL:
        return math.exp(mean), None, None
    from scipy.special import stdtrit  # a third of a second

    half = float(stdtrit(len(logs) - 1, 0.975)) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def compute_time_to_quality(outputs: Outputs, standings: dict[str, Standing]) -> TimeToQuality | None:
    """Return when the baseline and all other trainings came to the target; None where there are none."""
    params = outputs.params
    if not params.other_trainings:
        return None
    cells = [params.baseline, *params.other_trainings]
    paths = {cell: _list_paths(outputs, cell) for cell in cells}
    stated = params.quality.target_heldout_loss
    ends = [points[-1].heldout_loss for points in paths[params.baseline].values()]
    target = max(ends) if stated is None else stated
    found = {
        cell: [_make_seed(seed, points, target) for seed, points in by_seed.items()] for cell, by_seed in paths.items()
    }
    first = found[params.baseline]
    return TimeToQuality(
        target_loss=target,
        is_stated=stated is not None,
        cells=[_make_cell(outputs, cell, found[cell], first, standings[cell]) for cell in cells],
    )


def _list_paths(outputs: Outputs, cell: str) -> dict[int, list[QualityPoint]]:
    """Return seed -> where the cell's training from it was evaluated."""
    evaluation = outputs.evaluation
    runs = {outputs.params.train.seed: (outputs.runs[cell], evaluation.epochs.get(cell, []))}
    for seed, others in outputs.seeds.items():
        runs[seed] = others[cell], evaluation.seeds.get(seed, {}).get(cell, [])
    base = QualityPoint(train_seconds=0.0, num_tokens=0, heldout_loss=evaluation.models["base"].loss)
    return {seed: [base, *_list_points(run, epochs)] for seed, (run, epochs) in runs.items()}


def _list_points(run: RunOutputs, epochs: Sequence[EvaluatedEpoch]) -> list[QualityPoint]:
    losses = {(one.range, one.epoch): one.loss for one in epochs}
    points, seconds, tokens = [], 0.0, 0
    for segment in run.segments:
        facts = segment.facts
        seconds, tokens = seconds + facts.train_seconds, tokens + facts.num_tokens
        if (key := (facts.range, facts.epoch)) in losses:
            points.append(QualityPoint(train_seconds=seconds, num_tokens=tokens, heldout_loss=losses[key]))
    return points


def _make_seed(seed: int, points: list[QualityPoint], target: float) -> SeedQuality:
    return SeedQuality(
        seed=seed,
        points=points,
        seconds_to_target=find_crossing([(one.train_seconds, one.heldout_loss) for one in points], target),
        tokens_to_target=find_crossing([(one.num_tokens, one.heldout_loss) for one in points], target),
    )


def _make_cell(
    outputs: Outputs, cell: str, seeds: list[SeedQuality], first: list[SeedQuality], standing: Standing
) -> CellQuality:
    params, train = outputs.params, outputs.params.train_of(cell)
    spread, is_given = params.cells[cell], standing.state != "withheld" and cell != params.baseline
    per_token = None
    if outputs.measurement is not None and is_given:
        per_token = select_arm(outputs.measurement, cell).speedup
    facts: dict[str, Any] = {
        "cell": cell, "global_batch_size": train.global_batch_size, "learning_rate": train.learning_rate,
        "rule": spread.batch.learning_rate if spread.batch else None,
        "betas": _find_betas(params, cell), "how": spread.other_training.how if spread.other_training else None,
        "seeds": seeds, "standing": standing,
        "speed_per_token": per_token, **(_predict(outputs, cell, per_token) if is_given else {}),
    }  # fmt: skip
    seconds = [(its.seconds_to_target, own.seconds_to_target) for its, own in zip(first, seeds, strict=True)]
    tokens = [(its.tokens_to_target, own.tokens_to_target) for its, own in zip(first, seeds, strict=True)]
    ratios = [its / own for its, own in seconds if its and own]
    needed = [own / its for its, own in tokens if its and own]
    if is_given and len(ratios) == len(needed) == len(seeds):
        speedup, low, high = estimate_over_seeds(ratios)
        ranks = spread.world_size / params.cells[params.baseline].world_size
        data = estimate_over_seeds(needed)[0]
        facts |= {"speedup": speedup, "low": low, "high": high, "data": data, "device_time": ranks / speedup}
    elif is_given and all(its and its > 0 for its, _ in seconds):
        ends = [one.points[-1] for one in seeds]
        spent = [(its or 0) / (own or end.train_seconds) for (its, own), end in zip(seconds, ends, strict=True)]
        learned = [(own or end.num_tokens) / (its or 0) for (its, own), end in zip(tokens, ends, strict=True)]
        facts |= {"speedup_below": estimate_over_seeds(spent)[0], "data_above": estimate_over_seeds(learned)[0]}
    for foretold, came in (("predicted", "speedup"), ("predicted_data", "data")):
        if facts.get(foretold) is not None and facts.get(came) is not None:
            facts[f"{foretold}_error"] = facts[foretold].value / facts[came] - 1
    return CellQuality.model_validate(facts)


def _find_betas(params: Params, cell: str) -> tuple[float, float] | None:
    own, batch = params.train_of(cell), params.cells[cell].batch
    return (own.adam_beta1, own.adam_beta2) if batch is not None and batch.betas == "samples" else None


def explain_unlike_rows(params: Params, cell: str) -> str | None:
    """Return why the cell has seen other rows than the baseline at the same number of tokens, which is then doubted.

    None where it has seen the same: it goes over each range as often before the next one begins, or there is but one.
    """
    own, first = params.train_of(cell).epochs, params.train.epochs
    if len(params.ranges) == 1 or own == first:
        return None
    return (
        f"it goes over each range {own} times before the next begins, {params.baseline} "
        f"{wording.format_plural(first, 'time')}: it learns longer from the same rows, of which the noise scale "
        "knows nothing, and may take more tokens than predicted"
    )


def _predict(outputs: Outputs, cell: str, per_token: Estimate | None) -> dict[str, Any]:
    """Return the tokens that the noise scale says are needed, the measured speed per token / them, and what is doubted.

    Or why nothing is predicted.
    """
    params, spans = outputs.params, pair_scales(outputs)
    if (other := params.cells[cell].other_training) is not None:
        why = f"it is another training by more than its batch: it {other.how}"
        return {"not_predicted": why}
    if not spans:
        unknown = "the gradient noise scale is not known where each of the baseline's segments ends"
        return {"not_predicted": explain_left_out(outputs) or unknown}
    data = compute_data(spans, params.train_of(cell).global_batch_size, params.train.global_batch_size)
    found = {"predicted_data": data, "prediction_doubt": explain_unlike_rows(params, cell)}
    if per_token is None:
        return found
    speedup = Estimate(
        value=per_token.value / data.value, low=per_token.low / data.high, high=per_token.high / data.low
    )
    return {**found, "predicted": speedup}
