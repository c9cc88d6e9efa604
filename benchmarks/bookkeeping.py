"""What the gates cost: ledger, window and log points against the bare optimizer step, on 1 and on 2 CPU processes.

Blocks of steps with and without bookkeeping alternate in one process group (A B, B A, ...), so that whatever else the
machine does hits both alike. Prints a table and writes benchmarks/results/<date>_<machine>_bookkeeping.{json,md}.
"""

import argparse
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ranks import run_to_end
from benchmarks.results_file import RESULTS, write_results
from benchmarks.throughput.rows import write_tiny_training
from tasks.data.builtin.corpus import read_corpus
from tasks.params import Params, load_params
from tasks.records.sources import BaseModelManifest
from tasks.train import CellTraining, PlannedSegment
from training.process.files import write_json

_PROJECT = Path(__file__).resolve().parent.parent
_TARGET = 0.01
_NUM_DRAWS = 10_000
_RANGE = "0-256"
_WHAT = {
    "counted": "ledger and window, inside the clock of every step",
    "logged": "the same and a log point after every step, which is outside the clock",
}
_ONE_OFFS = {
    "counter_seconds_per_step": ("counting all-reduces, in both arms", "step"),
    "log_point_seconds": ("a log point alone, where no rank waits for the other", "log point"),
    "ledger_seconds_per_segment": ("ledgers of 50 steps gathered and put on disk, outside the clock", "segment"),
    "checksums_seconds_per_segment": ("checksums of all ranks gathered, outside the clock", "segment"),
}


def prepare(folder: Path) -> None:
    """Write the embedded model and the first rows of its data."""
    num_rows = int(_RANGE.partition("-")[2])
    texts = list(itertools.islice(read_corpus(), num_rows))
    write_tiny_training(folder / "base_model", folder / "slices" / _RANGE, texts)


def run_ranks(folder: Path, params: Params, cell: str, *, pairs: int, steps: int) -> dict[str, Any]:
    """Start the ranks of the cell and return what they timed."""
    segment = PlannedSegment(range=_RANGE, epoch=1, fingerprint="benchmark", folder="", num_steps=steps)
    run = CellTraining(
        params=params, cell=cell, device="cpu", base_model=BaseModelManifest.model_construct(digest=""),
        code_digest="", machine_digest="", segments=[segment], work=folder / cell,
    )  # fmt: skip
    config, out = folder / cell / "config.json", folder / cell / "out.json"
    write_json(config, run.config(base_model=folder / "base_model", slices=folder / "slices").as_json())
    run_to_end(
        config, world_size=params.cells[cell].world_size, threads=params.train.threads_per_rank,
        module="benchmarks.bookkeeping_rank",
        arguments=["--out", str(out), "--pairs", str(pairs), "--steps", str(steps)],
    )  # fmt: skip
    timed: dict[str, Any] = json.loads(out.read_bytes())
    return timed


