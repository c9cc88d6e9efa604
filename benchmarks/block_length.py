"""Does a step take as long in timed blocks as in a training, and does the length of a block matter?

In one sitting, turn by turn and for every cell of params.yaml: the steps of one range in blocks of 1, 4 and 16 steps,
and a training over the same range. Needs what `dvc repro slice` makes. Writes
benchmarks/results/<date>_<machine>_block-length.{json,md}.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.real_session import open_bench, plan_real_session
from benchmarks.results_file import RESULTS, write_results
from benchmarks.rounds import compute_ratio
from tasks.measuring.arms import Cell, make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.intervals import FEWEST_TURNS
from tasks.measuring.planning import Session
from tasks.ranks.cell_ranks import run_ranks
from tasks.records.estimate import Estimate
from training.probing.cpu_use import CpuUse

_LENGTHS = (1, 4, 16)
_TRAINING = "training"
_TARGET = 0.02


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """The same steps, run in one way."""

    seconds: float
    """Mean of a step."""
    others_share: float
    """Share of the CPUs that others used meanwhile; 0 where the machine does not tell."""


@dataclass
class Found:
    """What was measured of each cell and way, turn by turn: of turns in which nobody else was there."""

    stretches: dict[tuple[str, str], list[Stretch]] = field(default_factory=dict)
    """(Cell, way) -> one per quiet turn of the cell."""
    num_loud: int = 0
    """Turns of a cell that were set aside."""

    def list_seconds(self, cell: str, way: str) -> list[float]:
        """Return the mean seconds of a step, turn by turn."""
        return [one.seconds for one in self.stretches[cell, way]]


def time_blocks(bench: Bench, cell: Cell, *, num_steps: int, length: int) -> Stretch:
    """Run the first range's steps 1 to `num_steps` in blocks of `length`."""
    arm = make_trained_arm(cell)
    blocks = [bench.run(arm, [*range(start, start + length)]) for start in range(1, num_steps + 1, length)]
    return Stretch(
        seconds=sum(block.seconds for block in blocks) / len(blocks),
        others_share=sum(block.others_share or 0.0 for block in blocks) / len(blocks),
    )


def time_training(session: Session, cell: Cell, *, num_steps: int) -> Stretch:
    """Run the same steps as a training over the range, its ranks started for it."""
    with tempfile.TemporaryDirectory() as scratch:
        told = session.configs[cell.name]
        config = dataclasses.replace(told, work_dir=Path(scratch), segments=told.segments[:1])
        used, before = CpuUse(), _sum_children_seconds()
        run_ranks(
            config, launcher=session.params.cells[cell.name].launcher, stop=threading.Event(),
            follow=lambda events: None,
        )  # fmt: skip
        (steps,) = Path(scratch).glob("segments/*/steps.jsonl")
        seconds = [json.loads(line)["seconds"] for line in steps.read_text(encoding="utf-8").splitlines()]
        told = used.measure()
        own = told["own_seconds"] + _sum_children_seconds() - before
        others = 0.0 if told["busy_seconds"] is None else told["busy_seconds"] - own
    return Stretch(
        seconds=sum(seconds[:num_steps]) / num_steps,
        others_share=max(others, 0.0) / (told["num_cpus"] * told["seconds"]),
    )


def _sum_children_seconds() -> float:
    """Return the CPU seconds of all processes of this one that have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system


def measure_turns(num_turns: int) -> Found:
    """Return what so many turns of every cell found."""
    found, order = Found(), random.Random(1)
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(plan_real_session())
        bench = stack.enter_context(open_bench(session))
        cells, most_share = session.comparison.cells, session.comparison.most_share
        num_steps = min(bench.facts(make_trained_arm(cell))[0]["num_steps_of_segments"][0] for cell in cells)
        num_steps -= num_steps % max(_LENGTHS)
        turns = [cell for _ in range(num_turns) for cell in cells]
        for cell in track(turns, description="turns", console=Console(stderr=True)):
            ways = [*_LENGTHS, None]
            order.shuffle(ways)
            turn = {
                _name_way(length): time_training(session, cell, num_steps=num_steps)
                if length is None
                else time_blocks(bench, cell, num_steps=num_steps, length=length)
                for length in ways
            }
            if any(stretch.others_share > most_share for stretch in turn.values()):
                found.num_loud += 1
                continue
            for way, stretch in turn.items():
                found.stretches.setdefault((cell.name, way), []).append(stretch)
    return found


def _name_way(length: int | None) -> str:
    return _TRAINING if length is None else f"blocks of {length}"


def _main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.block_length", description=__doc__)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    found = measure_turns(arguments.turns)
    ratios = {
        (cell, way): compute_ratio(found.list_seconds(cell, way), found.list_seconds(cell, _TRAINING))
        for cell, way in sorted(found.stretches)
        if way != _TRAINING and len(found.stretches[cell, way]) >= FEWEST_TURNS
    }
    biased = [
        f"{way} of {cell}"
        for (cell, way), ratio in ratios.items()
        if ratio.low > 1 + _TARGET or ratio.high < 1 - _TARGET
    ]
    path = write_results(
        "block-length",
        title="A step in blocks and in a training",
        method=(
            "The steps of the first range of params.yaml, the same ones every time, in blocks of "
            f"{', '.join(map(str, _LENGTHS))} steps and in a training whose ranks were started for it; the ways take "
            f"turns in random order, {arguments.turns} times. Turns of a cell in which others used more of the CPUs "
            "than `measure.others_share` are set aside. Ratios are of means, with 95 % intervals."
        ),
        headings=["cell", "way", "quiet turns", "seconds of a step", "against training"],
        rows=[
            [
                cell, way, str(len(stretches)), f"{sum(found.list_seconds(cell, way)) / len(stretches):.4f}",
                _show(ratios.get((cell, way))),
            ]
            for (cell, way), stretches in sorted(found.stretches.items())
        ],
        summary=(
            f"Off by more than {_TARGET:.0%} beyond doubt: {', '.join(biased) or 'none'}. {found.num_loud} turns of a "
            f"cell were set aside."
        ),
        found=[
            {"cell": cell, "way": way, "stretches": [dataclasses.asdict(one) for one in stretches]}
            for (cell, way), stretches in sorted(found.stretches.items())
        ],
        load_before=load_before,
        folder=arguments.results,
    )  # fmt: skip
    print(path.read_text(encoding="utf-8"))
    return 1 if biased else 0


def _show(ratio: Estimate | None) -> str:
    return "" if ratio is None else f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


if __name__ == "__main__":
    sys.exit(_main())
