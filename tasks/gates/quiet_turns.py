"""Was the machine quiet for long enough to say how much faster a cell is?"""

import dataclasses

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import explain
from tasks.gates.counted_blocks import find_quiet_turns, select_counted
from tasks.records.arm_figures import select_arm
from tasks.records.outputs import Outputs

MOST_OTHERS_SHARE = 0.05
"""Share of the CPUs that others may use, in the mean of the turns that count: where measure.others_share lets in more,
the speedup is that of a machine that somebody else used too."""


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
    quiet = "{cell}: {quiet_turns} of {turns:plural turn} in {starts} starts were quiet"
    numbers = {
        "cell": cell, "quiet_turns": len(find_quiet_turns(measurement, cell)), "turns": measurement.num_turns,
        "starts": measurement.num_launches, "most": measurement.most_others_share,
        "others_share": measurement.others_share,
    }  # fmt: skip
    if select_arm(measurement, cell).speedup is None:
        found = make_failed_finding(explain("too_few_quiet_turns", f"{quiet}, too few for an interval", **numbers))
        remedy = explain(
            "", "quiet is at most {most:small_percent} by others; " + seen + "; stop what else runs, or give "
            "measure.max_seconds more; with measure.others_share: 1 all turns count, and the speedup is unproven",
            **numbers,
        )  # fmt: skip
        return dataclasses.replace(found, remedy=remedy.sentence)
    told = explain("passed", quiet + " (at most {most:small_percent} by others); " + seen, **numbers)
    blocks = [
        *select_counted(measurement, outputs.params.baseline, beside=cell), *select_counted(measurement, cell)
    ]  # fmt: skip
    # More than a figure of this machine alone bears.
    if any(block.has_others_on_gpu for block in blocks):
        loud = dataclasses.replace(told, code="others_on_the_gpus")
        return make_unchecked_finding(loud.extend("{sentence}; in those that count others computed on the GPUs"))
    known = [block.others_share for block in blocks if block.others_share is not None]
    mean = sum(known) / len(known) if known else 0.0
    if mean > MOST_OTHERS_SHARE:
        loud = dataclasses.replace(told, code="others_on_the_cpus")
        return make_unchecked_finding(
            loud.extend(
                "{sentence}; in those that count others used {share:small_percent}, {quiet:small_percent} is quiet",
                share=mean, quiet=MOST_OTHERS_SHARE,
            )
        )  # fmt: skip
    return make_finding([], otherwise=told)
