"""Timed blocks of the comparison written by hand: what each did, so that the gates can be told that it did not."""

import json

import numpy as np

from tasks.records.blocks import ArmBlocks, BlockWork
from tasks.records.measurement import RankDevice
from tasks.records.outputs import Steps
from tests.tasks.reporting.borne_out import make_block
from tests.tasks.reporting.comparison import RANGES, setting_of
from tests.tasks.reporting.measured import arm, estimate, measurement

NUM_TURNS = 20
SECONDS = {"1proc": 0.068, "1proc in a DDP wrapper": 0.0693, "2proc": 0.042, "2proc, one copy alone": 0.035}
"""Of one step."""
KINDS = {
    "1proc": "as trained",
    "1proc in a DDP wrapper": "wrapped",
    "2proc": "as trained",
    "2proc, no communication": "silent",
    "2proc, one copy alone": "alone",
    "2proc, update only": "update",
}
SPEEDUP = SECONDS["1proc"] / SECONDS["2proc"]


def block(name, turn, **changes):
    """Return a block of the two steps of a range, the first range in even turns; its losses are those of its rows."""
    # A few turns were slower, for all arms.
    made = make_block(
        KINDS[name], turn, RANGES[turn % 2], num_ranks=int(name[0]), others_share=0.01,
        step_seconds=SECONDS.get(name, 0.03) * (1 + 0.01 * (turn % 5)), launch=1 + (turn - 1) * 4 // NUM_TURNS,
    )  # fmt: skip
    return BlockWork(**dict(made) | changes)


def arm_blocks(name, *, turn=3, **changes):
    """Return the blocks of an arm; changes are made to the one of this turn, or to all where it is None."""
    blocks = [block(name, number, **(changes if turn in (None, number) else {})) for number in range(1, NUM_TURNS + 1)]
    return ArmBlocks(phase="speedup", arm=name, cell=name[:5], kind=KINDS[name], blocks=blocks)


def write_blocks(folder, *changed, speedup=SPEEDUP, of_2proc=None, beside=(), **more):
    """Write speed.json with the blocks of all arms, some of them changed, and those `beside`; `speedup`: what is
    published of 2proc, with these changes of its other figures."""
    arms = {name: arm_blocks(name) for name in KINDS} | {one.arm: one for one in changed}

    def make_arm(name, world_size, **changes):
        mine = arms[name].blocks
        rate = sum(one.num_tokens for one in mine) / sum(one.seconds for one in mine)
        content = {"tokens_per_second": rate, "step_seconds": estimate(SECONDS[name] * 1.02, 0.01)} | changes
        return arm(name, world_size, speedup=estimate(speedup), **content)

    cores = RankDevice(cpus=[0, 1])
    setting = setting_of(json.loads((folder / "params.yaml").read_bytes()))
    content = {
        "num_turns": NUM_TURNS, "blocks": [*arms.values(), *beside], "ranges": RANGES,
        "devices_of_starts": {"1proc": [[cores]], "2proc": [[cores] * 2]},
        "settings": {"1proc": [setting], "2proc": [setting]},
    }  # fmt: skip
    found = measurement(make_arm("1proc", 1), make_arm("2proc", 2, **of_2proc or {}), **content | more)
    found.write(folder / "measurements")
    return found


def make_steps(seconds, **columns):
    """Return steps of so many seconds, on 32 positions each."""
    alike = {
        "loss": 4.0, "learning_rate": 1e-3, "num_samples": 4, "num_tokens": 16, "num_positions": 32, "num_targets": 16,
        "other_seconds": 0.0, "others_share": np.nan,
    }  # fmt: skip
    made = {name: np.full(len(seconds), value) for name, value in alike.items()}
    made |= dict.fromkeys(("rank_own_seconds", "rank_own_positions"), np.zeros((len(seconds), 1), dtype=int))
    return Steps(**{"step": np.arange(len(seconds)) + 1, "seconds": np.asarray(seconds)} | made | columns)


def give_steps(outputs, **seconds):
    """Let the cells' trainings have had steps of so many seconds."""
    for cell, taken in seconds.items():
        outputs.runs[cell].__dict__["steps"] = make_steps(taken)
