"""What the observer of `make audit` costs a training: the same one with and without it, in turns, by processor time.

Twice: in one process, where torch's own functions are put back and taken away again in short blocks, which tells
small costs; and in processes of their own, which leave nothing of the observer in the bare ones. Prints a table and
writes benchmarks/results/<date>_<machine>_observer.{json,md}.
"""

import argparse
import dataclasses
import importlib
import json
import logging
import os
import resource
import statistics
import tempfile
import time
import traceback
from pathlib import Path
from types import FunctionType

from benchmarks.results_file import RESULTS, write_results
from benchmarks.rounds import FEWEST_ROUNDS, average_pairs, compute_ratio, generate_rounds
from ddp_audit.records import read_rank

_WARM_UP = 70
"""Steps before those that are timed: the first 64 are looked at more closely."""
_STEPS_BETWEEN = 2
"""Untimed steps after each switch: torch's classes forget what they had looked up."""
_BLOCK_SECONDS = 0.25
_HEADS = 4


class Switch:
    """Puts back what was there before the observer came, and the observer again.

    But for what opens files and starts programs, which no step calls.
    """

    def __init__(self):
        import torch
        from torch.optim import optimizer
        from torch.utils.data import DataLoader, dataloader

        self._places = [
            torch, torch.autograd, torch.nn.functional, torch.nn.utils, torch.distributed, torch.nn.Module,
            torch.nn.Sequential, DataLoader, dataloader._BaseDataLoaderIter, time, logging.Logger,
            argparse.ArgumentParser,
        ]  # fmt: skip
        self._hooks = [
            optimizer._global_optimizer_pre_hooks,
            optimizer._global_optimizer_post_hooks,
        ]
        self._before = [dict(vars(place)) for place in self._places]
        self._patched = []
        self._kept = []
        self._is_on = True

    def learn(self):
        """Remember what the observer has put in place since this was made."""
        for place, before in zip(self._places, self._before, strict=True):
            for name, now in vars(place).items():
                if isinstance(now, FunctionType) and "ddp_audit/observer" in now.__code__.co_filename:
                    self._patched.append((place, name, before.get(name), now))
        self._kept = [dict(hooks) for hooks in self._hooks]
        assert {name for _, name, _, _ in self._patched} >= {"backward", "__call__", "cross_entropy", "perf_counter"}

    def turn(self, *, on):
        """Have the observer watch from now on, or nobody."""
        if on == self._is_on:
            return
        self._is_on = on
        for place, name, before, now in self._patched:
            if on or before is not None:
                setattr(place, name, now if on else before)
            else:
                delattr(place, name)
        for hooks, kept in zip(self._hooks, self._kept, strict=True):
            hooks.clear()
            hooks.update(kept if on else {})


def _in_child(work):
    """Return what `work` returns in a child of this process, which has torch already, and the record made there."""
    with tempfile.TemporaryDirectory() as name:
        folder, pid = Path(name), os.fork()
        if pid == 0:
            code = 1
            try:
                (folder / "told.json").write_text(json.dumps(work(folder)))
                code = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            raise ChildProcessError("the training failed")
        rank = read_rank(folder / "rank-0.jsonl", 0)
        if "broken" in rank.lines:
            raise ChildProcessError(f"{len(rank.steps)} steps were observed: {rank.lines['broken']}")
        return json.loads((folder / "told.json").read_text()), rank


def _run_blocks(folder, *, width, blocks, steps):
    from benchmarks.observed_training import Training
    from ddp_audit.observer.arming import arm_when_torch_comes

    switch = Switch()
    arm_when_torch_comes(str(folder), rank=0, heartbeat=None)
    training = Training(width=width, most_steps=_WARM_UP + blocks * 4 * (steps + _STEPS_BETWEEN))
    training.run(_WARM_UP)
    switch.learn()
    results = {"bare": [], "observed": []}
    orders = generate_rounds(["bare", "observed"], seed=0)
    for _ in range(blocks):
        for arm in next(orders):
            switch.turn(on=arm == "observed")
            training.run(_STEPS_BETWEEN)
            results[arm].append(training.run(steps)[1])
    return results


def measure_in_process(width, *, blocks, steps):
    """Return the ratio of observed to bare blocks of one process, the bare step's seconds and what was charged."""
    child, rank = _in_child(lambda folder: _run_blocks(folder, width=width, blocks=blocks, steps=steps))
    num_observed = 2 * blocks * (steps + _STEPS_BETWEEN) + _WARM_UP
    if len(rank.steps) != num_observed:
        raise ChildProcessError(f"{len(rank.steps)} of {num_observed} steps were observed")
    return {"how": "one process", "width": width, **_summarise(child, rank.steps[_WARM_UP:])}


