"""Do fresh default runs end as "Proven", and do their speedups scatter no more than their intervals say?

Runs `make compare` of the commit that is checked out here again and again, in a clone of which nothing but the
environment is left. Each run stands in benchmarks/results/<date>_<machine>_sessions.{json,md} as soon as it has ended;
`--after FILE` goes on from such a file. It wants a machine with nothing else on it.
"""

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.results_file import RESULTS, write_results
from tasks.records.estimate import Estimate

_KEPT = ("HOME", "PATH", "LANG")
"""Variables of the environment that a run has."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """What one default run came to."""

    started_at: str
    commit: str
    seconds: float
    """Of `make compare`."""
    exit_code: int
    state: str
    """proven, unproven, withheld or not measured; "failed" without results."""
    verdict: str
    interval: Estimate | None
    """Speedup of the last cell; None where none is said."""
    num_turns: int
    baseline_step_seconds: float | None

    @classmethod
    def read(cls, content):
        """Return what stands in a results file."""
        return cls(**content | {"interval": content["interval"] and Estimate(**content["interval"])})


def run_session(clone, commit):
    """Return what `make compare` comes to in the clone, of which nothing but the environment was left."""
    subprocess.run(["git", "clean", "-fdxq", "-e", ".venv"], cwd=clone, check=True)
    started_at, started = datetime.datetime.now(datetime.UTC), time.perf_counter()
    done = subprocess.run(
        ["make", "compare"], cwd=clone, capture_output=True, text=True, check=False,
        env={"TERM": "dumb", **{name: os.environ[name] for name in _KEPT if name in os.environ}},
    )  # fmt: skip
    seconds, file = time.perf_counter() - started, clone / "reports/results.json"
    facts = {"state": "failed", "verdict": done.stderr[-300:], "interval": None, "num_turns": 0}
    facts["baseline_step_seconds"] = None
    if file.exists():
        results = json.loads(file.read_bytes())
        cell, speedup = results["cells"][-1], results["cells"][-1]["speedup"]
        is_said = speedup is not None and cell["standing"]["state"] in ("proven", "unproven")
        facts = {
            "state": cell["standing"]["state"],
            "verdict": results["verdict"],
            "interval": Estimate(speedup["value"], speedup["low"], speedup["high"]) if is_said else None,
            "num_turns": cell["speed"]["num_quiet_turns"],
            "baseline_step_seconds": results["cells"][0]["speed"]["step_seconds"]["value"],
        }
    return Session(
        started_at=started_at.isoformat(timespec="seconds"), commit=commit, seconds=seconds, exit_code=done.returncode,
        **facts,
    )  # fmt: skip


def describe_scatter(sessions):
    """Return, in sentences, how many are proven, and how they lie beside their intervals."""
    intervals = [item.interval for item in sessions if item.interval is not None]
    num_proven = sum(item.state == "proven" for item in sessions)
    text = f"{num_proven} of {len(sessions)} default runs are proven."
    if len(intervals) < 3:
        return text
    logs = np.log([item.value for item in intervals])
    covering = 0
    for number, item in enumerate(intervals):
        covering += item.contains(float(np.exp(np.delete(logs, number).mean())))
    half_width = float(np.sqrt(np.mean([item.relative_half_width**2 for item in intervals])))
    return (
        f"{text} Their mean speedup is {np.exp(logs.mean()):.3f}; they scatter by {logs.std(ddof=1):.1%} (standard "
        f"deviation), their intervals are ±{half_width:.1%} wide, and {covering} of {len(intervals)} contain the mean "
        "of all others."
    )


def _main():
    parser = argparse.ArgumentParser(prog="benchmarks.sessions", description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--after", type=Path, help="a results file to go on from")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load_before, sessions = os.getloadavg()[0], []
    if arguments.after:
        sessions = [Session.read(item) for item in json.loads(arguments.after.read_bytes())["found"]["sessions"]]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory() as scratch:
        clone = Path(scratch) / "ddp-compare"
        subprocess.run(["git", "clone", "-q", ".", str(clone)], check=True)
        subprocess.run(["make", "setup"], cwd=clone, check=True, stdout=sys.stderr)
        for _ in track(range(arguments.runs), description="default runs", console=Console(stderr=True)):
            sessions.append(run_session(clone, commit))
            path = write_results(
                "sessions",
                title="Default runs, each from nothing",
                method=(
                    "`make compare` again and again in a clone of which nothing but the environment is left, with "
                    "nothing else on the machine. Seconds are of the whole command, those per step the baseline's."
                ),
                headings=[
                    "run",
                    "began",
                    "commit",
                    "seconds",
                    "ms per step of 1proc",
                    "turns",
                    "says",
                    "speedup (95 %)",
                ],
                rows=[_row(number, item) for number, item in enumerate(sessions, start=1)],
                summary=describe_scatter(sessions),
                results={"sessions": [dataclasses.asdict(item) for item in sessions]},
                load_before=load_before,
                folder=arguments.results,
            )
    print(path.read_text(encoding="utf-8"))


def _row(number, item):
    interval, step = item.interval, item.baseline_step_seconds
    return [
        str(number), item.started_at[:16], item.commit[:8], f"{item.seconds:.0f}",
        f"{1000 * step:.0f}" if step else "–", str(item.num_turns), item.state,
        f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})" if interval else "–",
    ]  # fmt: skip


if __name__ == "__main__":
    _main()
