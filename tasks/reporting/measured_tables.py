"""The tables of what the stage `measure` found, as words, for the page and the markdown alike."""

from collections.abc import Callable

from tasks.reporting import wording
from tasks.reporting.measured import cells_of, efficiency
from tasks.reporting.measurement import Advised, ArmSpeed, Measurement, Prediction, Waterfall
from tasks.reporting.results import Results
from tasks.reporting.tables import Table, karp_flatt

_BASELINE = "baseline"


_Columns = list[tuple[str, Callable[[ArmSpeed], str]]]


def arms(results: Results) -> list[Table]:
    """Return how much faster each arm was, and what it got done; nothing if unmeasured."""
    measurement = results.measurement
    return [] if measurement is None else [_speedups(results, measurement), _rates(measurement, results.unit)]


def _speedups(results: Results, measurement: Measurement) -> Table:
    has_wrapped = any(arm.is_wrapped_baseline for arm in measurement.arms)
    columns: _Columns = [
        ("Arm", lambda arm: arm.arm),
        ("Ranks", lambda arm: str(arm.world_size)),
        ("Step time", lambda arm: wording.span_with_interval(arm.step_seconds)),
        ("Speedup", lambda arm: _speedup(results, arm)),
        *([("Over wrapped", lambda arm: _over_wrapped(results, arm))] if has_wrapped else []),
        ("Efficiency", lambda arm: _efficiency(results, arm)),
        ("Karp-Flatt", lambda arm: _karp_flatt(results, arm)),
    ]
    title = f"Each arm, measured in turns, {measurement.scaling} scaling, 95 % intervals"
    return _by_arm(title, columns, measurement)


def _rates(measurement: Measurement, unit: str) -> Table:
    """Return what each arm got done per second, its percentiles those of the rank that has the highest.

    Memory and power only where an arm has them.
    """
    columns: _Columns = [
        ("Arm", lambda arm: arm.arm),
        ("Step p50", lambda arm: wording.span(max(arm.step_p50_seconds, default=arm.step_seconds.value))),
        ("Step p95", lambda arm: wording.span(max(arm.step_p95_seconds, default=arm.step_seconds.value))),
        ("Tokens/s", lambda arm: wording.three_digits(arm.tokens_per_second)),
        *([("Padded tokens/s", _padded)] if unit == "token" else []),
        ("Samples/s", lambda arm: wording.three_digits(arm.samples_per_second)),
        ("MFU", _mfu),
    ]
    optional: list[tuple[str, Callable[[ArmSpeed], float | None], Callable[[float], str]]] = [
        ("Peak memory", lambda arm: arm.peak_memory_gib, lambda gib: f"{wording.three_digits(gib)} GiB"),
        ("GPU use", lambda arm: arm.gpu_utilisation, wording.percent),
        ("Power", lambda arm: arm.gpu_watts, lambda watts: f"{wording.three_digits(watts)} W"),
        ("Energy", lambda arm: arm.joules_per_token, lambda joules: f"{wording.three_digits(joules)} J/{unit}"),
    ]
    columns += [
        (name, _where_known(figure, shown))
        for name, figure, shown in optional
        if any(figure(arm) is not None for arm in measurement.arms)
    ]
    return _by_arm("What each arm got done", columns, measurement).in_unit(unit)


def _padded(arm: ArmSpeed) -> str:
    return wording.three_digits(arm.padded_tokens_per_second)


def _by_arm(title: str, columns: _Columns, measurement: Measurement) -> Table:
    rows = [[value(arm) for _, value in columns] for arm in measurement.arms]
    return Table(title, [name for name, _ in columns], rows)


def _where_known(
    figure: Callable[[ArmSpeed], float | None], shown: Callable[[float], str]
) -> Callable[[ArmSpeed], str]:
    def value(arm: ArmSpeed) -> str:
        found = figure(arm)
        return wording.NOT_AVAILABLE if found is None else shown(found)

    return value


def _is_baseline(results: Results, arm: ArmSpeed) -> bool:
    return arm.cell == results.baseline.cell and not arm.is_wrapped_baseline


def _speedup(results: Results, arm: ArmSpeed) -> str:
    if _is_baseline(results, arm):
        return _BASELINE
    if arm.speedup is None and not results.is_hidden(arm.cell):
        return wording.NOT_AVAILABLE
    return wording.ratio_with_interval(arm.speedup)


def _over_wrapped(results: Results, arm: ArmSpeed) -> str:
    if arm.is_wrapped_baseline:
        return _BASELINE
    if arm.speedup_over_wrapped is None and (_is_baseline(results, arm) or not results.is_hidden(arm.cell)):
        return wording.NOT_AVAILABLE
    return wording.ratio_with_interval(arm.speedup_over_wrapped)


def _efficiency(results: Results, arm: ArmSpeed) -> str:
    if _is_baseline(results, arm):
        return _BASELINE
    if arm.speedup is None:
        return wording.WITHHELD if results.is_hidden(arm.cell) else wording.NOT_AVAILABLE
    share = efficiency(arm.speedup, arm.world_size, results.baseline.world_size)
    return wording.percent_with_interval(share)


def _karp_flatt(results: Results, arm: ArmSpeed) -> str:
    if arm.is_wrapped_baseline:
        return wording.NOT_AVAILABLE
    return karp_flatt(results, next(cell for cell in results.cells if cell.cell == arm.cell))


