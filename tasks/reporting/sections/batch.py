"""Which global batch on how many ranks has an equally good model first: predicted from the noise of gradients."""

from operator import itemgetter

from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.records.noise_scale import NoiseScale
from tasks.reporting.blocks import Block, Charts, Fold, Items, Table, Text, tabulate
from tasks.reporting.goodput import Goodput, GoodputPoint, describe_noise
from tasks.reporting.results import Results
from tasks.reporting.tell_quality import describe_seeds, list_others, tell_cell
from tasks.reporting.time_to_quality import CellQuality

TITLE = "Which batch?"
_RULES = {"adamw": "with the square root of the batch", "sgd": "in proportion to the batch"}
_HELD = ("Cell", "Prediction of", "Predicted", "Trained", "Off by")
_ASSUMPTIONS = [
    "The noise is that of the baseline's own training where its segments end. Between these points what is needed "
    "moves evenly, in the first segment with the training loss. Smaller ranges make more points.",
    "The learning rate fits each batch, and warm-up and the optimizer's memory last as many samples. With the same "
    "betas or momentum the memory lasts as many steps, so that in a short training a larger batch costs more.",
    "At any number of tokens both have seen as many different rows and stand at a like rate. Where the rate falls to "
    "nothing in every segment, or more epochs go over one range before the next begins, a larger batch costs more.",
    "A larger batch is more micro-batches of the same size, so that memory stays what it is.",
    "What is predicted is held against nothing here until cells with another batch are trained: docs/goodput.md.",
]


def make_blocks(results: Results) -> list[Block]:
    """Return the best point, all points and the noise that they follow from, or why there are none."""
    measured = _show_measured(results)
    goodput = results.goodput
    if goodput is None:
        return [*measured, Text(_explain_unknown(results))]
    blocks: list[Block] = [Text(describe_noise(goodput, most_ranks=results.most_ranks))]
    if goodput.best is not None:
        points = Fold("Every number of ranks and batch", [_tabulate_points(goodput)])
        blocks = [Text(describe_best(results, goodput.best)), *blocks, Charts("batch"), points]
    elif results.is_withheld:
        blocks.append(Text(wording.FOLLOWS))
    assumed = Fold("What this takes for granted", [Items(_ASSUMPTIONS)])
    noise = Fold("The noise of gradients along the training", [_tabulate_noise(goodput), _list_coordinates(goodput)])
    return [*measured, *blocks, noise, assumed]


def _explain_unknown(results: Results) -> str:
    """Return why no batch is predicted, in one sentence."""
    if results.noise_left_out is None:
        return "The gradient noise scale was not measured: quality.noise_batches is 0, or a range is too short."
    return f"No batch is predicted, since {results.noise_left_out}."


def _show_measured(results: Results) -> list[Block]:
    """Return the times to quality of other trainings, both speedups apart; nothing where there are none."""
    found = results.time_to_quality
    if found is None:
        return []
    which = "which params.yaml states" if found.is_stated else f"the highest that {results.baseline.cell} ended with"
    how = (
        f"Time to quality: training seconds until the held-out loss was {wording.format_loss(found.target_loss)} "
        f"{results.loss_unit}, {which}. It is evaluated outside the clock, after every segment, and taken to fall "
        f"evenly between two evaluations. The speed per {results.unit} is another figure: it does not ask what a "
        f"{results.unit} teaches. These cells are other trainings, so gates about the same work do not apply to them."
    )
    told = [f"{tell_cell(results, one)}." for one in list_others(results)]
    times = Items([f"{one[:1].upper()}{one[1:]}" for one in told])
    return [Text(how), _tabulate_times(results), times, *_hold_predictions(results)]


def _hold_predictions(results: Results) -> list[Block]:
    """Return what was predicted of every cell with another batch beside what it trained, and what is doubted."""
    others = list_others(results)
    rows = [row for one in others for row in _list_predicted(results, one)]
    said = [f"{one.cell}: nothing is predicted, {one.not_predicted}." for one in others if one.not_predicted]
    said += [f"{one.cell}: {one.prediction_doubt}." for one in others if one.prediction_doubt]
    table = tabulate(
        "What the noise of gradients predicted of these cells, and what they trained",
        [(heading, itemgetter(place)) for place, heading in enumerate(_HELD)],
        rows,
        num_row_headings=2,
    )
    return [*[table] * bool(rows), *[Items(said)] * bool(said)]


