"""Which timed blocks a published speedup is of: told from the blocks themselves, not by what counted them."""

import dataclasses
from collections import Counter
from itertools import pairwise

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import Reason, explain
from tasks.records.blocks import BlockWork
from tasks.records.measurement import MeasurementFile
from tasks.records.outputs import Outputs

MOST_OTHERS_SHARE = 0.05
"""Share of the CPUs that others may use, in the mean of a cell's turns that count: where measure.others_share lets in
more, the speedup is that of a machine that somebody else used too."""


def select_blocks(measurement: MeasurementFile, cell: str, *, phase: str | None = None) -> list[BlockWork]:
    """Return the blocks of the cell as it is trained."""
    return [
        block
        for arm in measurement.blocks
        if arm.cell == cell and arm.kind == "as trained" and phase in (None, arm.phase)
        for block in arm.blocks
    ]


def select_counted(measurement: MeasurementFile, cell: str, *, beside: str | None = None) -> list[BlockWork]:
    """Return the blocks of a cell that its speedup is of: those of turns in which its block and the first cell's were
    quiet, of launches with two of them or more.

    The first cell's count where they do for any other; `beside` one alone they count where they do for that one. All
    blocks of a cell without a speedup, for want of such turns.
    """
    blocks = select_blocks(measurement, cell, phase="speedup")
    named = {cell} if cell != next(iter(measurement.speeds)) else {beside} if beside else {*measurement.speeds}
    if not (counted := named & measurement.speedups.keys()):
        return blocks
    turns = {turn for item in counted for turn in find_quiet_turns(measurement, item)}
    return [block for block in blocks if block.turn in turns]


def find_quiet_turns(measurement: MeasurementFile, cell: str) -> set[int]:
    """Return the turns in which a cell's block and the first cell's were quiet, of launches with two or more."""
    most, first = measurement.most_others_share, next(iter(measurement.speeds))
    pair = [select_blocks(measurement, item, phase="speedup") for item in (first, cell)]
    loud = {
        block.turn
        for blocks in pair
        for block in blocks
        if ((block.others_share or 0.0) > most or (block.has_others_on_gpu and most < 1))
    }
    quiet = {item.turn: item.launch for item in pair[1] if item.turn not in loud}
    turns = Counter(quiet.values())
    return {turn for turn, launch in quiet.items() if turns[launch] > 1}


def find_missing_turns(measurement: MeasurementFile, cell: str) -> Reason | None:
    """Return what is wrong if not every turn that was run for the speedups has a block of the cell.

    Turns are numbered as they run: whoever leaves out slow ones leaves gaps. A launch burns in before its turns that
    count, and never after.
    """
    counted, burnt = (
        {block.turn: block.launch for block in select_blocks(measurement, cell, phase=phase)}
        for phase in ("speedup", "burn-in")
    )
    for before, after in pairwise(sorted(counted | burnt)):
        if after != before + 1:
            template = "{cell}: turn {turn} has no block among those of the speedups, {before} and {after} have"
            return explain("turn_missing", template, cell=cell, turn=before + 1, before=before, after=after)
    for turn, launch in burnt.items():
        if any(item < turn for item in counted if counted[item] == launch):
            template = "{cell}: turn {turn} is said to burn in after turns of the same launch that count"
            return explain("burnt_late", template, cell=cell, turn=turn)
    numbers = {"turns": len(counted), "launches": len(set(counted.values()))}
    if (*numbers.values(),) != (measurement.num_turns, measurement.num_launches):
        return explain(
            "turns_missing",
            "{cell}: {turns} turns of {launches} launches are among the blocks of the speedups, {turns_run} of "
            "{launches_run} were run",
            cell=cell, **numbers, turns_run=measurement.num_turns, launches_run=measurement.num_launches,
        )  # fmt: skip
    return None


def check_quiet_turns(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the speedup of a cell has an interval: enough turns in which others left the CPUs alone."""
    measurement = outputs.measurement
    if measurement is None or cell == outputs.params.baseline:
        return None
    seen = (
        "this machine does not tell what others use"
        if measurement.others_share is None
        else "others used {others_share:small_percent} of the CPUs in the mean"
    )
    quiet = "{cell}: {quiet_turns} of {turns:plural turn} in {launches} launches were quiet"
    numbers = {
        "cell": cell, "quiet_turns": len(find_quiet_turns(measurement, cell)), "turns": measurement.num_turns,
        "launches": measurement.num_launches, "most": measurement.most_others_share,
        "others_share": measurement.others_share,
    }  # fmt: skip
    if cell not in measurement.speedups:
        result = make_failed_finding(explain("too_few_quiet_turns", f"{quiet}, too few for an interval", **numbers))
        remedy = explain(
            "", "others may use {most:small_percent} of the CPUs; " + seen + "; stop what else runs, or give "
            "measure.max_seconds more; with measure.others_share: 1 all turns count, and the speedup is unproven",
            **numbers,
        )  # fmt: skip
        return dataclasses.replace(result, remedy=remedy.sentence)
    finding = explain("passed", quiet + " (at most {most:small_percent} by others); " + seen, **numbers)
    pair = select_counted(measurement, outputs.params.baseline, beside=cell), select_counted(measurement, cell)
    # More than a figure of this machine alone bears.
    if any(block.has_others_on_gpu for blocks in pair for block in blocks):
        loud = dataclasses.replace(finding, code="others_on_the_gpus")
        return make_unchecked_finding(loud.extend("{sentence}; in those that count others computed on the GPUs"))
    # Of either cell: what is on one alone is in their ratio.
    known = [[block.others_share for block in blocks if block.others_share is not None] for blocks in pair]
    mean = max(sum(shares) / max(len(shares), 1) for shares in known)
    if mean > MOST_OTHERS_SHARE:
        loud = dataclasses.replace(finding, code="others_on_the_cpus")
        return make_unchecked_finding(
            loud.extend(
                "{sentence}; in those that count others used {share:small_percent}, {quiet:small_percent} is quiet",
                share=mean, quiet=MOST_OTHERS_SHARE,
            )
        )  # fmt: skip
    return make_finding([], finding)
