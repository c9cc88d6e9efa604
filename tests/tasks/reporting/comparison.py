"""A small finished comparison, written file by file, with figures that can be recomputed by hand.

Two ranges of 8 rows, 4 rows per step, so 2 steps per segment. Row r has 4 + r % 3 tokens (none is cut), so 3 + r % 3
can be learned from. `1proc` needs 6 s and 4 s, `2proc` 4 s and 2.4 s: 10 s against 6.4 s is a speedup of 1.5625.
"""

import copy
import json
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.growth.finished import seal_segment, write_ledger
from tasks.params import Params
from tasks.params.train import NOT_FOR_RANKS
from tasks.records.outputs import read_outputs
from tests.ledgers import read_ledger
from training.process.files import write_json

BY_HAND = json.loads(Path(__file__).with_name("by_hand.json").read_text(encoding="utf-8"))
"""What the files hold that no test works out anew."""
PARAMS = BY_HAND["params"]
THREE_CELLS = PARAMS | {"cells": PARAMS["cells"] | {"4proc": {"strategy": "ddp", "world_size": 4}}}
RANGES = PARAMS["ranges"]
ROWS_PER_STEP = PARAMS["train"]["global_batch_size"]
STEPS_PER_SEGMENT = 2
NUM_PARAMETERS = 1000
SEED = 0
"""Of the order, as where params.yaml names none."""
SECONDS = {"1proc": [6.0, 4.0], "2proc": [4.0, 2.4]}
LOSSES = [4.0, 3.9, 3.8, 3.7, 3.6, 3.5, 3.4, 3.3]


def num_labels(row):
    """Return how many tokens can be learned from a row."""
    return 3 + row % 3


def rows_of(name):
    """Return the rows of a slice."""
    return range(*map(int, name.split("-")))


def write_comparison(folder, *, params=None, seconds=SECONDS, device="cpu"):
    """Write everything that the stages before the report leave behind; return what params.yaml holds."""
    params = params or PARAMS
    write_json(folder / "params.yaml", params)  # JSON is YAML
    (folder / "measurements").mkdir(parents=True, exist_ok=True)
    write_json(folder / "raw" / "manifest.json", BY_HAND["raw"])
    write_json(folder / "base_model" / "manifest.json", BY_HAND["base_model"] | {"num_parameters": NUM_PARAMETERS})
    write_json(folder / "machine.json", BY_HAND["machine"])
    slices = {name: _write_slice(folder / "slices" / name, name) for name in [*params["ranges"], params["heldout"]]}
    about = {"workload": params["workload"], "heldout": params["heldout"], "slices": slices}
    write_json(folder / "slices" / "manifest.json", {"vocab_size": 128, "eos_token_id": 127} | about)
    for cell, facts in params["cells"].items():
        _write_run(folder / "runs" / cell, cell, facts, params, seconds[cell], device)
    _write_evaluation(folder, params)
    return params


def outputs_of(folder, params):
    """Return what was written as the report reads it."""
    files = {name: folder / name for name in ("slices", "measurements", "runs", "evaluation")}
    files |= {name: folder / name / "manifest.json" for name in ("raw", "base_model")}
    return read_outputs(Params.model_validate(params), **files, machine=folder / "machine.json")


def write_updates(folder, cell, *, first=1, **changes):
    """Make changes to what was found of each update of a cell from this step on."""
    for path in sorted((folder / "runs" / cell / "segments").glob("*/segment.json")):
        found = json.loads(path.read_bytes())["checked_updates"]
        edit_json(path, checked_updates=[one | changes if one["step"] >= first else one for one in found])
        seal_segment(path.parent)


def edit_json(path, **changes):
    """Change some keys of a JSON file."""
    write_json(path, json.loads(path.read_text()) | changes)


def edit_segment(folder, cell, part="0-8", **changes):
    """Change some keys of one segment.json; its receipt agrees."""
    edit_json(segment_folder(folder, cell, part) / "segment.json", **changes)
    seal_segment(segment_folder(folder, cell, part))


