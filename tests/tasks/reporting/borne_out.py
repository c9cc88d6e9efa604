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
"""Of a block: all steps of the first range."""
POSITIONS_PER_SAMPLE = 8
"""As in the training: half of them hold padding."""


def bear_out(folder, found):
    """Return speed.json with blocks that give its figures; the trainings in the folder then had steps as long."""
    params = json.loads((folder / "params.yaml").read_bytes())
    arms = [one for one in found.speeds.values() if (folder / "runs" / one.cell).is_dir()]
    for one in arms:
        set_step_seconds(folder / "runs" / one.cell, one.step_seconds.value)
    beside = {
        "blocks": [
            *(_make_arm_blocks(found, one) for one in arms),
            _wrap(_make_arm_blocks(found, arms[0])),
            *(_leave_alone(_make_arm_blocks(found, arms[0]), one) for one in arms[1:2]),
        ],
        "ranges": RANGES[:1],
        "settings": {one.cell: [setting_of(params)] for one in arms},
        "numerics_version": 1,
        "code_digest": "c0de" * 16,
        "base_model_digest": "ba5e" * 16,
        "machine_digest": "ac3e" * 16,
    }
    return found.model_copy(update=beside)


def _make_arm_blocks(found, arm):
    blocks = [_make_block(found, arm, turn) for turn in range(1, found.num_turns + 1)]
    return ArmBlocks(phase="speedup", arm=arm.cell, cell=arm.cell, kind="as trained", blocks=blocks)


def _wrap(plain):
    """Return the blocks of the baseline inside a wrapper that it does not need, 2 % slower."""
    blocks = [
        one.model_copy(
            update={
                "seconds": 1.02 * one.seconds, "num_exchanges": [NUM_STEPS],
                "exchange_bytes": [4 * NUM_PARAMETERS * NUM_STEPS],
            }
        )
        for one in plain.blocks
    ]  # fmt: skip
    return ArmBlocks(
        phase="waterfall", arm=f"{plain.arm} in a DDP wrapper", cell=plain.cell, kind="wrapped", blocks=blocks
    )


def _leave_alone(plain, arm):
    """Return the blocks of a cell's first rank that does its share of the baseline's work, as fast as that."""
    number = arm.world_size
    steps = [rows[::number] for rows in np.split(np.array(rows_in_order(RANGES[0])), NUM_STEPS)]
    blocks = [
        make_block(
            RANGES[0], steps, steps, world_size=1, step_seconds=one.seconds / NUM_STEPS / number, num_exchanges=0,
            **one.model_dump(include={"turn", "launch", "others_share", "started_at", "cores_used", "host_gib"}),
        )
        for one in plain.blocks
    ]  # fmt: skip
    return ArmBlocks(phase="waterfall", arm=f"{arm.cell}, one copy alone", cell=arm.cell, kind="alone", blocks=blocks)


def _make_block(found, arm, turn):
    rows = np.array(rows_in_order(RANGES[0]))
    steps = np.split(rows, NUM_STEPS)
    return make_block(
        RANGES[0], steps, [one[:: arm.world_size] for one in steps],
        world_size=arm.world_size, step_seconds=arm.step_seconds.value, num_exchanges=NUM_STEPS * (arm.world_size > 1),
        turn=turn,
        launch=1 + (turn - 1) * found.num_launches // found.num_turns,
        # The last turns were the loud ones.
        others_share=0.01 if turn <= arm.num_quiet_turns else 0.2,
        started_at=1.7e9 + 3 * turn,
        cores_used=[0.98 + 0.01 * (turn % 5)] * arm.world_size,
        host_gib=[0.5 + 0.1 * rank for rank in range(arm.world_size)],
    )  # fmt: skip


def make_block(part, steps, of_first_rank, *, world_size, step_seconds, num_exchanges, **changes):
    """Return a block of these rows of each step, of which the first rank had some; its losses are those of its rows."""
    num_samples = sum(len(rows) for rows in steps)
    tokens = sum(num_labels(row) for rows in steps for row in rows.tolist())
    content = {
        "range": part, "steps": list(range(1, len(steps) + 1)), "seconds": step_seconds * len(steps),
        "step_seconds": [[step_seconds] * len(steps)] * world_size, "num_samples": num_samples,
        "num_tokens": tokens, "num_targets": tokens, "num_positions": POSITIONS_PER_SAMPLE * num_samples,
        "num_micro_batches": num_samples, "rows": f"{digest_rows([[rows] for rows in steps]):016x}",
        "rows_of_first_rank": f"{digest_rows([[rows] for rows in of_first_rank]):016x}", "loss_sum": 4.1 * tokens,
        "grad_norm_sum": 2.5, "updates": [[len(steps)] * 2] * world_size, "num_updated": NUM_PARAMETERS * world_size,
        "moment_squares": 0.5 * world_size, "num_exchanges": [num_exchanges] * world_size,
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
