"""How far the measured speedups can be trusted: how quiet the machine was, and what noise alone does."""

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
    if measurement.gpu_slowed_share:
        said.append(
            "Heat or hardware held the clocks of GPUs down in "
            f"{wording.format_percent(measurement.gpu_slowed_share)} of the blocks."
        )
    said.append(
        "Intervals are of this session. What slows one arm for longer than a session lasts, or happens in none of its "
        "turns, is in no interval; on simulated machines they cover in 97 % of sessions: docs/measuring.md."
    )
    return [
        *said,
        *_tell_noise(measurement),
        f"The speedups took {measurement.stopped_because.rstrip('.')}.",
    ]


def _compare_figures(arm: ArmSpeed, quiet: Estimate, every: Estimate) -> str:
    """Return the speedup by all turns and by medians, and whether these disagree with the one given."""
    shown = wording.format_ratio
    told = (
        f"{arm.cell}: {shown(quiet.value)} by means of quiet turns, {wording.format_ratio_with_interval(every)} of all"
    )
    if arm.speedup_of_medians is not None:
        told += f", {shown(arm.speedup_of_medians)} by medians"
        if not quiet.contains(arm.speedup_of_medians):
            told += ", which disagree: stalls that users pay for are in the means alone"
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
