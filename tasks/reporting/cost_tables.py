"""What the comparison costs and when it came to its loss, as words, for the page and the markdown alike."""

from collections.abc import Callable

from tasks.reporting import wording
from tasks.reporting.cost import CellCost, Cost
from tasks.reporting.results import Results
from tasks.reporting.tables import Table
from tasks.reporting.time_to_loss import NEAR_SHARE


def missing(results: Results) -> str | None:
    """Return why nothing is said about cost; None if something is."""
    if results.is_withheld:
        return "Withheld with the speedup, from which it follows."
    return "Not worked out: these results are of an earlier version." if results.cost is None else None


def notes(results: Results) -> list[str]:
    """Return at what price, from which figures and under which assumptions, one sentence each."""
    cost = results.cost
    if cost is None:
        return []
    sentences = [_price(cost)]
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
    if any(cell.num_baseline_jobs for cell in cost.cells):
        sentences.append(
            "Jobs side by side are taken to run each as fast as alone; where they share cores, memory, storage or "
            "power they are slower than that."
        )
    return [wording.in_unit(sentence, results.unit) for sentence in sentences]


def _price(cost: Cost) -> str:
    if cost.price_per_gpu_hour_usd is None:
        return "No price is stated (cost.price_per_gpu_hour in params.yaml), so there is nothing in money here."
    source = f", {cost.price_source}" if cost.price_source else ""
    return f"At {wording.usd(cost.price_per_gpu_hour_usd)} per device and hour ({cost.price_date}{source})."


def tables(results: Results) -> list[Table]:
    """Return what each cell costs, and one job on N devices beside N jobs; nothing where it is missing."""
    cost = results.cost
    if cost is None:
        return []
    jobs = _jobs(cost)
    return [_cells(cost).in_unit(results.unit), *([jobs] if jobs.rows else [])]


def _cells(cost: Cost) -> Table:
    """Return what each cell costs; money and energy only where they are known of a cell."""
    columns: list[tuple[str, Callable[[CellCost], str]]] = [
        ("Cell", lambda cell: cell.cell),
        ("Devices", lambda cell: str(cell.num_devices)),
        ("Device hours per epoch", lambda cell: wording.three_digits(cell.device_hours_per_epoch)),
    ]
    money: list[tuple[str, Callable[[CellCost], float | None]]] = [
        ("Cost per epoch", lambda cell: cell.usd_per_epoch),
        ("Cost per 1M tokens", lambda cell: cell.usd_per_million_tokens),
    ]
    energy: list[tuple[str, Callable[[CellCost], float | None]]] = [
        ("Energy per epoch", lambda cell: cell.kwh_per_epoch),
        ("Energy per 1M tokens", lambda cell: cell.kwh_per_million_tokens),
    ]
    columns += [(name, _shown(figure, wording.usd)) for name, figure in money if _is_known(cost, figure)]
    columns.append(("Cost of the speedup", _cost_of_speedup(cost)))
    columns += [(name, _shown(figure, _kwh)) for name, figure in energy if _is_known(cost, figure)]
    rows = [[value(cell) for _, value in columns] for cell in cost.cells]
    return Table("What each cell costs", [name for name, _ in columns], rows)


def _is_known(cost: Cost, figure: Callable[[CellCost], float | None]) -> bool:
    return any(figure(cell) is not None for cell in cost.cells)


def _shown(figure: Callable[[CellCost], float | None], words: Callable[[float], str]) -> Callable[[CellCost], str]:
    def value(cell: CellCost) -> str:
        found = figure(cell)
        return wording.NOT_AVAILABLE if found is None else words(found)

    return value


def _cost_of_speedup(cost: Cost) -> Callable[[CellCost], str]:
    def value(cell: CellCost) -> str:
        if cell is cost.cells[0]:
            return "baseline"
        if cell.cost_of_speedup is None:
            return wording.NOT_AVAILABLE
        if cell.cost_of_speedup_low is None or cell.cost_of_speedup_high is None:
            return f"{cell.cost_of_speedup:.2f} times"
        return f"{cell.cost_of_speedup:.2f} times ({cell.cost_of_speedup_low:.2f} to {cell.cost_of_speedup_high:.2f})"

    return value


def _kwh(value: float) -> str:
    return f"{wording.three_digits(value)} kWh"


def _jobs(cost: Cost) -> Table:
    """Return for every cell one job on its devices, and below it as many jobs of the baseline on the same ones."""
    first, *others = cost.cells
    has_price = first.usd_per_result is not None
    rows = []
    for cell in others:
        if cell.num_baseline_jobs is None or cell.baseline_results_per_hour is None:
            continue
        several = f"{wording.counted(cell.num_baseline_jobs, 'job')} of {first.cell}"
        for name, one, per_hour in (
            (f"1 job of {cell.cell}", cell, cell.results_per_hour),
            (several, first, cell.baseline_results_per_hour),
        ):
            money = [] if one.usd_per_result is None else [wording.usd(one.usd_per_result)]
            seconds, results = wording.seconds(one.result_seconds), wording.three_digits(per_hour)
            rows.append([name, str(cell.num_devices), seconds, results, *money])
    headings = ["Jobs", "Devices", "First result after", "Results per hour", *["Cost per result"] * has_price]
    return Table("One job on all devices, or one on each", headings, rows)


def reached(results: Results) -> str | None:
    """Return what loss the seconds in `times_to_loss` lead to, in a sentence; None where that was not looked at."""
    found = results.quality.time_to_loss
    if found is None:
        return None
    target = f"{wording.loss(found.target_loss)} {results.loss_unit}"
    which = (
        "the loss that params.yaml states"
        if found.is_stated
        else f"within {wording.small_percent(NEAR_SHARE)} of where {results.baseline.cell} ended"
    )
    mean = "" if found.window_steps == 1 else f", mean over {found.window_steps} steps"
    sentence = f"Time to quality: until the training loss{mean} was {target} for the first time, {which}."
    if any(cell.is_withheld for cell in results.cells):
        return sentence
    return f"{sentence} The same training comes there at the same step, so the seconds tell the speed."


def times_to_loss(results: Results) -> Table | None:
    """Return when each cell came to the loss; None where that was not looked at."""
    found = results.quality.time_to_loss
    if found is None:
        return None
    rows = [
        [cell.cell, "never", wording.NOT_AVAILABLE]
        if cell.step is None or cell.train_seconds is None
        else [cell.cell, wording.count(cell.step), wording.seconds(cell.train_seconds)]
        for cell in found.cells
    ]
    return Table(f"To a loss of {wording.loss(found.target_loss)}", ["Cell", "Reached at step", "Seconds to it"], rows)
