"""`python -m tasks.reporting.diff A B`: two results.json side by side, of other days, machines or strategies.

Prints tables on a terminal and Markdown, as for a pull request, into a file; `--page` also writes a page.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.process import wording
from tasks.process.failure import ConfigurationError, exit_with_one_line
from tasks.records.estimate import Estimate
from tasks.reporting.cell_results import CellResults
from tasks.reporting.data_files import write_text
from tasks.reporting.history import compute_ratio, take_logarithm
from tasks.reporting.render import Form, render
from tasks.reporting.results import Results, read_results

_WORK = ("train", "workload", "model", "dataset", "ranges")
"""What is learned from what, of ComparisonFacts: sources with the digests of what they held."""


def render_diff(form: Form, before: Results, now: Results) -> str:
    """Return both verdicts, what is recorded otherwise, and every figure of either with what became of it."""
    facts = [_collect_facts(results) for results in (before, now)]
    pairs = [[name, *(str(fact.get(name, "none")) for fact in facts)] for name in dict.fromkeys([*facts[0], *facts[1]])]
    sizes, others = map(_collect_batch_sizes, (before, now))
    return render(
        form, "diff", before=before, now=now,
        differences=[row for row in pairs if row[1] != row[2]],
        figures=list(_list_figures(before, now)),
        is_same_baseline=_have_same_baseline(before, now),
        is_other_work=any(size != others.get(name, size) for name, size in sizes.items())
        or any(getattr(before.comparison, name) != getattr(now.comparison, name) for name in _WORK),
    )  # fmt: skip


def _have_same_baseline(before: Results, now: Results) -> bool:
    """Return whether the speedups of both are against the same cell, spread in the same way."""
    first, other = (next(iter(_describe_cells(results).items())) for results in (before, now))
    return first == other


def _collect_batch_sizes(results: Results) -> dict[str, tuple[int, int]]:
    """Return cell -> samples of a step as it was trained, and as it was timed."""
    return {cell.cell: (cell.global_batch_size, (cell.speed or cell).global_batch_size) for cell in results.cells}


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
    options = _read_options(results)
    return {
        cell.cell: f"{cell.strategy}, {wording.format_plural(cell.world_size, 'rank')} on "
        f"{wording.format_plural(cell.num_nodes, 'machine')}, {cell.launcher}, {cell.global_batch_size} samples "
        f"per step, {cell.micro_batch_size} per forward{options.get(cell.cell, '')}"
        for cell in results.cells
    }


def _read_options(results: Results) -> dict[str, str]:
    """Return cell -> `, options: ` and those of its strategy; what earlier versions or others wrote may have none."""
    with suppress(AttributeError, KeyError, TypeError, ValueError):
        cells = json.loads(results.provenance.params if results.provenance else "")["cells"]
        given = {name: cell.get("options", {}) for name, cell in cells.items()}
        return {name: f", options: {json.dumps(item, sort_keys=True)}" for name, item in given.items() if item}
    return {}


def _list_figures(before: Results, now: Results) -> Iterator[list[str]]:
    """Yield a row per cell and figure that one of the two has."""
    cells = [{cell.cell: cell for cell in results.cells} for results in (before, now)]
    is_same_baseline = _have_same_baseline(before, now)
    for name in dict.fromkeys([*cells[0], *cells[1]]):
        pair = [cell.get(name) for cell in cells]
        gates = [cell.standing.state if cell else "no such cell" for cell in pair]
        yield [name, "standing", *gates, ""]
        steps = [cell.speed.step_seconds if cell and cell.speed else None for cell in pair]
        speedups: list[Estimate | None] = [cell.speedup if cell else None for cell in pair]
        yield [name, "step time", *_show(steps, wording.format_duration_with_interval), _divide(steps)]
        shown = _show(speedups, wording.format_ratio_with_interval)
        shown = [
            wording.WITHHELD if cell and cell.is_withheld else item for cell, item in zip(pair, shown, strict=True)
        ]
        yield [name, "speedup", *shown, _divide(speedups) if is_same_baseline else ""]
        for figure, read, show in _PLAIN:
            values = [read(cell) if cell else None for cell in pair]
            is_divided = is_same_baseline or figure != _EFFICIENCY
            ratio = f"{values[1] / values[0]:.2f}" if is_divided and values[0] and values[1] is not None else ""
            if any(value is not None for value in values):
                yield [name, figure, *_show(values, show), ratio]


_EFFICIENCY = "efficiency"
_PLAIN: list[tuple[str, Callable[[CellResults], float | None], Callable[[Any], str]]] = [
    (
        _EFFICIENCY,
        lambda cell: cell.speedup.parallel_efficiency.value if cell.speedup else None,
        wording.format_percent,
    ),
    ("tokens/s, whole training", lambda cell: cell.whole.tokens_per_second, wording.format_three_digits),
    ("seconds per epoch", lambda cell: cell.seconds_per_epoch, wording.format_seconds),
    ("training loss", lambda cell: cell.whole.loss, wording.format_loss),
    ("peak memory", lambda cell: cell.peak_memory_gib, wording.format_gib),
]


def _show(values: list[Any], show: Callable[[Any], str]) -> list[str]:
    return [wording.NOT_AVAILABLE if value is None else show(value) for value in values]


def _divide(pair: list[Estimate | None]) -> str:
    """Return the second / the first, with the interval of both sessions' noise."""
    ratio = compute_ratio([take_logarithm(item) for item in pair], sign=1)
    return "" if ratio is None else f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


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
