"""What the observer of `make audit` costs a training: the same script with and without it, in turns.

Processor seconds decide: they leave out what else the machine did meanwhile. What the observer costs hardly depends on
the width of a model: a narrow one tells the microseconds, a wide one their share of a step. Prints a table and writes
benchmarks/results/<date>_<machine>_observer.{json,md}.
"""

import argparse
import ctypes
import json
import os
import resource
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.results_file import RESULTS, write_results
from benchmarks.rounds import compute_ratio, generate_rounds
from tasks.auditing.rank_record import read_rank

_WARM_UP = 5
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""As malloc.h numbers them for mallopt."""
_KEPT_BYTES, _LARGEST_IN_HEAP = 1 << 30, 1 << 25


def keep_freed_memory() -> None:
    """Have the allocator keep what is freed, as far as it is glibc's.

    Left alone it gives the end of its heap back in every step or never, by which small object happens to lie there:
    400 to 1,900 page faults per step of one and the same training, and milliseconds that no arm has caused.
    """
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):
        allocator.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        allocator.mallopt(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)


def run_once(*, is_observed: bool, width: int, steps: int) -> dict[str, float]:
    """Return seconds and processor seconds per step, and the seconds that the observer charged itself.

    In a child of this process, which has torch already: what is imported is nobody's step.
    """
    from benchmarks.observed_training import train
    from ddp_compare_observer.arming import arm_when_torch_comes

    with tempfile.TemporaryDirectory() as folder:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                if is_observed:
                    arm_when_torch_comes(folder, rank=0, heartbeat=None)
                told = train(steps=steps, width=width, warm_up=_WARM_UP)
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                Path(folder, "told.json").write_text(json.dumps([*told, faults]))
                code = 0
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            raise ChildProcessError(f"the training of width {width} failed")
        seconds, processor, faults = json.loads(Path(folder, "told.json").read_text())
        rank = read_rank(Path(folder) / "rank-0.jsonl", 0)
        if is_observed and (len(rank.steps) != steps + _WARM_UP or "broken" in rank.lines):
            raise ChildProcessError(f"{len(rank.steps)} steps were observed: {rank.lines.get('broken')}")
        charged = [step["seconds"].get("observer", 0.0) for step in rank.steps]
    return {"seconds": seconds, "processor": processor, "charged": sum(charged[_WARM_UP:]) / steps, "faults": faults}


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


def _tell_cost(found: dict[str, Any]) -> str:
    """Return what a step takes longer, in microseconds, with the interval of the ratio."""
    value, low, high = ((found["ratio"][name] - 1) * found["step_seconds"] * 1e6 for name in ("value", "low", "high"))
    return f"{value:+.0f} µs ({low:+.0f} to {high:+.0f})"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    # Before torch is imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    keep_freed_memory()
    load = os.getloadavg()[0]
    found = [_measure(width, rounds=arguments.rounds, steps=arguments.steps) for width in arguments.widths]
    rows = [
        [
            f"{one['step_seconds'] * 1000:.1f} ms",
            f"{one['ratio']['value'] - 1:+.2%} ({one['ratio']['low'] - 1:+.2%} to {one['ratio']['high'] - 1:+.2%})",
            _tell_cost(one),
            f"{one['charged_seconds'] * 1e6:.0f} µs ({one['charged_seconds'] / one['step_seconds']:.2%})",
        ]
        for one in found
    ]
    path = write_results(
        "observer",
        title="What the observer of make audit costs",
        method=f"One process, a transformer of four layers on 8 rows of 64 tokens, {arguments.steps} steps after "
        f"{_WARM_UP}, with and without the observer in {arguments.rounds} rounds (A B B A). Processor seconds, with an "
        "allocator that keeps what is freed.",
        headings=[
            "A step takes",
            "Observed against bare (95 %)",
            "That is, per step (95 %)",
            "Of that counted by itself",
        ],
        rows=rows,
        summary="The last column is what the observer itself counted: all but the wrappers around calls.",
        found=found,
        load_before=load,
    )
    print(path.read_text())


if __name__ == "__main__":
    main()
