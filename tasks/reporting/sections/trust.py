"""How far the measured speedups can be trusted: how quiet the machine was, and what noise alone does."""

from collections.abc import Iterator

from tasks.process import wording
from tasks.records.arm_figures import describe_quiet_turns
from tasks.records.estimate import Estimate
from tasks.records.measurement import ArmSpeed, Measurement, Preflight
from tasks.reporting.blocks import Block, Items, Text, tabulate
from tasks.reporting.results import Results

TITLE = "How far to trust it"


def make_blocks(results: Results) -> list[Block]:
    """Return what machine and noise did, what other figures say of the speedups, and how fit the machine was."""
    if results.measurement is None:
        return [Text(wording.UNMEASURED)]
    return [Items(_tell(results, results.measurement)), *_tell_preflight(results.measurement.preflight)]


def _tell_preflight(preflight: Preflight) -> list[Block]:
    """Return what was looked at before measuring, or that nothing was."""
    if not preflight.checks:
        return [Text(f"The machine was {preflight.verdict}; no check was recorded.")]
    warnings = [check.name for check in preflight.checks if check.verdict == "warning"]
    because = f": {wording.join_names(warnings)}" if warnings else ""
    table = tabulate(
        "The machine before measuring",
        [
            ("Looked at", lambda check: check.name),
            ("Finding", lambda check: check.verdict),
            ("Found", lambda check: check.found),
            ("Remedy", lambda check: check.remedy or ""),
        ],
        preflight.checks,
        num_prose=3,
    )
    return [Text(f"Before measuring, the machine was {preflight.verdict}{because}."), table]


def _tell(results: Results, measurement: Measurement) -> list[str]:
    """Return what the machine did meanwhile, what noise does to a ratio here and why measuring ended."""
    return [
        *_tell_quiet(results, measurement),
        *_tell_noise(measurement),
        f"The speedups took {measurement.stopped_because.rstrip('.')}.",
    ]


def _tell_quiet(results: Results, measurement: Measurement) -> list[str]:
    """Return how quiet the machine was, and what the speedup would be by another figure or of all turns."""
    if measurement.others_share is None:
        said = ["This machine does not tell what others used of its CPUs, so that every turn counts."]
    else:
        said = [
            f"Others used {wording.format_small_percent(measurement.others_share)} of the CPUs in the mean. "
            f"{describe_quiet_turns(measurement)}: a turn counts for a cell if that was at most "
            f"{wording.format_small_percent(measurement.most_others_share)} during its block and the first cell's."
        ]
    for arm in measurement.arms:
        if arm.speedup is None or arm.speedup_of_all_turns is None or results.is_hidden(arm.cell):
            continue
        said.append(_compare_figures(arm, arm.speedup, arm.speedup_of_all_turns))
        if arm.launch_effect is not None:
            said.append(
                f"From start to start of the ranks the speedup of {arm.cell} differs by "
                f"{wording.format_small_percent(arm.launch_effect)} (standard deviation) beyond what turns explain."
            )
    if measurement.gpu_slowed_share:
        said.append(
            "Heat or hardware held the clocks of GPUs down in "
            f"{wording.format_percent(measurement.gpu_slowed_share)} of the blocks."
        )
    if doubts := list(_list_doubts(measurement)):
        said.append(f"The interval is made wider: {', and '.join(doubts)}.")
    return said


def _list_doubts(measurement: Measurement) -> Iterator[str]:
    if measurement.alikeness is not None:
        yield (
            f"neighbouring turns are alike (autocorrelation {measurement.alikeness:.2f}), so that the machine changes "
            "more slowly than was measured"
        )
    if measurement.largest_turn is not None:
        yield (
            f"a single turn has {wording.format_percent(measurement.largest_turn)} of the scatter, so that what is so "
            "rare was hardly seen often enough"
        )


def _compare_figures(arm: ArmSpeed, quiet: Estimate, every: Estimate) -> str:
    """Return the speedup by all turns, medians and trimmed means, and whether these two disagree with the one given."""
    shown = wording.format_ratio
    told = (
        f"{arm.cell}: {shown(quiet.value)} by means of quiet turns, {wording.format_ratio_with_interval(every)} of all"
    )
    ways = {"medians": arm.speedup_of_medians, "trimmed means": arm.speedup_of_trimmed_means}
    others = {name: value for name, value in ways.items() if value is not None}
    told += "".join(f", {shown(value)} by {name}" for name, value in others.items())
    if apart := [name for name, value in others.items() if not quiet.low <= value <= quiet.high]:
        told += f". {wording.join_names(apart).capitalize()} disagree: stalls that users pay for are in the means alone"
    return f"{told}."


def _tell_noise(measurement: Measurement) -> list[str]:
    """Return what nothing but noise makes of 1."""
    floor = measurement.noise
    if floor is None:
        return ["Noise floor: too few turns to hold a cell against itself."]
    low, high = f"{floor.ratio.low:.3f}x", f"{floor.ratio.high:.3f}x"
    met = "contains 1, as it should" if floor.ratio.holds_one else "does not contain 1, though nothing differed"
    return [
        f"Noise floor: every cell against itself, {wording.format_plural(floor.num_pairs, 'pair')} of neighbouring "
        f"turns, came out as {floor.ratio.value:.3f}x ({low} to {high}): the interval {met}. The seconds of a block "
        f"scatter by {wording.format_small_percent(floor.coefficient_of_variation)} (standard deviation / mean)."
    ]