def _list_predicted(results: Results, one: CellQuality) -> list[tuple[str, ...]]:
    """Return a row each of the tokens needed and of the time; where the target was not reached, what is known of it."""
    figures = (
        (f"{results.unit}s needed", one.predicted_data, one.data, one.data_above, ("above", "below")),
        ("as soon", one.predicted, one.speedup, one.speedup_below, ("below", "above")),
    )
    rows = list[tuple[str, ...]]()
    for what, predicted, trained, bound, (side, off) in figures:
        if predicted is None:
            continue
        came, error = "not reached", wording.NOT_AVAILABLE
        if trained is not None:
            came, error = wording.format_ratio(trained), wording.format_signed_percent(predicted.value / trained - 1)
        elif bound is not None:
            came = f"not reached: {side} {wording.format_ratio(bound)}"
            error = f"{off} {wording.format_signed_percent(predicted.value / bound - 1)}"
        elif one.num_reached == len(one.seeds):
            came = wording.NOT_AVAILABLE
        rows.append((one.cell, what, wording.format_ratio_with_interval(predicted), came, error))
    return rows


def _tabulate_times(results: Results) -> Table:
    assert results.time_to_quality is not None

    def show_speedup(one: CellQuality) -> str:
        if one.cell == results.baseline.cell:
            return wording.BASELINE
        if one.standing.state == "withheld":
            return wording.WITHHELD
        if one.speedup is None:
            below = "" if one.speedup_below is None else f" (below {wording.format_ratio(one.speedup_below)})"
            return f"not reached{below}" if one.num_reached < len(one.seeds) else wording.NOT_AVAILABLE
        doubt = "; unproven" if one.standing.state == "unproven" else ""
        return f"{wording.format_ratio(one.speedup)} ({describe_seeds(one)}{doubt})"

    def show_seconds(one: CellQuality) -> str:
        known = [seed.seconds_to_target for seed in one.seeds]
        return ", ".join("not reached" if each is None else wording.format_seconds(each) for each in known)

    def show_estimate(estimate: Estimate | None) -> str:
        return wording.format_optional(estimate, wording.format_ratio_with_interval)

    return tabulate(
        "Time to an equally good model, and the speed per token apart from it",
        [
            ("Cell", lambda one: one.cell),
            ("Global batch", lambda one: str(one.global_batch_size)),
            ("Learning rate", lambda one: f"{one.learning_rate:.3g}" + (f" ({one.rule})" if one.rule else "")),
            ("Seconds to quality", show_seconds),
            ("As soon", show_speedup),
            ("Tokens needed", lambda one: wording.format_optional(one.data, wording.format_ratio)),
            ("Speed per token", lambda one: show_estimate(one.speed_per_token)),
        ],
        results.time_to_quality.cells,
    ).replace_unit(results.unit)


def describe_best(results: Results, best: GoodputPoint) -> str:
    """Return `8 ranks at a batch of 64: 3.4x the tokens per second, each token counts 0.81, so 2.8x sooner.`"""
    ranks = wording.format_plural(best.world_size, "rank")
    unit = f"{results.unit}s"
    counts = wording.format_three_digits(1 / best.data.value)
    return (
        f"Predicted: {ranks} at a batch of {best.global_batch_size} give "
        f"{wording.format_ratio(best.throughput.value)} the {unit} per second of {results.baseline.cell}; each of them "
        f"counts {counts}, so an equally good model is there "
        f"{wording.format_ratio_with_interval(best.speedup)} as soon. {_advise_rate(results)}"
    )


def _advise_rate(results: Results) -> str:
    rule = _RULES.get(str(results.comparison.train.get("optimizer", "adamw")), _RULES["adamw"])
    return f"That takes a learning rate that fits the batch: let it grow {rule}, and try a little beside it."


def _tabulate_points(goodput: Goodput) -> Table:
    def show(estimate: Estimate) -> str:
        return wording.format_ratio_with_interval(estimate)

    return tabulate(
        "Predicted, against the baseline at its own batch",
        [
            ("Ranks", lambda one: str(one.world_size)),
            ("Global batch", lambda one: str(one.global_batch_size)),
            ("Throughput", lambda one: show(one.throughput)),
            ("Tokens needed", lambda one: show(one.data)),
            ("As soon", lambda one: show(one.speedup)),
        ],
        goodput.points,
        num_row_headings=2,
    )


def _tabulate_noise(goodput: Goodput) -> Table:
    def show(one: NoiseScale) -> str:
        value = wording.format_optional(one.value, wording.format_three_digits)
        high = "no end" if one.high is None else wording.format_three_digits(one.high)
        return f"{value} ({wording.format_three_digits(one.low)} to {high})"

    return tabulate(
        "Gradient noise scale along the baseline's training, in samples, 95 % intervals",
        [
            ("After", lambda one: one.point),
            ("Rows of", lambda one: one.range),
            ("Noise scale", show),
            ("Batches", lambda one: f"{one.num_batches} of {one.batch_size}"),
        ],
        goodput.noise_scales,
    )


def _list_coordinates(goodput: Goodput) -> Items:
    """Say once of what the noise is at which points; in the table it would be a column as wide as the page."""
    points: dict[str, list[str]] = {}
    for one in goodput.noise_scales:
        points.setdefault(one.coordinates, []).append(one.point)
    return Items([f"{', '.join(names)}: {coordinates}." for coordinates, names in points.items()])