def _mfu(arm: ArmSpeed) -> str:
    if arm.mfu is None:
        return wording.NOT_AVAILABLE
    palm = "" if arm.mfu_palm is None else f" (PaLM {wording.small_percent(arm.mfu_palm)})"
    return wording.small_percent(arm.mfu) + palm


def waterfalls(results: Results) -> list[Table]:
    """Return for each cell what its step is made of; without ideal and unexplained share while those are withheld."""
    return [] if results.measurement is None else [_waterfall(one) for one in results.measurement.waterfalls]


def _waterfall(waterfall: Waterfall) -> Table:
    def row(name: str, seconds: float, shown: str, timer: str, how: str) -> list[str]:
        return [name, shown, wording.small_percent(seconds / waterfall.measured_seconds), timer, how]

    own = waterfall.ddp_exposed_communication_seconds
    rows = []
    if waterfall.ideal_seconds is not None:
        shown = wording.span(waterfall.ideal_seconds)
        rows.append(row("ideal", waterfall.ideal_seconds, shown, "", "the baseline's step / how many times more ranks"))
    for part in waterfall.parts:
        timer = wording.span(own) if own is not None and part.name == "exposed communication" else ""
        shown = wording.span_with_interval(part.seconds)
        rows.append(row(part.name, part.seconds.value, shown, timer, part.how))
    if waterfall.unexplained_seconds is not None:
        seconds = waterfall.unexplained_seconds
        rows.append(row("unexplained", seconds, wording.span(seconds), "", "measured - ideal - all parts"))
    measured = waterfall.measured_seconds
    rows.append(row("measured", measured, wording.span(measured), "", "real steps of the cell as it is trained"))
    headings = ["Part", "Seconds per step", "Share of step", "DDP's timer", "How measured"]
    if own is None:
        del headings[3]
        rows = [[*cells[:3], cells[4]] for cells in rows]
    whence = (
        "what its step is made of" if waterfall.ideal_seconds is None else "from the ideal step to the measured one"
    )
    return Table(f"{waterfall.cell}: {whence}", headings, rows, num_prose=1)


def advice(results: Results) -> Table | None:
    """Return what was tried and what it gained, the combination last; None if nothing was."""
    measurement = results.measurement
    if measurement is None or measurement.advice is None or not measurement.advice.tried:
        return None
    tried = [_advised(one, one.change) for one in measurement.advice.tried]
    if (combined := measurement.advice.combined) is not None:
        tried.append(_advised(combined, f"all together: {combined.change}"))
    headings = ["Change", "Cell", "Gain", "Advice", "Note"]
    return Table("Changes that were tried, the best first", headings, tried, num_prose=2)


def _advised(one: Advised, change: str) -> list[str]:
    return [change, one.cell, wording.ratio_with_interval(one.gain), one.verdict, one.note or ""]


def patches(results: Results) -> list[tuple[str, str]]:
    """Return (change and gain, what to write into params.yaml) of what is recommended, the combination first."""
    measurement = results.measurement
    if measurement is None or measurement.advice is None:
        return []
    combined = measurement.advice.combined
    found = [*([] if combined is None else [(combined, "All together")])]
    found += [(one, one.change) for one in measurement.advice.tried]
    return [
        (f"{title}: {wording.ratio_with_interval(one.gain)} on {one.cell}", one.patch.strip("\n"))
        for one, title in found
        if one.verdict == "recommended" and one.patch.strip()
    ]


def predictions(results: Results) -> list[Table]:
    """Return the predicted speedups as the comparison stands, and those after each change beside them."""
    measurement = results.measurement
    if measurement is None or measurement.prediction is None or not measurement.prediction.curves:
        return []
    found = [_as_it_is(measurement)]
    if len(measurement.prediction.curves) > 1:
        found.append(_levers(measurement.prediction))
    return found


def _as_it_is(measurement: Measurement) -> Table:
    assert measurement.prediction is not None
    base = cells_of(measurement)[0].world_size
    rows = [
        [
            str(point.world_size),
            wording.ratio_with_interval(point.speedup),
            f"{wording.percent(efficiency(point.speedup, point.world_size, base).value)}",
            wording.NOT_AVAILABLE if point.measured is None else wording.ratio_with_interval(point.measured),
            "extrapolated" if point.is_extrapolated else "within what was measured",
        ]
        for point in measurement.prediction.curves[0].points
    ]
    headings = ["Ranks", "Predicted speedup", "Efficiency", "Measured speedup", "Reach"]
    return Table("Speedup by number of ranks, as it is, 90 % intervals", headings, rows)


def _levers(prediction: Prediction) -> Table:
    sizes = sorted({point.world_size for curve in prediction.curves for point in curve.points})
    by_size = [{point.world_size: point.speedup for point in curve.points} for curve in prediction.curves]
    rows = [
        [
            curve.lever,
            *(wording.ratio_with_interval(found[size]) if size in found else wording.NOT_AVAILABLE for size in sizes),
        ]
        for curve, found in zip(prediction.curves, by_size, strict=True)
    ]
    headings = ["Change", *(wording.counted(size, "rank") for size in sizes)]
    return Table("Predicted speedup after one change, 90 % intervals", headings, rows)


def preflight(results: Results) -> Table | None:
    """Return what was looked at before measuring; None if nothing was."""
    measurement = results.measurement
    if measurement is None or not measurement.preflight.checks:
        return None
    rows = [[check.name, check.verdict, check.found, check.remedy or ""] for check in measurement.preflight.checks]
    return Table("The machine before measuring", ["Looked at", "Finding", "Found", "Remedy"], rows, num_prose=3)
