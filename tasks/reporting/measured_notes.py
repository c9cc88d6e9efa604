"""What the stage `measure` found, in sentences."""

from tasks.reporting import wording
from tasks.reporting.measured import largest_part
from tasks.reporting.measurement import Advice, Measurement
from tasks.reporting.results import Results

_UNMEASURED = "Not measured: the stage measure left no speed.json for this comparison."


def in_turns(measurement: Measurement) -> str:
    """Return how the speedup was measured, in one or two sentences."""
    return (
        f"The speedup was measured before the training: the arms took turns in {measurement.num_rounds} rounds of "
        "short blocks of real optimizer steps, in random order, one computing while the others wait; no logging, "
        "checkpoint or evaluation inside, clocks read when the device was done, the slowest rank counted. An interval "
        "is a 95 % bootstrap interval over the rounds."
    )


def noise(results: Results) -> list[str]:
    """Return what noise alone does to a ratio here and why measuring ended, one sentence each."""
    measurement = results.measurement
    if measurement is None:
        return []
    floor = measurement.noise
    low, high = f"{floor.ratio.low:.3f}x", f"{floor.ratio.high:.3f}x"
    asked = wording.small_percent(measurement.half_width_asked)
    met = "contains 1, as it should" if floor.ratio.holds_one else "does not contain 1, though nothing differed"
    return [
        f"Noise floor: {results.baseline.cell} against itself, {wording.counted(floor.num_pairs, 'pair')} of blocks, "
        f"came out as {floor.ratio.value:.3f}x ({low} to {high}): the interval {met}.",
        f"The seconds of a block scatter by {wording.small_percent(floor.coefficient_of_variation)} (standard "
        f"deviation / mean); at that noise a half-width of {asked} takes {wording.count(floor.pairs_needed)} pairs.",
        f"Measuring took {wording.seconds(measurement.seconds)} and {wording.counted(measurement.num_rounds, 'round')} "
        f"for ± {asked}. Why it stopped: {measurement.stopped_because.rstrip('.')}.",
    ]


def losses(results: Results) -> list[str]:
    """Return where each cell's seconds go, one sentence per cell."""
    measurement = results.measurement
    notes = []
    for one in [] if measurement is None else measurement.waterfalls:
        largest = largest_part(one)
        if one.verdict is not None:
            named = "" if one.verdict.startswith(one.cell) else f"{one.cell}: "
            notes.append(f"{named}{one.verdict.rstrip('.')}.")
        elif largest is not None:
            share = wording.small_percent(largest.seconds.value / one.measured_seconds)
            notes.append(f"{one.cell}: the largest part is {largest.name}, {share} of the step.")
        if one.lost_efficiency is not None and one.unexplained_efficiency is not None:
            notes.append(
                f"{one.cell} loses {wording.small_percent(one.lost_efficiency)} of its efficiency; "
                f"{wording.small_percent(one.unexplained_efficiency)} are not explained by the parts."
            )
    return notes


def nothing(results: Results) -> dict[str, str]:
    """Return section -> why it has nothing to show, for those that have nothing."""
    measurement = results.measurement
    if measurement is None:
        return dict.fromkeys(("losses", "advice", "prediction", "preflight"), _UNMEASURED)
    told = {}
    if not measurement.waterfalls:
        none = "No cell has a step that could be taken apart: that takes several ranks inside DDP."
        told["losses"] = _left_out(measurement, "waterfall: not available") or none
    if measurement.advice is None:
        off = "No change was tried: none can be here, or measure.advice in params.yaml is off."
        told["advice"] = _left_out(measurement, "advice") or off
    elif not measurement.advice.tried:
        none = "No change was tried: none of those that are known can matter here."
        told["advice"] = _could_not_run(measurement.advice) or _left_out(measurement, "advice on options: not") or none
    if results.is_withheld:
        told["prediction"] = "Withheld with the speedup, from which it follows."
    elif measurement.prediction is None or not measurement.prediction.curves:
        told["prediction"] = _left_out(measurement, "prediction") or "There was nothing to predict from."
    if not measurement.preflight.checks:
        told["preflight"] = f"The machine was {measurement.preflight.verdict}; no check was recorded."
    return told


def _left_out(measurement: Measurement, what: str) -> str | None:
    return next((sentence for sentence in measurement.left_out if what in sentence.lower()), None)


def advised(results: Results) -> str | None:
    """Return how many changes are recommended, and which could not be run; None if none was tried."""
    measurement = results.measurement
    advice = None if measurement is None else measurement.advice
    if measurement is None or advice is None or not advice.tried:
        return None
    recommended = sum(one.verdict == "recommended" for one in advice.tried)
    found = (
        f"{recommended} of {wording.counted(len(advice.tried), 'change')} made the cell faster beyond doubt: the whole "
        "interval of the gain is above 1."
        if recommended
        else "None of these changes is recommended: of none is the whole interval of the gain above 1."
    )
    more = [_left_out(measurement, f"advice {words}") for words in ("on options: not available", "is withheld")]
    return " ".join([found, *filter(None, [_could_not_run(advice), *more])])


def _could_not_run(advice: Advice) -> str | None:
    return f"Could not be run: {'; '.join(advice.failed)}." if advice.failed else None


def fitness(results: Results) -> str | None:
    """Return whether the machine was fit to measure, in one sentence; None if that was not looked at."""
    if results.measurement is None:
        return None
    preflight = results.measurement.preflight
    warnings = [check.name for check in preflight.checks if check.verdict == "warning"]
    because = f": {wording.listed(warnings)}" if warnings else ""
    return f"Before measuring, the machine was {preflight.verdict}{because}."
