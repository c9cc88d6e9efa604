"""A training that is stopped, saves, is started again and ends."""

import json
import signal
import subprocess
import sys
import time

from benchmarks.gpu_day.day import ROWS_PER_STEP
from benchmarks.throughput.rows import write_first_rows
from training.process.failure import EXIT_PREEMPTED
from training.process.files import write_json

_NUM_STEPS, _STOP_AFTER = 12, 5


def run(day):
    """Run it. RuntimeError unless it stops and goes on as it should."""
    work = day.scratch / day.part
    num_rows = _NUM_STEPS * ROWS_PER_STEP
    rows = write_first_rows(day.scratch / "training-rows", day.prepared / "rows", num_rows)
    text = day.make_config(log_every_steps=1)
    text["segments"] = [{**text["segments"][0], "range": f"0-{num_rows}", "slice_dir": str(rows)}]
    config = day.scratch / "training.json"
    write_json(config, text)
    first = _launch(config, work, stops_after=_STOP_AFTER)
    saved = sum(file.stat().st_size for file in work.rglob("*") if file.is_file())
    day.write(first=first, saved_bytes=saved)
    if first["exit_code"] != EXIT_PREEMPTED:
        raise RuntimeError(f"the training that was asked to stop ended with {first['exit_code']}")
    second = _launch(config, work)
    (facts,) = (json.loads(file.read_bytes()) for file in work.glob("segments/*/segment.json"))
    line = (
        f"stopped after step {first['last_step']}, saved {saved / 2**30:.1f} GiB and gone "
        f"{first['seconds_to_end']:.1f} s later; first step {first['seconds_to_first_step']:.1f} s after the start, "
        f"{second['seconds_to_first_step']:.1f} s when resumed at step {second['first_step']}; "
        f"{facts['num_steps']} steps, {facts['tokens_per_second']:,.0f} tokens/s, loss {facts['loss']:.4f}"
    )
    day.write(first=first, second=second, saved_bytes=saved, segment=facts, lines=[line])
    if second["first_step"] != first["last_step"] + 1 or second["exit_code"]:
        raise RuntimeError(f"it went on at step {second['first_step']} and ended with {second['exit_code']}")


def _launch(config, work, *, stops_after=0):
    """Start it, ask it to stop after a step if one is given; return how it went."""
    stream = work / "steps.jsonl"
    stream.unlink(missing_ok=True)
    started, asked_at, first_step_at = time.perf_counter(), 0.0, 0.0
    process = subprocess.Popen([sys.executable, "-m", "training", "--config", str(config)])
    while process.poll() is None:
        steps = list(_list_steps(stream))
        first_step_at = first_step_at or (time.perf_counter() if steps else 0.0)
        if stops_after and not asked_at and len(steps) >= stops_after:
            asked_at = time.perf_counter()
            process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    steps = list(_list_steps(stream))
    return {
        "exit_code": process.returncode,
        "seconds_to_first_step": first_step_at - started,
        "seconds_to_end": time.perf_counter() - (asked_at or started),
        "first_step": steps[0] if steps else 0,
        "last_step": steps[-1] if steps else 0,
    }


def _list_steps(stream):
    """Yield the steps that are told so far; a line that is still being written is left out."""
    whole = stream.read_text().rpartition("\n")[0] if stream.exists() else ""
    lines = (json.loads(line) for line in whole.splitlines())
    return (line["step"] for line in lines if line["event"] == "step")
