"""Blocks that give a measurement's figures, and a training that bears them out, for the comparison written by hand."""

import json

import numpy as np

from tasks.records.blocks import ArmBlocks, BlockWork
from tests.tasks.reporting.comparison import (
    NUM_PARAMETERS,
    RANGES,
    num_labels,
    read_lines,
    rows_in_order,
    setting_of,
    write_lines,
)
from training.record.ledger_file import digest_rows

NUM_STEPS = 2
"""Of a block: all steps of a range."""
POSITIONS_PER_SAMPLE = 8
"""As in the training: half of them hold padding."""
_ARMS = {"as trained": "", "wrapped": " in a DDP wrapper", "alone": ", one copy alone"}
"""Kind of arm -> what its name has behind the cell's."""


def bear_out(folder, found):
    """Return speed.json with blocks that give its figures; the trainings in the folder then had steps as long."""
    params = json.loads((folder / "params.yaml").read_bytes())
    arms = [one for one in found.speeds.values() if (folder / "runs" / one.cell).is_dir()]
    for one in arms:
        set_step_seconds(folder / "runs" / one.cell, one.step_seconds.value)
    plain = arms[0].step_seconds.value
    blocks = [
        *(_make_arm_blocks(found, one, "as trained", one.step_seconds.value) for one in arms),
        # Inside a wrapper that it does not need the baseline is 2 % slower; a share of its work takes its share.
        _make_arm_blocks(found, arms[0], "wrapped", 1.02 * plain),
        *(_make_arm_blocks(found, one, "alone", plain / one.world_size) for one in arms[1:2]),
    ]
    settings = {one.cell: [setting_of(params)] for one in arms}
    return found.model_copy(update={"blocks": blocks, "ranges": RANGES[:1], "settings": settings})


def _make_arm_blocks(found, arm, kind, step_seconds):
    """Return the blocks of the ranks of a cell, or of its first one alone."""
    ranks = 1 if kind == "alone" else arm.world_size
    blocks = [
        make_block(
            kind, turn, RANGES[0], num_ranks=arm.world_size, step_seconds=step_seconds,
            launch=1 + (turn - 1) * found.num_launches // found.num_turns,
            # The last turns were the loud ones.
            others_share=0.01 if turn <= arm.num_quiet_turns else 0.2,
            started_at=1.7e9 + 3 * turn,
            cores_used=[0.98 + 0.01 * (turn % 5)] * ranks,
            host_gib=[0.5 + 0.1 * rank for rank in range(ranks)],
        )
        for turn in range(1, found.num_turns + 1)
    ]  # fmt: skip
    phase = "speedup" if kind == "as trained" else "waterfall"
    return ArmBlocks(phase=phase, arm=f"{arm.cell}{_ARMS[kind]}", cell=arm.cell, kind=kind, blocks=blocks)


def make_block(kind, turn, part, *, num_ranks, step_seconds, **changes):
    """Return a block of all steps of a range by the ranks of a cell, or by as many of them as this kind of arm has.

    Its losses are those of its rows.
    """
    steps = np.split(np.array(rows_in_order(part)), NUM_STEPS)
    of_first_rank = [rows[::num_ranks] for rows in steps]
    if kind == "update":
        steps = of_first_rank = [rows[:0] for rows in steps]
    elif kind == "alone":
        steps = of_first_rank
    world_size = 1 if kind in ("alone", "update") else num_ranks
    num_exchanges = NUM_STEPS if kind == "wrapped" or (kind == "as trained" and num_ranks > 1) else 0
    num_samples = sum(len(rows) for rows in steps)
    tokens = sum(num_labels(row) for rows in steps for row in rows.tolist())
    content = {
        "turn": turn, "range": part, "steps": [1, 2], "seconds": step_seconds * NUM_STEPS,
        "step_seconds": [[step_seconds] * NUM_STEPS] * world_size, "num_samples": num_samples,
        "num_tokens": tokens, "num_targets": tokens, "num_positions": POSITIONS_PER_SAMPLE * num_samples,
        "num_micro_batches": num_samples, "rows": f"{digest_rows([[rows] for rows in steps]):016x}",
        "rows_of_first_rank": f"{digest_rows([[rows] for rows in of_first_rank]):016x}", "loss_sum": 4.1 * tokens,
        "grad_norm_sum": 0.0 if kind == "update" else 2.5, "updates": [[NUM_STEPS] * 2] * world_size,
        "num_updated": NUM_PARAMETERS * world_size, "moment_squares": 0.5 * world_size,
        "num_exchanges": [num_exchanges] * world_size,
        "exchange_bytes": [4 * NUM_PARAMETERS * num_exchanges] * world_size,
    }  # fmt: skip
    return BlockWork(**content | changes)


def set_step_seconds(run, seconds):
    """Let every step of a training have taken so long, and its ranks the same share of it as before."""
    for segment in run.glob("segments/*"):
        lines = read_lines(segment)
        for line in lines:
            line["rank_own_seconds"] = [own * seconds / line["seconds"] for own in line["rank_own_seconds"]]
            line["seconds"] = seconds
        write_lines(segment, lines)
