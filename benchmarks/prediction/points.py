"""One device after another: probed and measured on one and two ranks, its link on four; predicted for two and four."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.emulator.device import EmulatedDevice, write_device
from benchmarks.emulator.measuring import emulated_params, emulated_ranks
from benchmarks.prediction.configurations import Configuration
from benchmarks.rounds import compute_ratio, list_by_round, run_round
from tasks.measuring.arms import Arm, Cell, make_copies_arm, make_data_arms, make_spreading_arms, make_trained_arm
from tasks.measuring.bench import Bench
from tasks.measuring.interleaving import generate_turns
from tasks.measuring.prediction import Anchor, ModelError, predict
from tasks.measuring.probe import Probe
from tasks.measuring.probe_cells import Probed, probe_cells, sweep_link
from tasks.measuring.turns import TimedTurns
from tasks.measuring.workers import Workers
from tasks.records.estimate import Estimate

WORLD_SIZES = (2, 4)
"""What is predicted and measured; of four ranks the link is measured, no step."""
KNOWN = ("steps and link", "link only", "nothing")
"""What a prediction was told of the number of ranks that it is for."""

_MOST_MICRO_BATCHES = 16
_STEPS_PER_BLOCK = 2
_SWEEP_SECONDS = 1.0
_SEED = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """A configuration with what was found."""

    configuration: Configuration
    """Which device."""
    probe: Probe
    """From one rank, and what two cost each other; the link's sweep from four as well."""
    measured: Mapping[int, Estimate]
    """Number of ranks -> speedup in interleaved blocks, with a 95 % interval."""

    def points(self, model_error: ModelError | None) -> list["Point"]:
        """Return what is foretold beside what was measured: for four ranks with their link known and without.

        For two the model stands alone; for four the curve goes through what was measured on two.
        """
        told = [(self.probe, size) for size in self.measured]
        told += [(self.probe.drop_link_only(), size) for size in sorted(self.probe.link_only)]
        return [self._make_point(probe, size, model_error) for probe, size in told]

    def _make_point(self, probe: Probe, size: int, model_error: ModelError | None) -> "Point":
        anchor = None
        if size not in probe.measured_world_sizes:
            begin = max(probe.measured_world_sizes)
            anchor = Anchor(probe=probe, world_size=begin, speedup=self.measured[begin])
        return Point(
            configuration=self.configuration.name,
            world_size=size,
            known=_known(probe, size),
            predicted=predict(probe, [size], seed=_SEED, model_error=model_error, anchor=anchor)[size],
            measured=self.measured[size],
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One configuration on one number of ranks."""

    configuration: str
    """Its name."""
    world_size: int
    """Number of ranks."""
    known: str
    """What of these many ranks the prediction knew, one of KNOWN."""
    predicted: Estimate
    """Speedup, with a 90 % interval."""
    measured: Estimate
    """Speedup, with a 95 % interval."""

    @property
    def error(self) -> float:
        """Return (predicted - measured) / measured."""
        return self.predicted.value / self.measured.value - 1

    @property
    def is_covered(self) -> bool:
        """Whether the measured speedup lies in the predicted interval."""
        return self.predicted.contains(self.measured.value)

    def as_json(self) -> dict[str, Any]:
        """Return the fields and both of the above."""
        return {**dataclasses.asdict(self), "error": self.error, "is_covered": self.is_covered}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """How good some predictions were; errors without their sign."""

    num_points: int
    """Points."""
    mean_error: float
    """Mean."""
    worst_error: float
    """Largest."""
    bias: float
    """Mean of the errors with their sign: above 0, too much is promised."""
    coverage: float
    """Share of the points whose measured speedup lies in the predicted interval."""

    @property
    def missed(self) -> list[str]:
        """The targets that were not reached."""
        met = {
            "mean error at most 10 %": self.mean_error <= 0.10,
            "worst error at most 20 %": self.worst_error <= 0.20,
            "intervals that cover at least 80 %": self.coverage >= 0.80,
        }
        return [target for target, is_met in met.items() if not is_met]


def score(points: Sequence[Point]) -> Score:
    """Return how good they are; raises ValueError without a point."""
    if not points:
        raise ValueError("no point to score; needed: at least one")
    errors = np.array([point.error for point in points])
    return Score(
        num_points=len(points),
        mean_error=float(np.abs(errors).mean()),
        worst_error=float(np.abs(errors).max()),
        bias=float(errors.mean()),
        coverage=float(np.mean([point.is_covered for point in points])),
    )


def calibrated(tried: Sequence[Tried], *, date: str) -> ModelError:
    """Return how far the model is off on these, by what it knew of the ranks."""
    points = [point for one in tried for point in one.points(None)]

    def relative(known: str) -> float:
        logs = [math.log1p(point.error) for point in points if point.known == known]
        return math.sqrt(sum(log**2 for log in logs) / len(logs))

    probed, link_only, nothing = (relative(known) for known in KNOWN)
    return ModelError(
        relative=probed, relative_link_only=link_only, relative_extrapolated=nothing,
        calibrated_on=date, num_configurations=len(tried),
    )  # fmt: skip


def _known(probe: Probe, world_size: int) -> str:
    probed, link_only, nothing = KNOWN
    if world_size not in probe.swept_world_sizes:
        return nothing
    return link_only if world_size in probe.link_only else probed


def waiting_groups(folder: Path) -> AbstractContextManager[Mapping[str, Workers]]:
    """Return waiting groups of one, two and four ranks, for any device."""
    params = emulated_params([1, *WORLD_SIZES], num_micro_batches=_MOST_MICRO_BATCHES)
    device = EmulatedDevice(num_layers=1, forward_ms=0.1, backward_ms=0.1)
    return emulated_ranks(params, folder=folder, device=device)


def try_configuration(
    configuration: Configuration, workers: Mapping[str, Workers], *, folder: Path, num_rounds: int
) -> Tried:
    """Probe one rank and the link of two and four, and measure one, two and four; `folder`: new, for its files."""
    changes: dict[str, Any] = {}
    if configuration.contention > 0:
        changes = {"contention": configuration.contention, "shared_folder": str(folder / "board")}
    device = dataclasses.replace(configuration.device, **changes)
    batch = configuration.num_micro_batches
    place = {"model_dir": str(write_device(folder / "device", device)), "global_batch_size": batch}
    params = emulated_params([1, *WORLD_SIZES], num_micro_batches=batch)
    cells = [
        Cell(name=n, strategy=one.strategy, world_size=one.world_size, global_batch_size=batch, overrides=place)
        for n, one in params.cells.items()
    ]
    bench = Bench(workers, seed=_SEED)
    baseline, pair, four = cells
    bench.build([*_list_arms(cells), make_copies_arm(baseline)])
    bench.steps_per_block = _STEPS_PER_BLOCK
    timed_turns = _run_blocks(bench, _list_arms(cells), num_rounds=num_rounds)
    probed = Probed(
        baseline=baseline, cells=[pair], has_copy=True, is_weak=False,
        bytes_per_real_byte=device.bytes_per_real_byte, ranks_per_machine=None,
        sweeps_beyond_cells={
            kind: {four.world_size: sweep}
            for kind, sweep in sweep_link(workers[four.name], four, seconds=_SWEEP_SECONDS).items()
        },
    )  # fmt: skip
    (probe,) = probe_cells(probed, workers, lambda _: timed_turns, seconds=_SWEEP_SECONDS)
    bench.forget()
    return Tried(configuration=configuration, probe=probe, measured=_compute_speedups(cells, timed_turns))


def _list_arms(cells: Sequence[Cell]) -> list[Arm]:
    """Return the cells as they are trained, and the waterfall's arms of the first two."""
    baseline, pair, *_ = cells
    data = [arm for cell in (baseline, pair) for arm in make_data_arms(cell, has_copy=True)]
    return [*map(make_trained_arm, cells), *data, *make_spreading_arms(pair)]


def _run_blocks(bench: Bench, arms: Sequence[Arm], *, num_rounds: int) -> TimedTurns:
    timed_turns, order = TimedTurns(), generate_turns([arm.name for arm in arms], seed=_SEED)
    for _ in range(num_rounds):
        run_round(bench, arms, order, timed_turns)
    return timed_turns


def _compute_speedups(cells: Sequence[Cell], timed_turns: TimedTurns) -> dict[int, Estimate]:
    """Return the speedups over the first cell."""
    alone, *others = (list_by_round(timed_turns, make_trained_arm(cell).name) for cell in cells)
    return {cell.world_size: compute_ratio(alone, seconds) for cell, seconds in zip(cells[1:], others, strict=True)}