def edit_ledger(folder, cell, change, part="0-8"):
    """Change the columns of one work ledger; its receipt agrees."""
    segment = segment_folder(folder, cell, part)
    arrays = read_ledger(segment)
    change(arrays)
    write_ledger(segment, **arrays)


def edit_steps(folder, cell, part="0-8", *, index=1, **changes):
    """Change some keys of one line of steps.jsonl; its receipt agrees."""
    segment = segment_folder(folder, cell, part)
    lines = read_lines(segment)
    lines[index] |= changes
    write_lines(segment, lines)


def read_lines(segment):
    """Return the lines of a segment's steps.jsonl."""
    return [json.loads(line) for line in (segment / "steps.jsonl").read_text().splitlines()]


def write_lines(segment, lines):
    """Write a segment's steps.jsonl; its receipt agrees."""
    (segment / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seal_segment(segment)


def segment_folder(folder, cell, part="0-8"):
    """Return where a segment of the first epoch lies."""
    return folder / "runs" / cell / "segments" / f"{part}-epoch-1"


def _write_slice(folder, name):
    rows = rows_of(name)
    lengths = [num_labels(row) + 1 for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "row_ids.npy", np.array(rows, dtype=np.int64))
    np.save(folder / "offsets.npy", np.cumsum([0, *lengths], dtype=np.int64))
    np.save(folder / "tokens.npy", np.zeros(sum(lengths), dtype=np.int32))
    facts = {"range": name, "num_rows": len(rows), "num_tokens": sum(lengths), "digest": name.encode().hex() * 8}
    write_json(folder / "manifest.json", facts)
    return facts


def _write_run(folder, cell, facts, params, seconds, device):
    world_size, train = facts["world_size"], params["train"]
    segments, setting = [], setting_of(params)
    for (part, epoch), taken in zip(product(params["ranges"], range(1, train["epochs"] + 1)), seconds, strict=True):
        place = f"segments/{part}-epoch-{epoch}"
        first_step = 1 + STEPS_PER_SEGMENT * len(segments)
        about = {"range": part, "epoch": epoch, "fingerprint": BY_HAND["segment"]["fingerprint"]}
        _write_segment(folder / place, about | {"cell": cell, "settings": [setting]}, world_size, first_step, taken)
        segments.append(about | {"folder": place})
    content = BY_HAND["run"] | {
        "cell": cell, "strategy": facts["strategy"], "world_size": world_size, "device": device,
        "backend": "gloo" if world_size > 1 else None, "grad_accum_steps": train["global_batch_size"] // world_size,
        "global_batch_size": train["global_batch_size"], "model_name": params["model"]["name"],
        "train": Params.model_validate(params).train.model_dump(), "workload": params["workload"],
        "segments": segments, "final_checkpoint": f"{segments[-1]['folder']}/tiny_qwen2_8-16-epoch-1.pt",
    }  # fmt: skip
    write_json(folder / "run.json", content)


def setting_of(params):
    """Return what the ranks of a cell record of what they run with (training/record/setting.py)."""
    train = Params.model_validate(params).train.model_dump(exclude=set(NOT_FOR_RANKS))
    train |= {"loss_chunk_rows": 384}
    names = {"workload": params["workload"], "model_name": params["model"]["name"]}
    return copy.deepcopy(BY_HAND["setting"]) | {"train": train} | names


def record_as(folder, params):
    """Have every run say that it was trained with these params."""
    train = Params.model_validate(params).train.model_dump()
    for cell in params["cells"]:
        edit_json(folder / "runs" / cell / "run.json", train=train)
        for part in params["ranges"]:
            edit_segment(folder, cell, part, settings=[setting_of(params)])


def edit_traffic(folder, cell, part="0-8", *, kind="all_reduce", bucket_bytes=None, **changes):
    """Change what the ranks of a cell counted of one kind of collective in a segment, and their buckets."""
    facts = json.loads((segment_folder(folder, cell, part) / "segment.json").read_bytes())
    facts["traffic"].setdefault(kind, {"number": 0, "num_bytes": 0}).update(changes)
    exchange = facts["exchange"] if bucket_bytes is None else {"bucket_bytes": bucket_bytes}
    edit_segment(folder, cell, part, traffic=facts["traffic"], exchange=exchange)


def _write_segment(folder, facts, world_size, first_step, seconds):
    part, epoch = facts["range"], facts["epoch"]
    rows = np.array(rows_in_order(part, epoch), dtype=np.int64)
    labels = np.array([num_labels(row) for row in rows.tolist()])
    tokens, places = int(labels.sum()), np.arange(len(rows))
    steps = range(first_step, first_step + STEPS_PER_SEGMENT)
    losses = [LOSSES[step - 1] for step in steps]
    exchanged = {"all_reduce": {"number": STEPS_PER_SEGMENT, "num_bytes": 4 * NUM_PARAMETERS * STEPS_PER_SEGMENT}}
    spread = {"traffic": exchanged, "backend": "gloo", "exchange": {"bucket_bytes": [4 * NUM_PARAMETERS]}}
    content = BY_HAND["segment"] | facts | {
        "first_step": first_step, "last_step": steps[-1], "num_steps": STEPS_PER_SEGMENT, "num_samples": len(rows),
        **dict.fromkeys(("num_tokens", "num_targets", "num_padding_tokens"), tokens),
        "train_seconds": seconds, "span_seconds": seconds + 0.625, "loss": sum(losses) / len(losses),
        "tokens_per_second": tokens / seconds, "samples_per_second": len(rows) / seconds,
        **(spread if world_size > 1 else {"traffic": {}, "backend": None, "exchange": {}}),
        "start_checksum": f"{first_step:02}" * 8, "start_optimizer_checksum": f"opt{first_step}",
        "parameter_checksums": [end_checksum(first_step)] * world_size,
        "optimizer_checksums": [f"opt{first_step + STEPS_PER_SEGMENT}"] * world_size,
        "checked_updates": [make_checked_update(step) for step in steps],
        "started_at": f"2026-11-21T02:00:0{epoch}+00:00",
    }  # fmt: skip
    lines = [
        BY_HAND["step"] | {
            "step": step, "range": part, "epoch": epoch, "segment_step": index,
            "segment_steps": STEPS_PER_SEGMENT, "loss": losses[index - 1], "num_samples": ROWS_PER_STEP,
            "learning_rate": 2e-3 / index, "seconds": seconds / STEPS_PER_SEGMENT,
            "rank_own_positions": [32] * world_size,
            "rank_own_seconds": [seconds / STEPS_PER_SEGMENT / 2] * world_size,
        }
        for index, step in enumerate(steps, start=1)
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "segment.json", content)
    (folder / f"tiny_qwen2_{folder.name}.pt").write_bytes(end_checksum(first_step).encode())
    write_lines(folder, lines)
    write_ledger(
        folder, rank=places % world_size, step=first_step + places // ROWS_PER_STEP, row_id=rows, num_tokens=labels
    )


def make_checked_update(step, **changes):
    """Return what is found of a right update."""
    return {"step": step} | copy.deepcopy(BY_HAND["checked_update"]) | changes


def end_checksum(first_step):
    """Return the checksum of the weights after the segment that begins with this step."""
    return f"{first_step + STEPS_PER_SEGMENT:02}" * 8


def rows_in_order(part, epoch=1):
    """Return the rows of a range in the order in which they are learned from."""
    rows = rows_of(part)
    order = np.random.default_rng([SEED, epoch, rows.start, rows.stop]).permutation(len(rows))
    return [rows[int(place)] for place in order]


def _write_evaluation(folder, params):
    last = end_checksum(1 + STEPS_PER_SEGMENT * (len(params["ranges"]) * params["train"]["epochs"] - 1))
    trained = BY_HAND["evaluated"]["cell"] | {"parameter_checksum": last}
    models = {"base": BY_HAND["evaluated"]["base"], **dict.fromkeys(params["cells"], trained)}
    samples = [BY_HAND["sample"] | {"continuations": {name: f" words of {name}" for name in models}}]
    content = {"heldout": params["heldout"], "num_rows": 4, "num_tokens": 16, "seq_len": 128}
    write_json(folder / "evaluation" / "evaluation.json", content | {"models": models, "samples": samples})