def _run_whole(folder, *, is_observed, width, steps):
    from benchmarks.observed_training import Training
    from ddp_audit.observer.arming import arm_when_torch_comes

    if is_observed:
        arm_when_torch_comes(str(folder), rank=0, heartbeat=None)
    training = Training(width=width, most_steps=_WARM_UP + steps)
    training.run(_WARM_UP)
    return training.run(steps)[1], resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure_processes(width, *, rounds, steps):
    """Return the same of processes of their own, as many of each arm as there are rounds, twice."""
    orders = generate_rounds(["bare", "observed"], seed=0)
    results = {"bare": [], "observed": []}
    faults = {"bare": [], "observed": []}
    observed = []
    for _ in range(rounds):
        for arm in next(orders):
            is_observed = arm == "observed"
            (processor, num_faults), rank = _in_child(
                lambda folder, is_observed=is_observed: _run_whole(
                    folder, is_observed=is_observed, width=width, steps=steps
                )
            )
            results[arm].append(processor)
            faults[arm].append(num_faults)
            observed += rank.steps[_WARM_UP:]
    return {"how": "its own processes", "width": width, "faults": faults, **_summarise(results, observed)}


def _summarise(results, observed):
    of_rounds = {arm: average_pairs(runs) for arm, runs in results.items()}
    return {
        "processor_seconds": results,
        "step_seconds": statistics.median(of_rounds["bare"]),
        "ratio": dataclasses.asdict(compute_ratio(of_rounds["observed"], of_rounds["bare"])),
        "charged_seconds": statistics.fmean(step["seconds"].get("observer", 0.0) for step in observed),
    }


def _format_row(results):
    value, low, high = (results["ratio"][name] - 1 for name in ("value", "low", "high"))
    step = results["step_seconds"]
    return [
        results["how"],
        f"{step * 1000:.1f} ms",
        f"{value:+.2%} ({low:+.2%} to {high:+.2%})",
        f"{value * step * 1e6:+.0f} µs ({low * step * 1e6:+.0f} to {high * step * 1e6:+.0f})",
        f"{results['charged_seconds'] * 1e6:.0f} µs ({results['charged_seconds'] / step:.2%})",
    ]


def main():
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[40, 16, 96])
    parser.add_argument("--seconds", type=float, default=100.0, help="of blocks in one process, for each width")
    parser.add_argument("--rounds", type=int, default=8, help="of processes of their own, at the first width; 0: none")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if any(width < _HEADS or width % _HEADS for width in arguments.widths):
        parser.error(f"--widths {arguments.widths}; allowed: multiples of {_HEADS}, the number of heads")
    if arguments.rounds and arguments.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds {arguments.rounds} gives no interval; allowed: 0, or at least {FEWEST_ROUNDS}")
    # Before torch is imported.
    os.environ["OMP_NUM_THREADS"] = "1"
    importlib.import_module("benchmarks.observed_training")
    from training.step.replica import keep_freed_memory

    # Left alone glibc gives the end of its heap back in every step or never, by which small object happens to lie
    # there: 400 to 1,900 page faults per step of one and the same training, and milliseconds that no arm has caused.
    keep_freed_memory()
    load = os.getloadavg()[0]
    results = []
    for width in arguments.widths:
        seconds, _ = _in_child(lambda folder, width=width: _run_whole(folder, is_observed=False, width=width, steps=20))
        steps = max(4, round(_BLOCK_SECONDS / seconds[0]))
        blocks = max(6, round(arguments.seconds / (4 * (steps + _STEPS_BETWEEN) * seconds[0])))
        results.append(measure_in_process(width, blocks=blocks, steps=steps))
    if arguments.rounds:
        results.append(measure_processes(arguments.widths[0], rounds=arguments.rounds, steps=150))
    path = write_results(
        "observer",
        title="What the observer of make audit costs",
        method=f"One process, a transformer of four layers on 8 rows of 64 tokens that times each of its steps; after "
        f"{_WARM_UP} steps, in its first pass over the data. Processor seconds with and without the observer in rounds "
        f"(A B B A): of blocks of {_BLOCK_SECONDS} s in one process, of {arguments.rounds} rounds of processes of 150 "
        "steps. The allocator keeps what is freed.",
        headings=[
            "Where",
            "A step takes",
            "Observed against bare (95 %)",
            "That is, per step (95 %)",
            "Counted by itself",
        ],
        rows=[_format_row(result) for result in results],
        summary="The last column is what the observer itself counted: all but the wrappers around calls.",
        results=results,
        load_before=load,
        folder=arguments.results,
    )
    print(path.read_text())


if __name__ == "__main__":
    main()
