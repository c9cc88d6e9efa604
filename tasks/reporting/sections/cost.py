"""What the cells cost whose speedup is given."""

from collections.abc import Callable

from tasks.process import wording
from tasks.reporting.blocks import Block, Fold, Items, Table, Text, tabulate
from tasks.reporting.cost import CellCost, Cost
from tasks.reporting.results import Results

TITLE = "What it costs"


def make_blocks(results: Results) -> list[Block]:
    """Return what each cell costs, one job on N devices beside N jobs, and under which assumptions."""
    cost = results.cost
    if results.is_withheld:
        return [Text(wording.FOLLOWS)]
    if cost is None:
        return [Text("Not worked out: these results are of an earlier version.")]
    jobs, how = _tabulate_jobs(cost), Fold("How this was worked out", [Items(_tell(results, cost))])
    columns: list[tuple[str, Callable[[CellCost], str]]] = [
        ("Cell", lambda cell: cell.cell),
        ("Devices", lambda cell: str(cell.num_devices)),
        ("Device hours per epoch", lambda cell: wording.format_three_digits(cell.device_hours_per_epoch)),
    ]
    money: list[tuple[str, Callable[[CellCost], float | None]]] = [
        ("Cost per epoch", lambda cell: cell.usd_per_epoch),
        ("Cost per 1M tokens", lambda cell: cell.usd_per_million_tokens),
    ]
    energy: list[tuple[str, Callable[[CellCost], float | None]]] = [
        ("Energy per epoch", lambda cell: cell.kwh_per_epoch),
        ("Energy per 1M tokens", lambda cell: cell.kwh_per_million_tokens),
    ]
    columns += [_make_column(name, figure, wording.format_usd) for name, figure in money if _is_known(cost, figure)]
    columns.append(("Cost of the speedup", lambda cell: _format_speedup_cost(cell, cost)))
    columns += [_make_column(name, figure, _format_kwh) for name, figure in energy if _is_known(cost, figure)]
    return [
        tabulate("What each cell costs", columns, cost.cells).replace_unit(results.unit),
        *[jobs] * bool(jobs.rows),
        how,
    ]


def _tell(results: Results, cost: Cost) -> list[str]:
    """Return at what price, from which figures and under which assumptions, one sentence each."""
    sentences = [_describe_price(cost)]
    if cost.basis == "measured":
        scaling = "" if results.measurement is None else f" ({results.measurement.scaling} scaling)"
        sentences.append(
            f"Worked out from the tokens of the training and the tokens per second measured in turns{scaling}."
        )
    else:
        sentences.append("Worked out from the tokens per second of the one training of each cell.")
    sentences.append("Optimizer steps only: a device costs as much while it waits, saves or evaluates.")
    if all(cell.device == "cpu" for cell in results.cells):
        sentences.append("On the CPU a device is what one rank takes up.")
    jobs = [cell for cell in cost.cells if cell.num_baseline_jobs is not None]
    if any(cell.baseline_slowdown is None for cell in jobs):
        sentences.append(
            "Jobs side by side are taken to run each as fast as alone; where they share cores, memory, storage or "
            "power they are slower than that."
        )
    sentences += [
        f"{cell.num_baseline_jobs} jobs side by side take {cell.baseline_slowdown:.2f} times as long each as one "
        f"alone: the contention measured between the ranks of {cell.cell} without communication."
        for cell in jobs
        if cell.baseline_slowdown is not None
    ]
    return [wording.replace_unit(sentence, results.unit) for sentence in sentences]


def _describe_price(cost: Cost) -> str:
    if cost.price_per_gpu_hour_usd is None:
        return "No price is stated (cost.price_per_gpu_hour in params.yaml), so there is nothing in money here."
    source = f", {cost.price_source}" if cost.price_source else ""
    return f"At {wording.format_usd(cost.price_per_gpu_hour_usd)} per device and hour ({cost.price_date}{source})."


def _is_known(cost: Cost, figure: Callable[[CellCost], float | None]) -> bool:
    return any(figure(cell) is not None for cell in cost.cells)


def _make_column(
    name: str, figure: Callable[[CellCost], float | None], words: Callable[[float], str]
) -> tuple[str, Callable[[CellCost], str]]:
    return name, lambda cell: wording.format_optional(figure(cell), words)


def _format_speedup_cost(cell: CellCost, cost: Cost) -> str:
    if cell is cost.cells[0]:
        return wording.BASELINE
    if cell.cost_of_speedup is None:
        return wording.NOT_AVAILABLE
    if cell.cost_of_speedup_low is None or cell.cost_of_speedup_high is None:
        return f"{cell.cost_of_speedup:.2f} times"
    return f"{cell.cost_of_speedup:.2f} times ({cell.cost_of_speedup_low:.2f} to {cell.cost_of_speedup_high:.2f})"


def _format_kwh(value: float) -> str:
    return f"{wording.format_three_digits(value)} kWh"


def _tabulate_jobs(cost: Cost) -> Table:
    """Return for every cell one job on its devices, and below it as many jobs of the baseline on the same ones."""
    first, *others = cost.cells
    has_price = first.usd_per_result is not None
    rows = []
    for cell in others:
        if cell.num_baseline_jobs is None or cell.baseline_results_per_hour is None:
            continue
        several = f"{wording.format_plural(cell.num_baseline_jobs, 'job')} of {first.cell}"
        for name, one, per_hour, slower in (
            (f"1 job of {cell.cell}", cell, cell.results_per_hour, 1.0),
            (several, first, cell.baseline_results_per_hour, cell.baseline_slowdown or 1.0),
        ):
            money = [] if one.usd_per_result is None else [wording.format_usd(slower * one.usd_per_result)]
            seconds = wording.format_seconds(slower * one.result_seconds)
            results = wording.format_three_digits(per_hour)
            rows.append([name, str(cell.num_devices), seconds, results, *money])
    headings = ["Jobs", "Devices", "First result after", "Results per hour", *["Cost per result"] * has_price]
    return Table("One job on all devices, or one on each", headings, rows)
