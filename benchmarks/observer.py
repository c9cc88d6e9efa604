"""What the observer of `make audit` costs a training: the same script with and without it, in turns.

Processor seconds decide: they leave out what else the machine did meanwhile. Prints a table and writes
benchmarks/results/<date>_<machine>_observer.{json,md}.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.results_file import RESULTS, write_results
from benchmarks.rounds import compute_ratio, generate_rounds
from tasks.auditing.rank_record import read_rank

_PROJECT = Path(__file__).resolve().parent.parent
_HOOK = _PROJECT / "ddp_compare_observer" / "hook"
_WARM_UP = 5


def run_once(*, is_observed: bool, width: int, steps: int) -> dict[str, float]:
    """Return seconds and processor seconds per step, and the seconds that the observer charged itself."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(_PROJECT)}
        if is_observed:
            environment |= {
                "PYTHONPATH": f"{_HOOK}{os.pathsep}{_PROJECT}", "DDP_COMPARE_PYTHONPATH": str(_PROJECT),
                "DDP_COMPARE_AUDIT": folder, "RANK": "0",
            }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.observed_training", "--steps", str(steps), "--width", str(width)]
        done = subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, text=True)
        seconds, processor = json.loads(done.stdout)
        charged = [step["seconds"].get("observer", 0.0) for step in read_rank(Path(folder) / "rank-0.jsonl", 0).steps]
    return {"seconds": seconds, "processor": processor, "charged": sum(charged[_WARM_UP:]) / steps}


def _measure(width: int, *, rounds: int, steps: int) -> dict[str, Any]:
    orders = generate_rounds(["bare", "observed"], seed=0)
    found: dict[str, list[dict[str, float]]] = {"bare": [], "observed": []}
    for _ in range(rounds):
        for arm in next(orders):
            found[arm].append(run_once(is_observed=arm == "observed", width=width, steps=steps))
    per_round = {
        arm: [(one["processor"] + other["processor"]) / 2 for one, other in zip(runs[::2], runs[1::2], strict=True)]
        for arm, runs in found.items()
    }
    ratio = compute_ratio(per_round["observed"], per_round["bare"])
    return {
        "width": width,
        "step_seconds": statistics.median(per_round["bare"]),
        "ratio": ratio.as_json(),
        "charged_seconds": statistics.median(run["charged"] for run in found["observed"]),
        "runs": found,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    found = [_measure(width, rounds=arguments.rounds, steps=arguments.steps) for width in arguments.widths]
    rows = [
        [
            f"{one['step_seconds'] * 1000:.1f} ms",
            f"{one['ratio']['value'] - 1:+.2%} ({one['ratio']['low'] - 1:+.2%} to {one['ratio']['high'] - 1:+.2%})",
            f"{one['charged_seconds'] * 1e6:.0f} µs ({one['charged_seconds'] / one['step_seconds']:.2%})",
        ]
        for one in found
    ]
    path = write_results(
        "observer",
        title="What the observer of make audit costs",
        method=f"One process, a transformer of four layers on 8 rows of 64 tokens, {arguments.steps} steps after "
        f"{_WARM_UP}, with and without the observer in {arguments.rounds} rounds (A B B A). Processor seconds.",
        headings=["A step takes", "Observed against bare (95 %)", "The observer's own time per step"],
        rows=rows,
        summary="The last column is what the observer itself counted: all but the wrappers around calls.",
        found=found,
        load_before=load,
    )
    print(path.read_text())


if __name__ == "__main__":
    main()
