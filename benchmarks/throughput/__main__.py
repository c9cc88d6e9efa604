"""`make bench`: our training step beside its peers on this machine's CPU, and what a second process gives.

Prints the tables and writes benchmarks/results/<date>_<machine>_throughput.{json,md}.
"""

import argparse
import dataclasses
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.results_file import RESULTS, write_results
from benchmarks.throughput.contest import OURS, Found, contest
from benchmarks.throughput.groups import Setup
from benchmarks.throughput.rows import DATA_VARIABLE, data_folder
from benchmarks.throughput.sizes import SIZES, Size
from benchmarks.throughput.spreading import MIN_ACCUMULATION, Spread, beyond_import, spread, start_seconds
from benchmarks.throughput.targets import Judged, contest_rows, judge_contest, judge_spread, judge_start, judge_wait
from benchmarks.throughput.waiting import Waited, waited_for_data

PEERS = {"causal_lm": (OURS, "published", "trainer", "accelerated")}
_OF_OTHERS = (OURS, "trainer", "accelerated")
"""The loop as published is one of a language model."""
HEADINGS = [
    "where",
    "who",
    "setting",
    "real tokens/s or images/s",
    "ours / theirs (95 %)",
    "by CPU seconds",
    "peak MiB",
    "loss differs by",
]
_TARGET_HEADINGS = ["what", "target", "found", ""]
_SPREAD_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run."""

    sizes: Sequence[Size]
    """The models."""
    seconds: float
    """Time budget of the rounds of one contest."""
    half_width: float = 0.02
    """Relative, of the widest ratio."""
    min_rounds: int = 10
    """Rounds before the first look."""
    starts: int = 5
    """Starts of a training child."""


@dataclass(frozen=True, kw_only=True)
class Everything:
    """What came out."""

    models: dict[str, str]
    """Name of a model -> what it is and what it was trained on."""
    contests: list[Found]
    """One per model and number of processes."""
    spreads: dict[str, Spread]
    """Language model -> two processes against one."""
    starts: dict[str, list[float]]
    """Seconds of starts."""
    waits: dict[str, Waited]
    """Setup -> what a training waited for data."""

    def judged(self) -> list[Judged]:
        """Return every target."""
        found = [target for one in self.contests for target in judge_contest(one)]
        found += [target for name, one in self.spreads.items() for target in judge_spread(name, one)]
        found += [judge_wait(name, one) for name, one in self.waits.items()]
        return found + ([judge_start(beyond_import(self.starts))] if self.starts else [])

    def as_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {
            "models": self.models,
            "targets": [dataclasses.asdict(target) for target in self.judged()],
            "contests": [one.as_json() for one in self.contests],
            "spreads": {name: dataclasses.asdict(one) for name, one in self.spreads.items()},
            "starts": self.starts,
            "waits": {name: dataclasses.asdict(one) for name, one in self.waits.items()},
        }


def run(plan: Plan, work: Path, *, data: Path | None, console: Console) -> Everything:
    """Run everything; files go to `work`."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    found = Everything(models={}, contests=[], spreads={}, starts={}, waits={})
    for size in plan.sizes:
        folder = work / size.name
        found.models[size.name] = size.write(folder, data=data)
        setups = [_setup(size, folder, world_size) for world_size in size.world_sizes]
        tried_on_one: dict[str, list[dict[str, Any]]] | None = None
        contests: list[Found] = []
        for setup in setups:
            one = contest(
                setup, PEERS.get(size.workload, _OF_OTHERS), folder / setup.name, max_seconds=plan.seconds,
                half_width=plan.half_width, min_rounds=plan.min_rounds, say=say, tried_on_one=tried_on_one,
            )  # fmt: skip
            if setup.world_size == 1:
                tried_on_one = one.tried
            contests.append(one)
            say(f"{setup.name}: {one.stopped_because}")
        found.contests.extend(contests)
        if max(size.world_sizes) > 1:
            found.spreads[size.name] = _spread(plan, setups[-1], contests[-1].settings[OURS], folder)
        if size.workload == "causal_lm" and not found.starts:
            # The first model has the shortest steps, and its loader the least time.
            found.starts.update(start_seconds(setups[0], folder / "starts", repeats=plan.starts))
            for one in contests:
                found.waits[one.setup.name] = waited_for_data(
                    one.setup, folder / "waits" / one.setup.name, overrides=one.settings[OURS]
                )
    return found


def _setup(size: Size, folder: Path, world_size: int) -> Setup:
    return Setup(
        name=f"{size.name}, {world_size} process{'es' * (world_size > 1)}",
        model_dir=folder / "model",
        slice_dir=folder / "rows",
        num_rows=len(np.load(folder / "rows" / "row_ids.npy")),
        world_size=world_size,
        global_batch_size=size.global_batch_size,
        seq_len=size.seq_len,
        steps_per_block=size.steps_per_block,
        workload=size.workload,
    )


