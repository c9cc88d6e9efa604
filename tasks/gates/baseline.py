"""Is the baseline as fast as one process can be? A ratio rewards a slow one.

Held against what was timed beside it in the same turns: the same process in a wrapper that it does not need, the first
rank of another cell while the others stand still, and itself as a plain process or with larger micro-batches.
"""

import math
from collections.abc import Iterator

import numpy as np

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import Reason, explain
from tasks.gates.counted_blocks import select_blocks
from tasks.records.blocks import ArmBlocks
from tasks.records.measurement import MeasurementFile
from tasks.records.outputs import Outputs

_MOST_GAIN = {"wrapped": 1.05, "alone": 1.10, "tuned": 1.10}
"""Kind of arm -> times that it may be as fast as the baseline, per position and beyond doubt. A wrapper and a larger
share of the update make nothing faster; of another micro-batch a tenth is believed to be worth no other comparison."""
_FEWEST_TURNS, _STANDARD_ERRORS = 4, 3.0
"""Below the mean over so many turns or more, of which one is beyond doubt."""


def check_baseline(outputs: Outputs, cell: str) -> Finding | None:
    """Check that nothing that does the baseline's work in one process was faster."""
    measurement = outputs.measurement
    if measurement is None or cell != outputs.params.baseline or outputs.runs[cell].facts.world_size > 1:
        return None
    slowed, not_best, compared = list[Reason](), list[Reason](), 0
    for arm, gain, low in _list_gains(measurement, cell):
        compared += 1
        if low > _MOST_GAIN[arm.kind]:
            numbers = {"cell": cell, "arm": arm.arm, "gain": gain, "most": _MOST_GAIN[arm.kind]}
            if arm.kind == "tuned":
                sentence = (
                    "{arm} is {gain:ratio} as fast as {cell}, which is not at its best: speedups over it say less"
                )
                not_best.append(explain("not_at_its_best", sentence, **numbers))
            else:
                sentence = (
                    "{arm} did the same work {gain:ratio} as fast as {cell}, at most {most:ratio} is possible: the "
                    "baseline does something that one process does not need"
                )
                slowed.append(explain("slowed", sentence, **numbers))
    if slowed:
        return make_failed_finding(*slowed)
    if not_best:
        return make_unchecked_finding(*not_best)
    if not compared:
        return make_unchecked_finding(explain("nothing_beside", "{cell}: nothing was timed beside it", cell=cell))
    return make_finding(
        [],
        "{cell}: none of {arms:plural arm} that do its work in one process was faster beyond doubt",
            cell=cell, arms=compared,
    )  # fmt: skip


def _list_gains(measurement: MeasurementFile, cell: str) -> Iterator[tuple[ArmBlocks, float, float]]:
    """Yield (arm, how many times as fast as the baseline per position, the lower end of that)."""
    plain = {
        block.turn: block
        for phase in ("speedup", "waterfall")
        for block in select_blocks(measurement, cell, phase=phase)
    }
    for arm in measurement.blocks:
        pairs = [(plain[block.turn], block) for block in arm.blocks if block.turn in plain and block.num_positions]
        if arm.kind not in _MOST_GAIN or len(pairs) < _FEWEST_TURNS:
            continue
        # A larger micro-batch pads to its longest row; what counts is the samples.
        work = "num_samples" if arm.kind == "tuned" else "num_positions"
        paces = np.array([[item.seconds / max(getattr(item, work), 1) for item in pair] for pair in pairs])
        gains = np.log(paces[:, 0] / paces[:, 1])
        doubt = _STANDARD_ERRORS * gains.std(ddof=1) / math.sqrt(len(gains))
        yield arm, float(np.exp(gains.mean())), float(np.exp(gains.mean() - doubt))
