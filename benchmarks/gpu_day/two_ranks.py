"""Two ranks on the one card, over gloo, against one: losses, weights, and each update computed a second time.

Of the model's architecture with few layers, in fp32. NCCL refuses two ranks on one card.
"""

import dataclasses
import json
import time
from pathlib import Path

from benchmarks.throughput.rows import write_first_rows, write_random_model
from tasks.equivalence.differences import Differences
from tasks.equivalence.updates import check_update
from tasks.ranks.launchers.torchrun import LocalRanks
from training.config import parse_config
from training.model.weights import load_tensors
from training.process.files import write_json
from training.state.update_keeper import FACTS, RESULT, UPDATES_FOLDER

_STRATEGIES = {"1 rank": "single", "2 ranks, ddp": "ddp", "2 ranks, fsdp2": "fsdp2", "2 ranks, zero1": "zero1"}
_CHECKED = "2 ranks, ddp"
_STEPS, _ROWS_PER_STEP = 3, 16
_SMALL = {"num_hidden_layers": 2, "vocab_size": 8192}
_MOST_LOSS, _MOST_WEIGHTS = 1e-5, 1e-5
"""Relative differences that count as equal."""


def run(day):
    """Train with each strategy at once, then compare. RuntimeError if ranks do not end well."""
    shape = json.loads((day.prepared / "config.json").read_bytes())
    vocab_size = min(_SMALL["vocab_size"], shape["vocab_size"])
    model = write_random_model(day.scratch / "small", {**shape, **_SMALL, "vocab_size": vocab_size})
    num_rows = _STEPS * _ROWS_PER_STEP
    rows = write_first_rows(day.scratch / "few-rows", day.prepared / "rows", num_rows, vocab_size=vocab_size)
    launches, payload = {}, {}
    for name, strategy in _STRATEGIES.items():
        payload[name] = _make_config(day, model, rows, strategy=strategy)
        if name == _CHECKED:
            payload[name]["segments"][0]["checked_steps"] = list(range(1, _STEPS + 1))
        folder = Path(payload[name]["work_dir"])
        write_json(folder / "config.json", payload[name])
        launches[name] = LocalRanks(
            folder / "config.json", world_size=payload[name]["world_size"], threads_per_rank=2,
            log_folder=folder / "logs",
        )  # fmt: skip
    try:
        result, failed = _follow(day, launches, payload[_CHECKED])
        base = {name: read_end(Path(payload[name]["work_dir"])) for name in result}
        compared = {name: _compare(base[name], base["1 rank"]) for name in result if "1 rank" in base}
        day.write(ended=result, compared=compared, lines=_format(compared, []))
        if _CHECKED in result:
            updates = base[_CHECKED]["updates"]
            day.write(ended=result, compared=compared, updates=updates, lines=_format(compared, updates))
        if failed:
            raise RuntimeError(f"{failed[0]}: {launches[failed[0]].explain_end()}")
    finally:
        for launch in launches.values():
            launch.stop(grace_seconds=0.0)


def _make_config(day, model, rows, *, strategy):
    num_rows = _STEPS * _ROWS_PER_STEP
    setup = day.make_setup(
        model_dir=model, slice_dir=rows, num_rows=num_rows, global_batch_size=_ROWS_PER_STEP, precision="fp32",
        world_size=1 if strategy == "single" else 2, threads=2,
    )  # fmt: skip
    text = setup.training(day.scratch / day.part / strategy)
    return {**text, "strategy": strategy, "oversubscribe": True, "micro_batch_size": 4, "log_every_steps": 1}


def _follow(day, launches, checked):
    """Return the seconds of those that ended well, and the others; compute updates of `checked` twice meanwhile."""
    started, ended, failed = time.perf_counter(), {}, []
    while len(ended) + len(failed) < len(launches):
        for name, launch in launches.items():
            if name not in ended and name not in failed and not launch.is_running:
                if launch.exit_code() == 0:
                    ended[name] = time.perf_counter() - started
                    day.write(ended=ended)
                else:
                    failed.append(name)
        _replay(checked)
        time.sleep(0.1)
    return ended, failed


def _replay(payload):
    """Compute the update that the ranks wait for, if they do."""
    folder = Path(payload["work_dir"]) / UPDATES_FOLDER
    if not (folder / FACTS).exists() or (folder / RESULT).exists():
        return
    # Here: seconds of imports, while the ranks start.
    from tasks.equivalence.reference.update import OneProcess

    config = parse_config(payload)
    write_json(folder / RESULT, dataclasses.asdict(check_update(config, OneProcess(config), folder)))


def read_end(work):
    """Return the losses of a training's steps, its weights at the end, and what was found of its updates."""
    lines = [json.loads(line) for line in (work / "steps.jsonl").read_text().splitlines()]
    (weights,) = work.glob("segments/*/*-epoch-1.pt")
    updates = json.loads((weights.parent / "segment.json").read_bytes())["checked_updates"]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    return {"losses": losses, "weights": load_tensors(weights), "updates": updates}


def _compare(results, expected):
    """Return the largest relative difference of a loss, and that of the weights."""
    losses = [
        abs(loss - other) / max(other, 1e-9) for loss, other in zip(results["losses"], expected["losses"], strict=True)
    ]
    differences = Differences()
    for name, part in expected["weights"].items():
        differences.add(name, results["weights"][name], part, since=0 * part)
    weights = differences.compare().difference
    return {"loss": max(losses), "weights": weights, "is_equal": max(losses) < _MOST_LOSS and weights < _MOST_WEIGHTS}


def _format(compared, updates):
    lines = [
        f"{name}: {'equal' if item['is_equal'] else 'NOT EQUAL'}, loss {item['loss']:.1e} and weights "
        f"{item['weights']:.1e} from 1 rank's"
        for name, item in compared.items() if name != "1 rank"
    ]  # fmt: skip
    for update in updates:
        text = "; ".join(f"{kind} {its['difference']:.1e}" for kind, its in update["compared"].items())
        lines.append(
            f"{_CHECKED}, update {update['step']} a second time: {update['verdict']} {update['problem'] or text}"
        )
    return lines