def relative_cost(pairs: np.ndarray) -> tuple[float, float, float]:
    """Return the median of with / bare - 1 and its 95 % interval by bootstrap; pairs: (n, 2), bare first.

    The ratio is taken within each pair, whose blocks follow each other: what comes and goes on a shared machine within
    minutes then cancels out, which it does not in a ratio of medians.
    """
    ratios = pairs[:, 1] / pairs[:, 0] - 1
    draws = np.random.default_rng(0).integers(0, len(pairs), size=(_NUM_DRAWS, len(pairs)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)


def summarise(world_size: int, timed: dict[str, Any], *, steps: int) -> dict[str, Any]:
    """Return the figures of one process group."""
    everything = np.array([pair for pairs in timed["pairs"].values() for pair in pairs])
    step_seconds = float(np.median(everything[:, 0])) / steps
    arms = {}
    for arm, pairs in timed["pairs"].items():
        cost, low, high = relative_cost(np.array(pairs))
        inside = timed["inside"][arm]
        arms[arm] = {
            "relative_cost": cost,
            "interval": [low, high],
            "seconds_in_calls_per_step": inside,
            "share_in_calls": inside / step_seconds,
            "pairs": pairs,
        }
    one_offs = timed["one_offs"]
    return {
        "world_size": world_size,
        "bare_step_seconds": step_seconds,
        "arms": arms,
        "log_point_seconds": one_offs["log_point"],
        "counter_seconds_per_step": 2 * one_offs["counter"],
        "ledger_seconds_per_segment": one_offs["ledger"],
        "checksums_seconds_per_segment": one_offs["checksums"],
    }


def list_rows(found: list[dict[str, Any]]) -> list[list[str]]:
    """Return the figures as lines of the table."""
    rows = []
    for group in found:
        where = [str(group["world_size"]), f"{1e3 * group['bare_step_seconds']:.1f} ms"]
        for arm, facts in group["arms"].items():
            low, high = facts["interval"]
            cost = f"{facts['relative_cost']:+.2%} ({low:+.2%} to {high:+.2%})"
            inside = f"{1e6 * facts['seconds_in_calls_per_step']:.0f} µs per step"
            rows.append([*where, _WHAT[arm], cost, inside, f"{facts['share_in_calls']:.2%}"])
        for key, (what, unit) in _ONE_OFFS.items():
            share = f"{group[key] / group['bare_step_seconds']:.2%}"
            rows.append([*where, what, "", f"{1e6 * group[key]:,.0f} µs per {unit}", share])
    return rows


def judged(low: float, high: float) -> str:
    """Return what an interval of the relative cost says about the target."""
    if high <= _TARGET:
        return "held"
    return "missed" if low > _TARGET else "not resolved: the noise of this machine is larger"


def judgement_of(group: dict[str, Any]) -> list[str]:
    """Return how one process group stands to the target, in a line for each arm."""
    step = group["bare_step_seconds"]
    own = group["arms"]["counted"]["seconds_in_calls_per_step"] + group["counter_seconds_per_step"]
    in_calls = {"counted": own / step, "logged": (own + group["log_point_seconds"]) / step}
    ranks = f"{group['world_size']} rank{'s' * (group['world_size'] > 1)}"
    return [
        f"- {ranks}, {_WHAT[arm]}: on against off {judged(*facts['interval'])}; by the time in the calls, without "
        f"waiting for the other rank, {judged(in_calls[arm], in_calls[arm])} ({in_calls[arm]:.3%})"
        for arm, facts in group["arms"].items()
    ]


_NOT_CLAIMED = """\
On against off contains the noise of the machine; the time in the calls does not, but would miss a cost that shows
later, such as a cache made cold. In the row with a log point after every step, the time in the calls contains the
wait for the slower rank, which the next exchange of gradients would have waited for otherwise.

Not claimed: anything about GPUs or other models. The cost is per step and per sample, so it weighs less the longer a
step takes."""


def main() -> None:
    """Run the benchmark, write the result files and print the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.bookkeeping", description=__doc__)
    parser.add_argument("--pairs", type=int, default=100, help="pairs of blocks per arm; at least 20 on a CPU")
    parser.add_argument("--steps", type=int, default=1, help="optimizer steps of a block")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    params, load = load_params(_PROJECT / "presets" / "embedded.yaml"), os.getloadavg()[0]
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        prepare(Path(scratch))
        for cell, spread in params.cells.items():
            timed = run_ranks(Path(scratch), params, cell, pairs=arguments.pairs, steps=arguments.steps)
            found.append(summarise(spread.world_size, timed, steps=arguments.steps))
    train = params.train
    judgements = "\n".join(line for group in found for line in judgement_of(group))
    path = write_results(
        "bookkeeping",
        title="Cost of the bookkeeping",
        method=(
            f"Embedded model and texts, {train.global_batch_size} samples of at most {train.seq_len} tokens per step, "
            f"{train.threads_per_rank} thread per rank; {arguments.pairs} pairs of blocks per line (steps of a block: "
            f"{arguments.steps}), in one process group, alternating A B, B A. On against off: median over the pairs, "
            "paired bootstrap."
        ),
        headings=[
            "ranks",
            "bare step",
            "what",
            "on against off (95 %)",
            "in the calls",
            "share of the step",
        ],
        rows=list_rows(found),
        summary=f"Target: at most {_TARGET:.0%} of step time.\n\n{judgements}\n\n{_NOT_CLAIMED}",
        found={
            "run": train.model_dump(include={"global_batch_size", "micro_batch_size", "seq_len", "threads_per_rank"}),
            "pairs": arguments.pairs,
            "steps": arguments.steps,
            "groups": found,
        },
        load_before=load,
        folder=arguments.results,
    )
    print(path.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
