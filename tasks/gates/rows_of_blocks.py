"""Were the timed rows like those of the training? Blocks have some steps of some ranges, the training has all."""

import math
from dataclasses import replace

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import explain
from tasks.params.choices import read_unit
from tasks.records.outputs import Outputs

_SHARE_APART = 0.10
"""Of tokens per sample, which rule how long a step takes and how much of it is computation."""
_DEVIATIONS = 4
"""Standard errors that blocks of so few steps may be off by, beside that."""


def check_timed_rows(outputs: Outputs, cell: str) -> Finding | None:
    """Check the tokens per sample in a cell's timed blocks against those of its whole training."""
    measurement = outputs.measurement
    if measurement is None:
        return None
    timed = [
        block for arm in measurement.blocks if arm.cell == cell and arm.kind == "as trained" for block in arm.blocks
    ]
    if not timed:
        return make_unchecked_finding(explain("no_blocks", "{cell}: its timed blocks left no record", cell=cell))
    run, unit = outputs.runs[cell], read_unit(outputs.params.workload)
    facts = [segment.facts for segment in run.segments]
    trained = sum(one.num_tokens for one in facts) / sum(one.num_samples for one in facts)
    tokens = sum(block.num_tokens for block in timed) / sum(block.num_samples for block in timed)
    # Not with their padding: packs of one length hide how much a step's rows scatter, but where rows are few.
    per_step = run.steps.num_tokens / run.steps.num_samples
    num_different = len({(block.range, step) for block in timed for step in block.steps})
    error = float(per_step.std() / per_step.mean()) / math.sqrt(num_different)
    allowed = _SHARE_APART + _DEVIATIONS * error
    apart = tokens / trained - 1
    told = explain(
        "passed",
        "{cell}: {tokens_per_sample:.1f} {unit}s per sample in {steps:plural step} of {ranges}, {of_training:.1f} in "
        "the whole training",
        cell=cell, unit=unit, tokens_per_sample=tokens, steps=num_different, of_training=trained, most_apart=allowed,
        ranges=list(dict.fromkeys(block.range for block in timed)),
    )  # fmt: skip
    if abs(apart) <= allowed:
        return make_finding([], otherwise=told)
    return make_failed_finding(
        replace(told, code="more_tokens" if apart > 0 else "fewer_tokens").extend(
            "{sentence}: {apart:percent} " + ("more" if apart > 0 else "fewer") + ", at most {most_apart:percent} "
            "allowed; the speedup is of other rows than were trained on",
            apart=abs(apart),
        )
    )
