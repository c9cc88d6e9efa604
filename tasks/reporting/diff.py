"""`python -m tasks.reporting.diff A B`: two results.json side by side, of other days, machines or strategies.

Prints tables on a terminal and Markdown, as for a pull request, into a file; `--page` also writes a page.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.process import wording
from tasks.process.failure import ConfigurationError, exit_with_one_line
from tasks.reporting.cell_results import CellResults
from tasks.reporting.data_files import write_text
from tasks.reporting.history import compute_ratio, take_logarithm
from tasks.reporting.render import Form, render
from tasks.reporting.results import Results, read_results
from tasks.reporting.verdict import judge_speedups

_WORK = ("train", "workload", "model", "dataset", "ranges")
"""What is learned from what, of ComparisonFacts: sources with the digests of what they held."""


def render_diff(form: Form, before: Results, now: Results) -> str:
    """Return both verdicts, what is recorded otherwise, and every figure of either with what became of it."""
    pair = before, now = judge_speedups(before), judge_speedups(now)
    facts = [_collect_facts(results) for results in pair]
    rows = [[name, *(str(fact.get(name, "none")) for fact in facts)] for name in dict.fromkeys([*facts[0], *facts[1]])]
    # Samples of a step of each cell as it was trained, and as it was timed.
    sizes, others = (
        {cell.cell: (cell.global_batch_size, (cell.speed or cell).global_batch_size) for cell in results.cells}
        for results in pair
    )
    # Whether the speedups of both are against the same cell, spread in the same way.
    first, other = (next(iter(_describe_cells(results).items())) for results in pair)
    return render(
        form, "diff", before=before, now=now,
        differences=[row for row in rows if row[1] != row[2]],
        figures=list(_list_figures(pair, is_same_baseline=first == other)),
        is_same_baseline=first == other,
        is_other_work=any(size != others.get(name, size) for name, size in sizes.items())
        or any(getattr(before.comparison, name) != getattr(now.comparison, name) for name in _WORK),
    )  # fmt: skip


def _collect_facts(results: Results) -> dict[str, Any]:
    comparison, machine = results.comparison, results.comparison.machine
    gpus = wording.join_names([gpu.name for gpu in machine.gpus]) or "none"
    return {
        "workload": comparison.workload,
        "model": f"{comparison.model.source}, content {comparison.model.digest[:12]}",
        "data": f"{comparison.dataset.source}, content {comparison.dataset.digest[:12]}",
        "ranges": wording.join_names([part.range for part in comparison.ranges]),
        "measured at": f"{results.measurement.scaling} scaling" if results.measurement else "no blocks",
        "CPU": f"{machine.cpu}, {machine.num_cpus} CPUs",
        "GPUs": gpus,
        **machine.versions,
        **comparison.recorded.get("packages", {}),
        **{
            f"{section} {name}": value
            for section in ("kernels", "environment")
            for name, value in comparison.recorded.get(section, {}).items()
        },
        **{f"train.{name}": value for name, value in comparison.train.items()},
        "baseline": results.cells[0].cell,
        **{f"cell {name}": spread for name, spread in _describe_cells(results).items()},
    }


def _describe_cells(results: Results) -> dict[str, str]:
    """Return cell -> how it is spread, the baseline first."""
    options: dict[str, str] = {}
    # What earlier versions or others wrote may have none.
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        cells = json.loads(results.provenance.params if results.provenance else "")["cells"]
        given = {name: cell.get("options", {}) for name, cell in cells.items()}
        options = {name: f", options: {json.dumps(item, sort_keys=True)}" for name, item in given.items() if item}
    return {
        cell.cell: f"{cell.strategy}, {wording.format_plural(cell.world_size, 'rank')} on "
        f"{wording.format_plural(cell.num_nodes, 'machine')}, {cell.launcher}, {cell.global_batch_size} samples "
        f"per step, {cell.micro_batch_size} per forward{options.get(cell.cell, '')}"
        for cell in results.cells
    }


def _list_figures(results: Sequence[Results], *, is_same_baseline: bool) -> Iterator[list[str]]:
    """Yield a row per cell and figure that one of the two has."""
    cells = [{cell.cell: cell for cell in item.cells} for item in results]
    for name in dict.fromkeys([*cells[0], *cells[1]]):
        pair = [item.get(name) for item in cells]
        yield [name, "standing", *(cell.standing.state if cell else "no such cell" for cell in pair), ""]
        for figure, read, show in _FIGURES:
            values = [read(cell) if cell else None for cell in pair]
            is_divided = is_same_baseline or figure not in ("speedup", "efficiency")
            ratio = ""
            if figure in ("step time", "speedup"):
                interval = compute_ratio([take_logarithm(value) for value in values], sign=1) if is_divided else None
                ratio = "" if interval is None else f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"
            elif values == [None, None]:
                continue
            elif is_divided and values[0] and values[1] is not None:
                ratio = f"{values[1] / values[0]:.2f}"
            shown = [
                wording.WITHHELD if figure == "speedup" and cell and cell.is_withheld
                else wording.format_optional(value, show)
                for cell, value in zip(pair, values, strict=True)
            ]  # fmt: skip
            yield [name, figure, *shown, ratio]


_FIGURES: list[tuple[str, Callable[[CellResults], Any], Callable[[Any], str]]] = [
    ("step time", lambda cell: cell.speed and cell.speed.step_seconds, wording.format_duration_with_interval),
    ("speedup", lambda cell: cell.speedup, wording.format_ratio_with_interval),
    ("efficiency", lambda cell: cell.speedup and cell.speedup.parallel_efficiency.value, wording.format_percent),
    ("tokens/s, whole training", lambda cell: cell.whole.tokens_per_second, wording.format_three_digits),
    ("seconds per epoch", lambda cell: cell.seconds_per_epoch, wording.format_seconds),
    ("training loss", lambda cell: cell.whole.loss, wording.format_loss),
    ("peak memory", lambda cell: cell.peak_memory_gib, wording.format_gib),
]


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.reporting.diff", description=__doc__)
    parser.add_argument("before", help="a results.json")
    parser.add_argument("now", help="another one")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page as well")
    arguments = parser.parse_args()
    for name in (arguments.before, arguments.now):
        if not Path(name).is_file():
            raise ConfigurationError(
                f"got {name!r}, which is no file; needed: make diff A=old/results.json B=reports/results.json"
            )
    pair = read_results(Path(arguments.before)), read_results(Path(arguments.now))
    markdown = render_diff("markdown", *pair)
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(markdown))
    else:
        sys.stdout.write(markdown)
    if arguments.page is not None:
        write_text(arguments.page, render_diff("html", *pair))


if __name__ == "__main__":
    exit_with_one_line(_main, name="diff")
