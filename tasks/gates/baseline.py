"""Is the baseline as fast as one process can be? A ratio rewards a slow one.

Held against what was timed beside it in the same turns: the same process in a wrapper that it does not need, the first
rank of another cell while the others stand still, and itself as a plain process or with larger micro-batches. Several
ranks without an exchange are held against as many copies of it: what one process does and ranks do not is slow in all
of the others. On a CPU the kernel tells, too, whether it computed all the time.
"""

import math
from collections.abc import Iterator

import numpy as np

from ddp_audit.process.findings import Finding, make_failed_finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import Reason, explain
from tasks.gates.counted_blocks import MOST_OTHERS_SHARE, select_blocks, select_counted
from tasks.records.blocks import ArmBlocks
from tasks.records.measurement import HELD_AGAINST_COPIES, MeasurementFile
from tasks.records.outputs import Outputs

_MOST_GAIN = {"wrapped": 1.05, "silent": 1.05, "alone": 1.10, "tuned": 1.10}
"""Kind of arm -> times that it may be as fast as the baseline, per position and beyond doubt. A wrapper and a larger
share of the update make nothing faster; of another micro-batch a tenth is believed to be worth no other comparison."""
_MOST_WAIT = 0.05
"""Share of its quiet blocks in which a process on a CPU may not compute, beside its wait for data and what others used:
in each of 110 blocks of default runs on two cores it computed 99.7 to 100.8 % of the time."""
_LEAST_SECONDS = 2.0
"""Of these blocks: the kernel counts others by hundredths of a second."""
_FEWEST_TURNS, _STANDARD_ERRORS = 4, 3.0
"""Below the mean over so many turns or more, of which one is beyond doubt. Four may be alike by chance, which made a
right baseline slow: they are taken to scatter as those of the session's other arms do, at least."""
_MOST_DOUBT = 0.5
"""Beyond, nothing is told; on quiet cores it was 0.08 to 0.3."""


def check_baseline(outputs: Outputs, cell: str) -> Finding | None:
    """Check that nothing that does the baseline's work in one process was faster."""
    measurement = outputs.measurement
    if measurement is None or cell != outputs.params.baseline or outputs.runs[cell].facts.world_size > 1:
        return None
    slowed, not_best, compared = list[Reason](), list[Reason](), list[str]()
    computed = _compute_computed_share(measurement, cell) if outputs.runs[cell].facts.device == "cpu" else None
    data_wait = measurement.speeds[cell].data_wait_share
    if computed is not None and computed + data_wait < 1 - _MOST_WAIT:
        slowed.append(
            explain(
                "waited",
                "{cell} computed in {computed:percent} of its timed blocks and waited for data in "
                "{data_wait:small_percent}: something else made it wait, which no process on a core of its own needs",
                cell=cell, computed=computed, data_wait=data_wait,
            )
        )  # fmt: skip
    every = list(_list_gains(measurement, cell))
    scatters = [gains.std(ddof=1) for *_, gains in every]
    for arm, other, gains in every:
        scatter, gain, most = max(gains.std(ddof=1), np.median(scatters)), np.exp(gains.mean()), _MOST_GAIN[arm.kind]
        doubt = math.expm1(_STANDARD_ERRORS * scatter / math.sqrt(len(gains)))
        compared += [arm.kind] * (doubt <= _MOST_DOUBT)
        if gain / (1 + doubt) > most:
            numbers = {"cell": other, "arm": arm.arm, "gain": gain, "most": most}
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
    # What asks how many ranks there are is as slow in all that one rank runs.
    has_others = (
        outputs.runs[cell].facts.strategy in HELD_AGAINST_COPIES
        and outputs.params.model.norm != "sync_batch"  # alone they would do other work
        and any(run.facts.world_size > 1 for run in outputs.runs.values())
    )
    if not compared or (has_others and "alone" not in compared):
        template = (
            "{cell}: no rank of another cell did its work alone beside it (measure.waterfall_seconds above 0 times "
            "that), or all of it varied too much to tell half as fast again"
        )
        return make_unchecked_finding(explain("nothing_beside", template, cell=cell))
    return make_finding(
        [],
        "{cell}: none of {arms:plural arm} that do its work in one process was faster beyond doubt",
            cell=cell, arms=len(compared),
    )  # fmt: skip


def _compute_computed_share(measurement: MeasurementFile, cell: str) -> float | None:
    """Return in which share of its quiet blocks the cell's one process computed, or others did, by the kernel's count
    of CPU seconds, those of all its threads; None of so few that this is too coarse."""
    known = [
        (block.cores_used[0] + block.others_share, block.seconds)
        for block in select_counted(measurement, cell)
        if block.cores_used and block.others_share is not None and block.others_share <= MOST_OTHERS_SHARE
    ]
    shares, seconds = np.reshape(known, (-1, 2)).T
    return float(np.average(shares, weights=seconds)) if seconds.sum() >= _LEAST_SECONDS else None


def _list_gains(measurement: MeasurementFile, cell: str) -> Iterator[tuple[ArmBlocks, str, np.ndarray]]:
    """Yield (arm, what did its work as one process, log of how many times as fast per position it was, by turn)."""
    plain = {
        block.turn: block
        for phase in ("speedup", "waterfall")
        for block in select_blocks(measurement, cell, phase=phase)
    }
    copies = {arm.cell: arm for arm in measurement.blocks if arm.kind == "independent"}
    for arm in measurement.blocks:
        name, its = cell, plain
        if arm.kind == "silent":
            if arm.cell not in copies:
                continue
            name, its = copies[arm.cell].arm, {block.turn: block for block in copies[arm.cell].blocks}
        pairs = [(its[block.turn], block) for block in arm.blocks if block.turn in its and block.num_positions]
        if arm.kind not in _MOST_GAIN or len(pairs) < _FEWEST_TURNS:
            continue
        # A larger micro-batch pads to its longest row; what counts is the samples.
        work = "num_samples" if arm.kind == "tuned" else "num_positions"
        paces = np.array([[item.seconds / max(getattr(item, work), 1) for item in pair] for pair in pairs])
        yield arm, name, np.log(paces[:, 0] / paces[:, 1])
