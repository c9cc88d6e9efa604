"""`make reanalyse`: the speedups once more from the raw blocks of a report, by several figures; nothing is run.

Anybody who has blocks.parquet can do it: with another share of others that a quiet turn allows, or by other statistics.
What a gate withholds is withheld here too, unless it asked for more quiet turns alone: those may be counted otherwise.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tasks.measuring.intervals import compute_trimmed_mean
from tasks.measuring.speedups import Speedups, compute_launch_effect, compute_speedups
from tasks.measuring.turns import Timed, TimedTurns, choose_seconds
from tasks.process import wording
from tasks.process.failure import DataError, exit_with_one_line
from tasks.records.blocks import BLOCKS_FILE, ArmBlocks, BlockWork, read_blocks
from tasks.records.estimate import Estimate
from tasks.records.gate import QUIET_TURNS
from tasks.records.measurement import Measurement
from tasks.records.stage_file import damaged


def _main() -> None:
    arguments = _parse_arguments()
    published, withheld, notes = _read_published(arguments.reports / "results.json")
    arms = [one for one in read_blocks(arguments.reports / BLOCKS_FILE) if one.phase == "speedup"]
    if not arms:
        raise DataError(f"{arguments.reports / BLOCKS_FILE}: has no timed blocks: measure.speed was off; switch it on")
    most = arguments.others_share
    if most is None:
        most = 1.0 if published is None else published.most_others_share
    Console(file=sys.stdout, width=180).print(_tabulate(arms, most, published, withheld, notes))


def _read_published(path: Path) -> tuple[Measurement | None, dict[str, str], dict[str, str]]:
    """Return what a report says was measured, None if it says nothing of it, cell -> the gates that withhold it, and
    cell -> what its figure is if it is no proven speedup.

    Raises DataError without a report.
    """
    try:
        results = json.loads(path.read_bytes())
        found, standings = results["measurement"], {cell["cell"]: cell["standing"] for cell in results["cells"]}
        withheld = {
            cell: ", ".join(one["gates"])
            for cell, one in standings.items()
            if one["state"] == "withheld" and one["gates"] != [QUIET_TURNS]
        }
        notes = {cell["cell"]: ", ".join(_list_notes(cell, results)) for cell in results["cells"]}
        return None if found is None else Measurement.model_validate(found), withheld, notes
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from None


def _list_notes(cell: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a cell's figure is, where it is no proven speedup at equal work."""
    if cell.get("is_other_training"):
        yield f"{wording.OTHER_TRAINING}, speed per {results['comparison']['unit']}"
    if cell["standing"]["state"] == "unproven":
        yield "unproven"


def _tabulate(
    arms: Sequence[ArmBlocks],
    most_share: float,
    published: Measurement | None,
    withheld: Mapping[str, str],
    notes: Mapping[str, str],
) -> Table:
    """Return a line for each cell but the first: its speedup by several figures, beside the published one."""
    timed_turns = make_timed_turns(arms)
    of = choose_seconds(is_per_token=published is not None and published.is_per_token)
    names = [one.arm for one in arms]
    table = Table(
        title=f"{len(timed_turns.turns)} turns; quiet are those in which others used at most "
        f"{wording.format_small_percent(most_share)} of the CPUs during a cell's block and the first cell's; 95 % "
        "intervals"
    )
    for column in (
        "Cell",
        "published",
        "quiet turns",
        "of quiet turns",
        "of all turns",
        "medians",
        "trimmed means",
        "starts differ by",
    ):
        table.add_column(column)
    select_quiet = Speedups(timed_turns=timed_turns, baseline=names[0], most_share=most_share).select_quiet
    by_quiet, by_all = (
        compute_speedups(select, names, of, confidence=0.95) for select in (select_quiet, lambda _: timed_turns)
    )
    for name in names[1:]:
        if name in withheld:
            table.add_row(name, f"{wording.WITHHELD}: {withheld[name]}", *[wording.WITHHELD] * 6)
            continue
        quiet = select_quiet(name)
        effect = compute_launch_effect(quiet, names[0], name, of)
        table.add_row(
            f"{name} ({note})" if (note := notes.get(name)) else name,
            _find_published(published, name),
            str(len(quiet.turns)),
            *(_show(one.get(name)) for one in (by_quiet, by_all)),
            *(_compare(quiet, names[0], name, of, figure) for figure in (np.median, compute_trimmed_mean)),
            wording.NOT_AVAILABLE if effect is None else wording.format_small_percent(effect),
        )
    return table


def make_timed_turns(arms: Sequence[ArmBlocks]) -> TimedTurns:
    """Return the blocks as they were when they ran, as far as seconds and tokens go."""
    timed_turns = TimedTurns()
    for arm in arms:
        for block in arm.blocks:
            timed_turns.add(_make_timed(arm.arm, block))
    return timed_turns


def _make_timed(arm: str, block: BlockWork) -> Timed:
    return Timed(
        arm=arm, turn=block.turn, launch=block.launch, step_seconds=np.array(block.step_seconds),
        seconds=block.seconds / len(block.steps), data_wait_seconds=0.0, num_tokens=block.num_tokens,
        positions_by_rank=[block.num_positions], num_samples=block.num_samples, others_share=block.others_share,
        has_others_on_gpu=block.has_others_on_gpu,
    )  # fmt: skip


def _compare(
    timed_turns: TimedTurns,
    first: str,
    other: str,
    of: Callable[[Timed], float],
    figure: Callable[[list[float]], float],
) -> str:
    above, below = (timed_turns.list_by_turn(name, of) if name in timed_turns.blocks else [] for name in (first, other))
    return wording.format_ratio(figure(above) / figure(below)) if above and below else wording.NOT_AVAILABLE


def _find_published(published: Measurement | None, name: str) -> str:
    arms = [] if published is None else published.arms
    found = next((arm.speedup for arm in arms if arm.arm == name), None)
    return wording.WITHHELD if found is None else wording.format_ratio_with_interval(found)


def _show(interval: Estimate | None) -> str:
    return "too few turns" if interval is None else wording.format_ratio_with_interval(interval)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tasks.measuring.reanalyse", description=__doc__)
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="a report's folder")
    parser.add_argument("--others-share", type=float, help="of the CPUs, that others may use in a quiet turn, 0..1")
    return parser.parse_args()


if __name__ == "__main__":
    exit_with_one_line(_main, name="reanalyse")
