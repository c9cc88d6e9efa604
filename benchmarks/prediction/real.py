"""The prediction on this machine: what the model says by itself of ranks that were measured, session after session."""

import dataclasses
import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_session import plan_real_session
from benchmarks.results_file import RESULTS, write_results
from tasks.measuring.session import measure_cells
from tasks.process.wording import format_ratio_with_interval, format_signed_percent, format_small_percent, join_names
from tasks.records.estimate import Estimate
from tasks.records.measurement import Measurement, MeasurementFile

_METHOD = """\
The comparison of params.yaml, measured in {num_sessions} sessions. In each the model says the speedup of the measured
numbers of ranks by itself: from one rank's parts, the link, and what ranks cost each other in the waterfall's arms; the
measured speedup is not told to it. Its 90 % interval holds the noise of the parts and the model's own error, found on
emulated devices."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Said:
    """What the model said by itself of one number of ranks in one session, and what was measured there."""

    session: str
    """Which one."""
    cells: str
    """Whose model it is."""
    world_size: int
    """Number of ranks."""
    model: Estimate
    """Speedup, with a 90 % interval."""
    measured: Estimate
    """Speedup, with a 95 % interval."""

    @property
    def error(self) -> float:
        """Return log(the model's / measured)."""
        return math.log(self.model.value / self.measured.value)

    @property
    def is_covered(self) -> bool:
        """Whether the measured speedup lies in the model's interval."""
        return self.model.contains(self.measured.value)

    def as_json(self) -> dict[str, Any]:
        """Return the fields and both of the above."""
        return {**dataclasses.asdict(self), "error": self.error, "is_covered": self.is_covered}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealScore:
    """How good the model is by itself."""

    num_points: int
    """Numbers of ranks, all sessions together."""
    bias: float
    """Mean of log(the model's / measured): above 0, too much is promised."""
    rms: float
    """Root mean square of the same."""
    coverage: float
    """Share of the measured speedups that lie in the model's 90 % interval."""


def score_real(points: Sequence[Said]) -> RealScore:
    """Return how good it is; raises ValueError without a point."""
    if not points:
        raise ValueError("no number of ranks was both foretold and measured; needed: at least one")
    errors = np.array([point.error for point in points])
    return RealScore(
        num_points=len(points),
        bias=float(errors.mean()),
        rms=float(np.sqrt((errors**2).mean())),
        coverage=float(np.mean([point.is_covered for point in points])),
    )


def list_said(session: str, measurement: Measurement) -> list[Said]:
    """Return what the model says of each measured number of ranks.

    Earlier versions have it as the prediction itself.
    """
    return [
        Said(
            session=session,
            cells=join_names(one.cells),
            world_size=point.world_size,
            model=model,
            measured=point.measured,
        )
        for one in measurement.predictions
        for point in one.curves[0].points
        if point.measured is not None and (model := point.model or point.speedup) is not None
    ]


def judge_sessions(num_sessions: int, records: Sequence[Path], *, folder: Path = RESULTS) -> Path:
    """Measure so many sessions, or read these records of some, and write benchmarks/results/; return the markdown."""
    load_before = os.getloadavg()[0]
    measured = [(file.as_posix(), MeasurementFile.read(file)) for file in records]
    measured += [(f"{number + 1}", _measure_session()) for number in range(num_sessions)]
    points = [point for name, one in measured for point in list_said(name, one)]
    found = score_real(points)
    return write_results(
        "prediction-real",
        title="What the model says by itself against what was measured",
        method=_METHOD.format(num_sessions=len(measured)),
        headings=["session", "cells", "ranks", "the model alone (90 %)", "measured (95 %)", "off by", "covered"],
        rows=[
            [
                point.session, point.cells, str(point.world_size), format_ratio_with_interval(point.model),
                format_ratio_with_interval(point.measured), format_signed_percent(math.expm1(point.error)),
                "yes" if point.is_covered else "**no**",
            ]
            for point in points
        ],
        summary=(
            f"Bias {format_signed_percent(math.expm1(found.bias))}, root mean square "
            f"{format_small_percent(found.rms)}, {found.coverage:.0%} of {found.num_points} covered."
        ),
        found={"score": dataclasses.asdict(found), "points": [point.as_json() for point in points]},
        load_before=load_before,
        folder=folder,
    )  # fmt: skip


def _measure_session() -> Measurement:
    """Return one session of the comparison of params.yaml, without its advice."""
    with plan_real_session() as session:
        return measure_cells(session, stop=threading.Event())
