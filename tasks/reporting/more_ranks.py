"""What a line says of more ranks than were measured: a model, not a measurement.

An exchange of m messages and B bytes takes m a + B b (alpha-beta; Hockney 1994), in a ring of N ranks a grows with
N - 1 and b with (N - 1) / N. Both are those of the link's probe. What the cell with the most ranks loses against the
ideal is taken to grow as its exchange does.
"""

from collections.abc import Sequence
from itertools import product

from tasks.records.estimate import Estimate
from tasks.records.facts import Record
from tasks.records.measurement import LinkSpeed
from tasks.records.outputs import Outputs
from tasks.reporting.cell_results import CellResults

_TIMES = (2, 4)
"""How many times the most ranks that were measured are looked at."""


class MoreRanks(Record):
    """What the line says of one number of ranks."""

    cell: str
    """The cell that it begins at, of those with the most ranks."""
    world_size: int
    """Number of ranks."""
    speedup: Estimate
    """By the model; its ends are those of the measured speedup's interval, carried on likewise."""


def compute_growth(link: LinkSpeed, world_size: int, *, num_messages: float, num_bytes: float) -> float | None:
    """Return how many times as long an exchange takes on so many ranks as on the link's; None: not known."""
    if not num_bytes or link.latency_seconds is None or link.seconds_per_byte is None:
        return None
    before, hops = link.world_size, (world_size - 1) / (link.world_size - 1)
    once, by_bytes = num_messages * link.latency_seconds, num_bytes * link.seconds_per_byte
    return (once * hops + by_bytes * hops * before / world_size) / (once + by_bytes)


def carry_on(speedup: float, *, ranks: float, more: float, growth: float, is_weak: bool) -> float:
    """Return the speedup on `more` ranks of one on `ranks`, both as times the baseline's; what is lost grows so."""
    # In seconds of the baseline's step. A cell that is above linear loses nothing.
    step = ranks if is_weak else 1.0
    lost = max(step / speedup - step / ranks, 0.0) * growth
    step = more if is_weak else 1.0
    return step / (step / more + lost)


def compute_more_ranks(outputs: Outputs, cells: Sequence[CellResults]) -> list[MoreRanks]:
    """Return 2 and 4 times the most ranks, for each cell that has as many and a speedup; none without a link's line.

    In strong scaling not beyond a micro-batch per rank.
    """
    params, measurement, results = outputs.params, outputs.measurement, list[MoreRanks]()
    for link, cell in product(measurement.links if measurement else (), cells):
        name, speedup, size = cell.cell, cell.speedup, cell.world_size
        if measurement is None or speedup is None or not size == link.world_size == params.count_shares(name):
            continue
        run, base = outputs.runs[name], outputs.baseline.facts.world_size
        steps, train, is_weak = run.add_up("num_steps"), params.train_of(name), measurement.scaling == "weak"
        traffic = [kind for part in run.segments for kind in part.facts.traffic.values()]
        for number in (times * size for times in _TIMES):
            growth = compute_growth(
                link, number,
                num_messages=sum(kind.number for kind in traffic) / steps,
                num_bytes=sum(kind.num_bytes for kind in traffic) / steps,
            )  # fmt: skip
            if growth is None or (not is_weak and number * train.micro_batch_size > train.global_batch_size):
                break
            ends = (
                carry_on(item, ranks=size / base, more=number / base, growth=growth, is_weak=is_weak)
                for item in (speedup.value, speedup.low, speedup.high)
            )
            results.append(MoreRanks(cell=name, world_size=number, speedup=Estimate(*ends)))
    return results
