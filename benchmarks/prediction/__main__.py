"""Calibrates the prediction's intervals on some emulated devices and judges it on others.

Prints every point, and writes benchmarks/results/<date>_<machine>_prediction.{json,md,svg}. Exits with 1 if a target is
missed, which is for numbers of ranks whose link at least was measured. With --real or --records it judges on this
machine instead: what the model alone says of params.yaml's cells, on what the stages `download` and `slice` left.
"""

import argparse
import dataclasses
import datetime
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.prediction.chart import draw
from benchmarks.prediction.configurations import FITTING, VALIDATION
from benchmarks.prediction.points import (
    KNOWN,
    Point,
    Score,
    Tried,
    calibrated,
    score,
    try_configuration,
    waiting_groups,
)
from benchmarks.prediction.real import judge_sessions
from benchmarks.results_file import RESULTS, write_results
from tasks.measuring.prediction import MODEL_ERROR_FILE, ModelError
from tasks.records.estimate import Estimate
from training.process.files import write_json

_NUM_ROUNDS = 8
_METHOD = """\
Emulated devices (layers that sleep, a link that waits, real DDP over gloo). One, two and four ranks take turns with the
arms of the waterfall of two in {num_rounds} rounds of two blocks each; the parts of a step are probed on one rank, the
link on two and on four, as `measure` does where a machine has devices for four. On two ranks the model by itself is
held against what was measured; for four the curve begins at the speedup that was measured on two. Four are also
predicted as where nothing of them could be measured: a sweep of two ranks alone cannot tell latency once per all-reduce
from latency per hop. The first {num_fitting} configurations calibrate the model's own error,
which the 90 % intervals contain: {relative:.1%} on two ranks, {link_only:.1%} on four with their link known,
{extrapolated:.1%} without. They are not judged by; the other {num_validation} are."""


def _main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.prediction", description=__doc__)
    parser.add_argument("--calibrate", action="store_true", help=f"write {MODEL_ERROR_FILE.name}, for the predictions")
    parser.add_argument("--rounds", type=int, default=_NUM_ROUNDS, help="rounds of blocks per configuration")
    parser.add_argument(
        "--real", type=int, default=0, metavar="SESSIONS", help="measure here so often, and nothing else"
    )
    parser.add_argument("--records", type=Path, nargs="+", default=[], help="judge these speed.json as well as --real")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.real or arguments.records:
        print(judge_sessions(arguments.real, arguments.records, folder=arguments.results).read_text(encoding="utf-8"))
        return 0
    load_before, started = os.getloadavg()[0], time.perf_counter()
    tried = _tried(num_rounds=arguments.rounds)
    seconds = time.perf_counter() - started
    fitting, validation = tried[: len(FITTING)], tried[len(FITTING) :]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    model_error = calibrated(fitting, date=today)
    judged = [point for one in validation for point in one.points(model_error)]
    used = [point for one in fitting for point in one.points(model_error)]
    scores = _scores(judged)
    path = write_results(
        "prediction",
        title="Predicted against measured speedups",
        method=_method(model_error, num_rounds=arguments.rounds),
        headings=[
            "configuration",
            "ranks",
            "measured of them",
            "predicted (90 %)",
            "measured (95 %)",
            "error",
            "covered",
        ],
        rows=[*_rows(judged, ""), *_rows(used, " (calibrates)")],
        summary=_summary(scores, seconds=seconds),
        found={
            "model_error": dataclasses.asdict(model_error),
            "scores": {name: {**dataclasses.asdict(one), "missed": one.missed} for name, one in scores.items()},
            "validation": [point.as_json() for point in judged],
            "fitting": [point.as_json() for point in used],
            "seconds": seconds,
        },
        load_before=load_before,
        folder=arguments.results,
    )
    draw(judged, path.with_suffix(".svg"), others=used)
    if arguments.calibrate:
        write_json(MODEL_ERROR_FILE, dataclasses.asdict(model_error))
    print(path.read_text(encoding="utf-8"))
    return 1 if any(one.missed for one in scores.values()) else 0


def _tried(*, num_rounds: int) -> list[Tried]:
    """Return every configuration, those that calibrate first."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as scratch, waiting_groups(Path(scratch)) as workers:
        return [
            try_configuration(one, workers, folder=Path(scratch) / f"{number}", num_rounds=num_rounds)
            for number, one in enumerate(track([*FITTING, *VALIDATION], description="configurations", console=console))
        ]


def _scores(points: Sequence[Point]) -> dict[str, Score]:
    """Return the scores by what was known, and of all whose link was."""
    scores = {}
    for size, known in dict.fromkeys((point.world_size, point.known) for point in points):
        mine = [point for point in points if (point.world_size, point.known) == (size, known)]
        scores[f"{size} ranks, measured of them: {known}"] = score(mine)
    return {**scores, "all of the above but the last": score([one for one in points if one.known != KNOWN[-1]])}


def _method(model_error: ModelError, *, num_rounds: int) -> str:
    return _METHOD.format(
        num_rounds=num_rounds,
        num_fitting=len(FITTING),
        num_validation=len(VALIDATION),
        relative=model_error.relative,
        link_only=model_error.relative_link_only,
        extrapolated=model_error.relative_extrapolated,
    )


def _rows(points: Sequence[Point], mark: str) -> list[list[str]]:
    return [
        [
            point.configuration + mark, str(point.world_size), point.known, _told(point.predicted),
            _told(point.measured), f"{point.error:+.1%}", "yes" if point.is_covered else "**no**",
        ]
        for point in points
    ]  # fmt: skip


def _told(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def _summary(scores: dict[str, Score], *, seconds: float) -> str:
    lines = [
        f"- {name}: {one.num_points} points, mean error {one.mean_error:.1%} (signed {one.bias:+.1%}), worst "
        f"{one.worst_error:.1%}, {one.coverage:.0%} covered. " + _verdict(one)
        for name, one in scores.items()
    ]
    return "\n".join([*lines, "", f"It took {seconds:.0f} s. Every point is in the chart beside this file."])


def _verdict(found: Score) -> str:
    return f"**Missed: {', '.join(found.missed)}.**" if found.missed else "All targets reached."


if __name__ == "__main__":
    sys.exit(_main())
