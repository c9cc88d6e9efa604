"""What a speedup costs: device hours, money and energy, and one job on N devices against N jobs on one each.

Every figure follows from the tokens per second of the cells, so that all of them are withheld where the speedup is.
"""

from typing import Literal

from tasks.records.facts import Record
from tasks.records.measurement import Waterfall
from tasks.records.outputs import Outputs
from tasks.reporting.cell_results import CellResults

_SECONDS_PER_HOUR = 3600.0
_JOULES_PER_KWH = 3.6e6


class CellCost(Record):
    """What one cell costs; seconds are those of optimizer steps."""

    cell: str
    """Name of the cell."""
    num_devices: int
    """GPUs that it takes up; on the CPU its ranks."""
    tokens_per_second: float
    """What all figures are worked out from, all devices together."""
    device_hours_per_epoch: float
    """Hours of one pass over all ranges x devices."""
    usd_per_epoch: float | None
    """US dollars of one pass over all ranges; null without a price."""
    usd_per_million_tokens: float | None
    """US dollars of 1,000,000 tokens learned from; null without a price."""
    kwh_per_epoch: float | None
    """Energy of the GPUs for one pass over all ranges; null where it was not measured."""
    kwh_per_million_tokens: float | None
    """Energy of the GPUs for 1,000,000 tokens; null where it was not measured."""
    result_seconds: float
    """Seconds of one whole training, a result."""
    results_per_hour: float
    """Whole trainings per hour, one after another."""
    usd_per_result: float | None
    """US dollars of one whole training; null without a price."""
    num_baseline_jobs: int | None
    """Jobs of the baseline that fit on the same devices at once; null for the baseline and where none or part does."""
    baseline_results_per_hour: float | None
    """Whole trainings per hour of so many jobs side by side; null as that is."""
    baseline_slowdown: float | None = None
    """How many times as long each of these jobs takes as alone, by the waterfall's contention; null where that is not
    known, and each is taken to be as fast as alone."""


class Cost(Record):
    """What the comparison costs."""

    price_per_gpu_hour_usd: float | None
    """US dollars that one device costs per hour, as params.yaml has it."""
    price_date: str | None
    """The day of that price."""
    price_source: str | None
    """Where it stands."""
    basis: Literal["measured", "trained"]
    """Whether tokens per second are those measured in turns or those of each cell's one training."""
    cells: list[CellCost]
    """The cells, the baseline first."""


def compute_cost(outputs: Outputs, cells: list[CellResults]) -> Cost:
    """Return what every cell costs; not to be shown where the speedup is withheld."""
    price, measurement, first = outputs.params.cost, outputs.measurement, cells[0]
    waterfalls = {waterfall.cell: waterfall for waterfall in measurement.waterfalls} if measurement else {}
    # In weak scaling the batch of its cells grew with their ranks; that of the training, whose cost this is, does not.
    is_measured = measurement is not None and measurement.scaling == "strong"
    return Cost(
        price_per_gpu_hour_usd=price.price_per_gpu_hour,
        price_date=price.price_date,
        price_source=price.price_source,
        basis="measured" if is_measured else "trained",
        cells=[
            _compute_cell_cost(
                cell, first, price=price.price_per_gpu_hour, waterfall=waterfalls.get(cell.cell),
                is_measured=is_measured,
            )
            for cell in cells
        ],
    )  # fmt: skip


def _compute_cell_cost(
    cell: CellResults, first: CellResults, *, price: float | None, waterfall: Waterfall | None, is_measured: bool
) -> CellCost:
    rate, rate_of_first = ((item if is_measured else item.whole).tokens_per_second for item in (cell, first))
    # A gate fails where ranks share devices.
    num_devices, num_tokens = cell.world_size, cell.whole.num_tokens
    tokens_per_epoch, seconds = num_tokens / cell.num_epochs, num_tokens / rate
    device_hours = num_devices * tokens_per_epoch / rate / _SECONDS_PER_HOUR
    kwh = cell.speed.joules_per_token if is_measured and cell.speed else None
    kwh = None if kwh is None else kwh / _JOULES_PER_KWH
    num_jobs: int | None = None
    slowdown: float | None = None
    if not cell.is_baseline and num_devices % first.world_size == 0:
        num_jobs = num_devices // first.world_size
        if waterfall is not None:
            alone = waterfall.ideal_seconds + sum(map(waterfall.find_lost_seconds, ("optimizer", "fixed")))
            slowdown = 1 + waterfall.find_lost_seconds("contention") / alone
    return CellCost(
        cell=cell.cell,
        num_devices=num_devices,
        tokens_per_second=rate,
        device_hours_per_epoch=device_hours,
        usd_per_epoch=price and price * device_hours,
        usd_per_million_tokens=price and price * device_hours / tokens_per_epoch * 1e6,
        kwh_per_epoch=kwh and kwh * tokens_per_epoch,
        kwh_per_million_tokens=kwh and kwh * 1e6,
        result_seconds=seconds,
        results_per_hour=_SECONDS_PER_HOUR / seconds,
        usd_per_result=price and price * device_hours * cell.num_epochs,
        num_baseline_jobs=num_jobs,
        baseline_results_per_hour=num_jobs
        and num_jobs * _SECONDS_PER_HOUR / (first.whole.num_tokens / rate_of_first * (slowdown or 1.0)),
        baseline_slowdown=slowdown,
    )