def _spread(plan: Plan, setup: Setup, setting: dict[str, Any], folder: Path) -> Spread:
    """Return two processes against one, at our best setting but with the small micro-batches of much accumulation."""
    overrides = {**setting, "micro_batch_size": _SPREAD_BATCH // (2 * MIN_ACCUMULATION)}
    larger = dataclasses.replace(setup, name="spread", global_batch_size=_SPREAD_BATCH, steps_per_block=1)
    return spread(
        larger, folder / "spread", overrides=overrides, max_seconds=plan.seconds, half_width=plan.half_width,
        min_rounds=plan.min_rounds,
    )  # fmt: skip


def method_of(found: Everything) -> str:
    """Return how it was measured, in words."""
    first = found.contests[0].setup
    loads = ", ".join(f"{one.load:.1f} ({one.num_rounds} rounds)" for one in found.contests)
    models = "; ".join(f"{name}: {what}" for name, what in found.models.items())
    return (
        f"{models}. Random weights; {first.precision}, {first.threads} thread per process, gloo. Ids above a language "
        "model's vocabulary are folded into it by their remainder, so that lengths are "
        "the real ones. Each peer runs in processes of its own, which wait idle between its blocks. A round is a block "
        "of each peer in random order and then a block of each in the reverse order; all blocks of a half have the "
        "same rows, and the learning rate is 0, so that weights stay what they are. Settings of every peer, ours among "
        "them, were tried first in turns on the same three blocks, and those within 5 % of the fastest on four more "
        "(the JSON file has all): on one process all of them, "
        "by CPU seconds; on several the few best of one and those that load the processes more evenly, by seconds of "
        "the slowest. The best by the median is taken; of those within 1 % of it, the one with the smallest "
        "micro-batches. Ratios: of means over rounds, paired, Student's t. By CPU seconds: the same of what "
        "processes computed, without waiting, which load by others hardly changes. Lengths are grouped within the rows "
        "of a block. Ours includes ledger, window and a log point per block; checkpoints, evaluation and tracking are "
        "outside the clock for "
        f"everybody. Load average of five minutes at the end of each contest, its own included: {loads}."
    )


NOT_CLAIMED = (
    "Not claimed: anything about GPUs, other models, other sequence lengths or longer groups of lengths than a block; "
    "peak memory is resident memory of all processes, their imports included. Two virtual cores are often one physical "
    "core, so that two busy processes may not reach twice one: what independent copies reach is this machine's ceiling."
)


def tables(found: Everything) -> list[Table]:
    """Return the tables to print."""
    printed = []
    titled = (("Throughput", HEADINGS, contest_rows(found.contests)),)
    for title, headings, rows in (*titled, ("Targets", _TARGET_HEADINGS, [one.row() for one in found.judged()])):
        table = Table(*headings, title=title)
        for row in rows:
            table.add_row(*row)
        printed.append(table)
    return printed


def write(found: Everything, *, load_before: float, folder: Path, only: str = "") -> Path:
    """Write both result files; return the markdown. Of some models `only`, they have a name of their own."""
    targets = [
        f"| {' | '.join(_TARGET_HEADINGS)} |",
        "| --- | --- | --- | --- |",
        *(f"| {' | '.join(one.row())} |" for one in found.judged()),
    ]
    return write_results(
        "throughput" + f"_{only}" * bool(only),
        title="Throughput beside other ways to train",
        method=method_of(found),
        headings=HEADINGS,
        rows=contest_rows(found.contests),
        summary="\n".join([*targets, "", NOT_CLAIMED]),
        found=found.as_json(),
        load_before=load_before,
        folder=folder,
    )


def _main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.throughput", description=__doc__)
    parser.add_argument("--data", type=Path, help=f"folder with abstracts and tokenizer (else ${DATA_VARIABLE})")
    parser.add_argument("--seconds", type=float, default=150.0, help="time budget of a contest")
    names = [size.name.split()[0] for size in SIZES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these models alone")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console, load_before = Console(), os.getloadavg()[0]
    sizes = [size for size in SIZES if size.name.split()[0] in arguments.only]
    plan = Plan(sizes=sizes, seconds=arguments.seconds)
    try:
        data = data_folder(arguments.data)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as scratch:
        found = run(plan, Path(scratch), data=data, console=console)
    for table in tables(found):
        console.print(table)
    only = "-".join(arguments.only) if len(sizes) < len(SIZES) else ""
    path = write(found, load_before=load_before, folder=arguments.results, only=only)
    console.print(f"written: {path}")


if __name__ == "__main__":
    _main()
