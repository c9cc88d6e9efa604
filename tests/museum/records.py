"""What defects leave in the records of a comparison, without a training: changes to the one that is written by hand."""

import json

import numpy as np

from tasks.gates.checks import check_gates
from tests.tasks.reporting.blocks import SPEEDUP, arm_blocks, block, write_blocks
from tests.tasks.reporting.comparison import (
    RANGES,
    STEPS_PER_SEGMENT,
    edit_json,
    edit_ledger,
    edit_segment,
    edit_steps,
    edit_traffic,
    outputs_of,
    setting_of,
    write_comparison,
    write_updates,
)

CELLS = ("1proc", "2proc")


def _select_part(first):
    return RANGES[(first - 1) // STEPS_PER_SEGMENT]


def _segment(part="", **changes):
    return lambda folder, _, first: edit_segment(folder, "2proc", part or _select_part(first), **changes)


def _steps(*cells, **changes):
    return lambda folder, *_: [edit_steps(folder, cell, **changes) for cell in cells]


def _rows(change, *cells, column=""):
    """Change this column of the work ledgers, or each alike."""

    def edit(arrays):
        arrays.update({name: change(its) for name, its in arrays.items() if name == (column or name)})

    return lambda folder, _, first: [
        edit_ledger(folder, cell, edit, _select_part(first)) for cell in cells or CELLS[1:]
    ]


def _row_ids(change, *cells):
    return _rows(change, *cells, column="row_id")


def _setting(cell, section, **changes):
    def change(folder, params, _):
        setting = setting_of(params)
        edit_segment(folder, cell, settings=[setting | {section: setting.get(section, {}) | changes}])

    return change


def _update(kind):
    changes = {"verdict": "failed", "problem": f"the {kind} differ"}
    return lambda folder, _, first: write_updates(folder, "2proc", first=first, **changes)


def _first_loss(difference, *cells):
    compared = {"loss": {"difference": difference, "noise_floor": 0.0, "tolerance": 1e-5}}
    return lambda folder, *_: [write_updates(folder, cell, compared=compared) for cell in cells]


def _traffic(cell, **counted):
    return lambda folder, _, first: edit_traffic(folder, cell, _select_part(first), **counted)


def _blocks(name="2proc", *, speedup=SPEEDUP, **changes):
    return lambda folder, *_: write_blocks(folder, arm_blocks(name, turn=None, **changes), speedup=speedup)


def _forget_segment(folder, *_):
    path = folder / "runs" / "2proc" / "run.json"
    edit_json(path, segments=json.loads(path.read_text())["segments"][:1])


def _evaluate_others(folder, *_):
    path = folder / "evaluation" / "evaluation.json"
    models = json.loads(path.read_text())["models"]
    models["2proc"]["parameter_checksum"] = models["base"]["parameter_checksum"]
    edit_json(path, models=models)


def _leave_out_turns(folder, *_):
    arms = [arm_blocks(name) for name in CELLS]
    for arm in arms:
        arm.blocks[:] = [one for one in arm.blocks if one.turn % 4]
    write_blocks(folder, *arms)


def _set_timed(folder, params, _):
    setting = setting_of(params)
    slow = setting | {"kernels": setting["kernels"] | {"searches_anomalies": True}}
    write_blocks(folder, settings={"1proc": [slow], "2proc": [setting]})


_UNCHECKED = "trainer's check removed"
RECORDS = {
    "Same parameters on all ranks": {
        f"raw module, {_UNCHECKED}": _segment(parameter_checksums=["aa", "bb"]),
        f"pipeline: untied embeddings, {_UNCHECKED}": _segment(parameter_checksums=["bb"]),
    },
    "Gradients were synchronised": {
        "no no_sync": _traffic("2proc", number=4, num_bytes=16_000),
        "baseline in a DDP wrapper": _traffic("1proc", number=2, num_bytes=8_000),
    },
    "Update equivalence": {
        "zero1: shares clipped one by one": _update("gradient"),
        "no update in every cell": _update("weights"),
    },
    "Loss curves coincide": {"pipeline: labels = attention mask": _steps("2proc", loss=6.0)},
    "Starts from the base model": {
        "labels from the wrong column in every cell": _first_loss(0.3, *CELLS),
        "another precision in one cell": _first_loss(1e-3, "2proc"),
    },
    "Every sample exactly once": {
        f"missing sharding, {_UNCHECKED}": _rows(lambda column: np.tile(column, 2)),
        "dropped samples": _rows(lambda column: column[:-1], *CELLS),
        "doubled samples": _rows(lambda column: np.append(column, column[:1]), *CELLS),
        "different rows per cell": _row_ids(lambda rows: rows + 8),
        "epochs ignored": _forget_segment,
    },
    "Same rows in the same steps": {
        "another order per cell": _row_ids(lambda rows: rows[::-1]),
        "rows padded further in the baseline": _steps("1proc", num_padding_tokens=20),
    },
    "Steps are those asked for": {
        "rows not shuffled in every cell": _row_ids(np.sort, *CELLS),
        "schedule stops half-way in every cell": _steps(*CELLS, learning_rate=1.5e-3),
    },
    "Held-out rows were held out": {"trained on the held-out rows": _row_ids(lambda rows: 16 + rows % 4, *CELLS)},
    "Evaluated what was trained": {"another model evaluated": _evaluate_others},
    "No break between segments": {
        "different start weights per cell": _segment("0-8", start_checksum="02" * 8),
        "silent start from the base model": _segment("8-16", start_checksum="01" * 8),
        f"optimizer state not restored, {_UNCHECKED}": _segment("8-16", start_optimizer_checksum="empty"),
    },
    "Same work in every cell": {
        "different global batch per cell": _setting("2proc", "train", global_batch_size=8),
        "another attention kernel in the baseline": _setting("1proc", "kernels", attention="eager"),
        "a profiler left on in the baseline": _setting("1proc", "interpreter", watched_by=["profile"]),
        "another algorithm of exchange in one rank's environment": _setting(
            "2proc", "ranks_differ", **{"rank 1": {"environment.NCCL_ALGO": "Tree"}}
        ),
        "timed: debugging left on in the baseline": _set_timed,
    },
    "Only steps were timed": {
        "checkpoint inside the timer": _steps(*CELLS, other_seconds=0.5),
        "upload inside a step": _steps("2proc", seconds=30.0),
        "clock started after the step": _segment(train_seconds=0.1),
    },
    "Not data-bound": {"data-bound run called GPU scaling": _segment(data_wait_seconds=2.0)},
    "Timed blocks did the work": {
        "timed: half the tokens": _blocks(num_tokens=16, num_samples=4),
        "timed: half the tokens, all counted": _blocks(loss_sum=60.0),
        "timed: other rows": _blocks(rows=block("2proc", 2).rows),
        "timed: weak scaling called strong": _blocks(num_tokens=64, num_samples=16),
        "timed: larger micro-batches in one arm": _blocks(num_micro_batches=4),
        "timed: rows padded to full length": _blocks("1proc", num_positions=2 * 128 * 4),
        "timed: rows padded further in the baseline": _blocks("1proc", num_positions=65),
        "timed: no exchange": _blocks(num_exchanges=[0, 0]),
        "timed: nothing learned": _blocks("1proc", grad_norm_sum=0.0),
        "timed: no update": _blocks(updates=[[0, 0]] * 2),
        "timed: update on one rank alone": _blocks(updates=[[2, 2], [0, 0]]),
        "timed: half of the parameters updated": _blocks(updates=[[0, 2]] * 2),
        "timed: baseline in a DDP wrapper": _blocks("1proc", num_exchanges=[2]),
    },
    "Baseline is not slowed": {
        "timed: loss computed twice in the baseline": _blocks("1proc in a DDP wrapper", seconds=0.1),
        "timed: a wait in the baseline": _blocks("1proc", cores_used=[0.9]),
    },
    "Training bears out the blocks": {
        "timed: turns left out": _leave_out_turns,
        "timed: seconds of one arm scaled": _blocks(speedup=SPEEDUP / 0.7),
        "timed: published speedup halved": _blocks(speedup=SPEEDUP * 0.49),
    },
}
"""Gate -> defect -> what is changed, given the folder, the params, and the step from which the training is wrong."""


def judge(folder, gate, key, first=1):
    """Return what the gates say of a comparison with this defect's change, written to the folder.

    `first`: the step from which the training is wrong.
    """
    folder.mkdir(exist_ok=True)
    params = write_comparison(folder)
    RECORDS[gate][key](folder, params, first)
    return check_gates(outputs_of(folder, params))


def list_codes(gates, name):
    """Return the codes of the problems that the gate of this name fails for."""
    failed = [found for gate in gates if gate.name == name for found in gate.findings if found.outcome == "failed"]
    return {problem.code for found in failed for problem in found.problems}
