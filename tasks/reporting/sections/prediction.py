"""What more ranks would give, as the comparison stands and after one change."""

from tasks.process import wording
from tasks.records.arm_figures import explain_omission, select_cell_arms
from tasks.records.efficiency import estimate_efficiency
from tasks.records.measurement import Measurement
from tasks.records.predicted import PredictedPoint, Prediction
from tasks.reporting.blocks import Block, Charts, Fold, Items, Table, Text, tabulate
from tasks.reporting.results import Results

TITLE = "What would more ranks give?"


def make_blocks(results: Results) -> list[Block]:
    """Return the predicted speedups and what they take for granted, or why there are none."""
    measurement = results.measurement
    if measurement is None:
        return [Text(wording.UNMEASURED)]
    if results.is_withheld:
        return [Text(wording.FOLLOWS), Charts("prediction")]
    predictions = [one for one in measurement.predictions if one.curves]
    if not predictions:
        return [Text(explain_omission(measurement, "prediction") or "There was nothing to predict from.")]
    withheld = explain_omission(measurement, "prediction is withheld")
    blocks: list[Block] = [Charts("prediction"), *([] if withheld is None else [Text(withheld)])]
    for prediction in predictions:
        of_cells = f" of {wording.join_names(prediction.cells)}" if len(predictions) > 1 else ""
        points = _tabulate_speedups(measurement, prediction, of_cells)
        blocks.append(Fold(f"Every number of ranks{of_cells}", [points]))
        told = [*_describe_errors(prediction), *prediction.left_out]
        if told:
            blocks.append(Items(told))
        if len(prediction.curves) > 1:
            blocks.append(Fold(f"Predicted after one change{of_cells}", [_tabulate_changes(prediction, of_cells)]))
        if prediction.assumptions:
            blocks.append(Fold(f"What the prediction{of_cells} takes for granted", [Items(prediction.assumptions)]))
    return blocks


def _tabulate_speedups(measurement: Measurement, prediction: Prediction, of_cells: str) -> Table:
    base = select_cell_arms(measurement)[0].world_size
    return tabulate(
        f"Speedup{of_cells} by number of ranks, as it is",
        [
            ("Ranks", lambda point: str(point.world_size)),
            ("Speedup", lambda point: wording.format_ratio_with_interval(point.shown)),
            (
                "Efficiency",
                lambda point: wording.format_percent(estimate_efficiency(point.shown, point.world_size, base).value),
            ),
            ("Where from", _describe_source),
        ],
        prediction.curves[0].points,
    )


def _describe_source(point: PredictedPoint) -> str:
    if point.speedup is None:
        return "measured, 95 % interval"
    return f"predicted, 90 % interval, {'extrapolated' if point.is_extrapolated else 'within what was measured'}"


def _describe_errors(prediction: Prediction) -> list[str]:
    """Return by how much the model alone is off at each measured number of ranks."""
    return [
        f"The model is off by {wording.format_signed_percent(point.model_error)} at "
        f"{wording.format_plural(point.world_size, 'rank')}: by itself it says "
        f"{wording.format_ratio_with_interval(point.model)}."
        for point in prediction.curves[0].points
        if point.model_error is not None
    ]


def _tabulate_changes(prediction: Prediction, of_cells: str) -> Table:
    sizes = sorted({point.world_size for curve in prediction.curves for point in curve.points})
    by_size = [{point.world_size: point.shown for point in curve.points} for curve in prediction.curves]
    rows = [
        [curve.lever, *(wording.format_optional(found.get(size), wording.format_ratio_with_interval) for size in sizes)]
        for curve, found in zip(prediction.curves, by_size, strict=True)
    ]
    ranks = [wording.format_plural(size, "rank") for size in sizes]
    title = f"Predicted speedup{of_cells} after one change, 90 % intervals; what was measured with 95 %"
    return Table(title, ["Change", *ranks], rows, words=dict.fromkeys(ranks, "N ranks"))
