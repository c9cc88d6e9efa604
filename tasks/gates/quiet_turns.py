"""Was the machine quiet for long enough to say how much faster a cell is?"""

import dataclasses

from tasks.gates.counted_blocks import find_quiet_turns, select_counted
from tasks.process import wording
from tasks.records.arm_figures import select_arm
from tasks.records.gate import Finding, make_finding, make_unchecked_finding
from tasks.records.measurement import MeasurementFile
from tasks.records.outputs import Outputs

MOST_OTHERS_SHARE = 0.05
"""Share of the CPUs that others may use, in the mean of the turns that count: where measure.others_share lets in more,
the speedup is that of a machine that somebody else used too."""


def check_quiet_turns(outputs: Outputs, cell: str) -> Finding | None:
    """Check that the speedup of a cell has an interval: enough turns in which others left the CPUs alone."""
    measurement = outputs.measurement
    if measurement is None or cell == outputs.params.baseline:
        return None
    most = wording.format_small_percent(measurement.most_others_share)
    seen = (
        "this machine does not tell what others use"
        if measurement.others_share is None
        else f"others used {wording.format_small_percent(measurement.others_share)} of the CPUs in the mean"
    )
    num_quiet = len(find_quiet_turns(measurement, cell))
    told = (
        f"{cell}: {num_quiet} of {wording.format_plural(measurement.num_turns, 'turn')} in "
        f"{measurement.num_launches} starts were quiet"
    )
    numbers = {"quiet_turns": num_quiet, "turns": measurement.num_turns}
    if select_arm(measurement, cell).speedup is None:
        remedy = (
            f"quiet is at most {most} by others; {seen}; stop what else runs, or give measure.max_seconds more; with "
            "measure.others_share: 1 all turns count, and the speedup is unproven"
        )
        found = make_finding([f"{told}, too few for an interval"], otherwise="", numbers=numbers)
        return dataclasses.replace(found, remedy=remedy)
    told = f"{told} (at most {most} by others); {seen}"
    loud = _find_loudness(measurement, outputs.params.baseline, cell)
    if loud is not None:
        return make_unchecked_finding(f"{told}; in those that count {loud}")
    return make_finding([], otherwise=told, numbers=numbers)


def _find_loudness(measurement: MeasurementFile, first: str, cell: str) -> str | None:
    """Return what others did in the turns that count, if it is more than a figure of this machine alone bears."""
    blocks = [*select_counted(measurement, first, beside=cell), *select_counted(measurement, cell)]
    if any(block.has_others_on_gpu for block in blocks):
        return "others computed on the GPUs"
    known = [block.others_share for block in blocks if block.others_share is not None]
    mean = sum(known) / len(known) if known else 0.0
    if mean <= MOST_OTHERS_SHARE:
        return None
    share, most = (wording.format_small_percent(one) for one in (mean, MOST_OTHERS_SHARE))
    return f"others used {share}, {most} is quiet"
