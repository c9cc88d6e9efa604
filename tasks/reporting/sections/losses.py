"""Where the seconds of each cell's step go, and how much of the ideal step is lost on the way."""

from tasks.process import wording
from tasks.records.arm_figures import explain_omission, find_largest_part
from tasks.records.measurement import Waterfall
from tasks.reporting.blocks import Block, Charts, Fold, Items, Table, Text
from tasks.reporting.results import Results

TITLE = "Why not more?"


def make_blocks(results: Results) -> list[Block]:
    """Return a sentence, a bar and a table per cell, or why there are none."""
    if results.measurement is None:
        return [Text(wording.UNMEASURED)]
    waterfalls, waits = results.measurement.waterfalls, results.measurement.waits
    if not waterfalls:
        none = "No cell has a step that could be taken apart: that takes several ranks inside DDP."
        why = explain_omission(results.measurement, "waterfall: not available") or none
        return [Text(why), *[Items(waits)] * bool(waits), *_tell_more_ranks(results)]
    told = [sentence for one in waterfalls for sentence in [*_tell(one), *_tell_own_timer(one)]] + waits
    # Of cells beside these, which have none.
    told += [sentence for sentence in results.measurement.left_out if ": A waterfall: not available" in sentence]
    parts = Fold("Part by part, and one step rank by rank", [Charts("timeline"), *map(_tabulate, waterfalls)])
    return [Items(told), Charts("losses"), parts, *_tell_more_ranks(results)]


def _tell_more_ranks(results: Results) -> list[Block]:
    """Return what the line says of more ranks, in a sentence that calls it a model; nothing where it says nothing."""
    if not results.more_ranks:
        return []
    told = [
        f"{wording.format_plural(one.world_size, 'rank')} like those of {one.cell} would give "
        f"{wording.format_ratio_with_interval(one.speedup)}"
        for one in results.more_ranks
    ]
    return [
        Text(
            f"A model, not a measurement: {wording.join_names(told)}, if what {results.more_ranks[0].cell} loses grows "
            "as an exchange over links like the one that was probed (latency with every hop, bytes as in a ring) and "
            "all ranks are alike."
        )
    ]


def _tell(one: Waterfall) -> list[str]:
    """Return where the cell's seconds go, and what of that is explained."""
    told = []
    if one.verdict is not None:
        named = "" if one.verdict.startswith(one.cell) else f"{one.cell}: "
        told.append(f"{named}{one.verdict.rstrip('.')}.")
    elif (largest := find_largest_part(one)) is not None:
        share = wording.format_small_percent(largest.seconds.value / one.measured_seconds)
        told.append(f"{one.cell}: the largest part is {largest.name}, {share} of the step.")
    if one.lost_efficiency is not None and one.unexplained_efficiency is not None:
        told.append(
            f"The headline's runs of {one.cell} lost {wording.format_small_percent(one.lost_efficiency)} of its "
            "efficiency; this breakdown is from separate runs, and leaves "
            f"{wording.format_small_percent(one.unexplained_efficiency)} unexplained."
        )
    return told


def _tell_own_timer(waterfall: Waterfall) -> list[str]:
    """Return what DDP's own timer says, where it disagrees."""
    told = []
    own = waterfall.ddp_exposed_communication_seconds
    exposed = next((part.seconds for part in waterfall.parts if part.name == "exposed communication"), None)
    if own is not None and exposed is not None and not exposed.low <= own <= exposed.high:
        told.append(
            f"DDP's own timer disagrees with the exposed communication: {wording.format_duration(own)} against "
            f"{wording.format_duration_with_interval(exposed)}. It times one step, and counts waiting for a slower "
            "rank, which is another part here."
        )
    return told


def _tabulate(waterfall: Waterfall) -> Table:
    """Return what the step is made of; without ideal and unexplained share while those are withheld."""

    def make_row(name: str, seconds: float, shown: str, timer: str, how: str) -> list[str]:
        return [name, shown, wording.format_small_percent(seconds / waterfall.measured_seconds), timer, how]

    own = waterfall.ddp_exposed_communication_seconds
    rows = []
    if waterfall.ideal_seconds is not None:
        shown = wording.format_duration(waterfall.ideal_seconds)
        rows.append(
            make_row("ideal", waterfall.ideal_seconds, shown, "", "the baseline's step / how many times more ranks")
        )
    for part in waterfall.parts:
        timer = wording.format_duration(own) if own is not None and part.name == "exposed communication" else ""
        shown = wording.format_duration_with_interval(part.seconds)
        rows.append(make_row(part.name, part.seconds.value, shown, timer, part.how))
    if waterfall.unexplained_seconds is not None:
        seconds = waterfall.unexplained_seconds
        rows.append(
            make_row("unexplained", seconds, wording.format_duration(seconds), "", "measured - ideal - all parts")
        )
    measured = waterfall.measured_seconds
    rows.append(
        make_row("measured", measured, wording.format_duration(measured), "", "real steps of the cell as it is trained")
    )
    headings = ["Part", "Seconds per step", "Share of step", "DDP's timer", "How measured"]
    if own is None:
        del headings[3]
        rows = [[*cells[:3], cells[4]] for cells in rows]
    whence = (
        "what its step is made of" if waterfall.ideal_seconds is None else "from the ideal step to the measured one"
    )
    return Table(f"{waterfall.cell}: {whence}", headings, rows, num_prose=1)
