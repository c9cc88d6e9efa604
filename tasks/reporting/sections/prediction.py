"""What more ranks would give, as the comparison stands and after one change."""

from tasks.gates.measured import cells_of, efficiency, left_out
from tasks.process import wording
from tasks.records.measurement import Measurement, Prediction
from tasks.reporting.blocks import Block, Charts, Heading, Items, Table, Text, tabulate
from tasks.reporting.results import Results

TITLE = "What at 4, 8, 64?"


def make_blocks(results: Results) -> list[Block]:
    """Return the predicted speedups and what they take for granted, or why there are none."""
    measurement = results.measurement
    if measurement is None:
        return [Text(wording.UNMEASURED)]
    prediction = measurement.prediction
    if results.is_withheld:
        return [Text(wording.FOLLOWS), Charts("prediction")]
    if prediction is None or not prediction.curves:
        return [Text(left_out(measurement, "prediction") or "There was nothing to predict from.")]
    blocks: list[Block] = [Charts("prediction"), _tabulate_as_it_is(measurement, prediction)]
    if len(prediction.curves) > 1:
        blocks.append(_tabulate_changes(prediction))
    if prediction.assumptions:
        blocks += [Heading("What the prediction takes for granted"), Items(prediction.assumptions)]
    return blocks


def _tabulate_as_it_is(measurement: Measurement, prediction: Prediction) -> Table:
    base = cells_of(measurement)[0].world_size
    return tabulate(
        "Speedup by number of ranks, as it is, 90 % intervals",
        [
            ("Ranks", lambda point: str(point.world_size)),
            ("Predicted speedup", lambda point: wording.ratio_with_interval(point.speedup)),
            ("Efficiency", lambda point: wording.percent(efficiency(point.speedup, point.world_size, base).value)),
            ("Measured speedup", lambda point: wording.if_known(point.measured, wording.ratio_with_interval)),
            ("Reach", lambda point: "extrapolated" if point.is_extrapolated else "within what was measured"),
        ],
        prediction.curves[0].points,
    )


def _tabulate_changes(prediction: Prediction) -> Table:
    sizes = sorted({point.world_size for curve in prediction.curves for point in curve.points})
    by_size = [{point.world_size: point.speedup for point in curve.points} for curve in prediction.curves]
    rows = [
        [curve.lever, *(wording.if_known(found.get(size), wording.ratio_with_interval) for size in sizes)]
        for curve, found in zip(prediction.curves, by_size, strict=True)
    ]
    ranks = [wording.counted(size, "rank") for size in sizes]
    title = "Predicted speedup after one change, 90 % intervals"
    return Table(title, ["Change", *ranks], rows, words=dict.fromkeys(ranks, "N ranks"))
