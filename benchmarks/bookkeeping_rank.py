"""One rank of benchmarks/bookkeeping.py: blocks of real optimizer steps, with and without their bookkeeping.

Arms: `bare` runs the steps and nothing else. `counted` also does what the loop does inside the clock of every step:
the work ledger and the window. `logged` also has a log point after every step (log_every_steps: 1, the default):
the ranks gather what they counted and rank 0 writes the line. That is outside the clock of a training.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.config import TrainingConfig, read_config
from training.data.batches import MicroBatch, open_slice
from training.data.plan import make_micro_batches, plan_segment
from training.process.distributed import Ranks, join_ranks
from training.process.events import EventStream
from training.record.segment import SegmentRecord, tell_utc_time
from training.record.segment_facts import Counters
from training.record.window import Window
from training.strategies import find_strategy
from training.workloads import find_workload

_NUM_ONE_OFFS = 10
_LEDGER_STEPS = 50


@dataclass
class Bench:
    """What is timed."""

    config: TrainingConfig
    ranks: Ranks
    strategy: Any
    new_record: Callable[[], SegmentRecord]
    events: EventStream
    steps: list[tuple[list[MicroBatch], int]]
    """Micro-batches of this rank and label tokens of all ranks, per step of a block."""
    seconds_inside: dict[str, float] = field(default_factory=dict)
    """Seconds spent in the bookkeeping calls themselves, by arm."""

    def block(self, arm: str) -> float:
        """Run all steps once; return the seconds of the slowest rank."""
        record, window, inside = self.new_record(), Window(self.ranks), 0.0
        self.ranks.highest(0)
        started = time.perf_counter()
        for step, (micro_batches, planned) in enumerate(self.steps, start=1):
            # A learning rate of 0 costs the same and leaves the weights alone, so that all blocks do the same work.
            result = self.strategy.train_step(micro_batches, num_targets=planned.num_targets, learning_rate=0.0)
            if arm == "bare":
                continue
            counted = time.perf_counter()
            record.consume(step, self.ranks.rank, micro_batches, result)
            window.add(
                step, result, micro_batches, planned=planned, learning_rate=0.0, data_wait_seconds=0.0
            )  # fmt: skip
            if arm == "logged":
                for line in record.add(window.close(forgives_overflow=lambda: False)):
                    self.events.send(**line)
                record.file_away(self.ranks)
                window.open()
            inside += time.perf_counter() - counted
        seconds = time.perf_counter() - started
        self.seconds_inside[arm] = self.seconds_inside.get(arm, 0.0) + inside
        return float(self.ranks.gather(np.array([seconds])).max())

    def pairs(self, arm: str, number: int) -> list[tuple[float, float]]:
        """Return (seconds bare, seconds with) of as many pairs, in the order A B, B A, A B, ..."""
        found = []
        for index in range(number):
            order = ("bare", arm) if index % 2 == 0 else (arm, "bare")
            taken = {name: self.block(name) for name in order}
            found.append((taken["bare"], taken[arm]))
        return found

    def one_offs(self) -> dict[str, float]:
        """Return the median seconds of what the blocks do not show alone.

        A log point between ranks that wait for nobody, what is done once per segment, a look at the counter of
        all-reduces.
        """
        group: Any = self.ranks.gradient_group

        def checksums() -> None:
            self.strategy.digest()

        (micro_batches, planned), *_ = self.steps
        result = self.strategy.train_step(micro_batches, num_targets=planned.num_targets, learning_rate=0.0)
        record, window = self.new_record(), Window(self.ranks)
        filled = [self.new_record() for _ in range(_NUM_ONE_OFFS)]
        for each in filled:
            for step in range(_LEDGER_STEPS):
                each.consume(step, self.ranks.rank, micro_batches, result)
        to_file_away = iter(filled)

        def ledger() -> None:
            next(to_file_away).file_away(self.ranks, everything=True)

        def log_point() -> None:
            window.add(
                1, result, micro_batches, planned=planned, learning_rate=0.0, data_wait_seconds=0.0
            )  # fmt: skip
            for line in record.add(window.close(forgives_overflow=lambda: False)):
                self.events.send(**line)
            record.file_away(self.ranks)
            window.open()

        def counter() -> None:
            for _ in range(100):
                group._get_sequence_number_for_group()

        found = {"log_point": _median(log_point), "checksums": _median(checksums), "ledger": _median(ledger)}
        found["counter"] = _median(counter) / 100 if self.ranks.world_size > 1 else 0.0
        return found


def _median(run: Any) -> float:
    taken = []
    for _ in range(_NUM_ONE_OFFS):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


@contextmanager
def _bench(config: TrainingConfig, *, num_steps: int) -> Iterator[Bench]:
    torch.set_num_threads(config.threads_per_rank)
    segment = config.segments[0]
    workload = find_workload(config.workload)
    source = open_slice(segment.slice_dir)
    plan = plan_segment(
        source.lengths(config.seq_len), seed=config.seed, epoch=1, rows=segment.range,
        global_batch_size=config.global_batch_size, micro_batch_size=config.micro_batch_size,
    )  # fmt: skip
    with join_ranks(config) as ranks:
        strategy = find_strategy(config.strategy).build(workload.load_model(config.model_dir), workload, config, ranks)
        steps = []
        for number in range(1, num_steps + 1):
            step = plan.step(number)
            mine = make_micro_batches(
                source, step, rank=ranks.rank, world_size=ranks.world_size, seq_len=config.seq_len, seed=(0, number)
            )
            steps.append(([part.to(ranks.device) for part in mine], step))
        strategy.warm_up(steps[0][0][-1])

        def new_record() -> SegmentRecord:
            counters = Counters(started_at=tell_utc_time(), start_checksum="")
            return SegmentRecord(
                segment=segment, first_step=1, num_steps=num_steps, counters=counters, folder=config.work_dir,
                is_first_rank=ranks.is_first,
            )  # fmt: skip

        events = EventStream(config.work_dir / "steps.jsonl", rank=ranks.rank)
        yield Bench(config, ranks, strategy, new_record, events, steps)


def main() -> None:
    """Time all arms and write what was found; rank 0 writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    with _bench(read_config(arguments.config), num_steps=arguments.steps) as bench:
        for arm in ("bare", "counted", "logged"):
            bench.block(arm)
        bench.seconds_inside.clear()
        pairs = {arm: bench.pairs(arm, arguments.pairs) for arm in ("counted", "logged")}
        inside = {
            arm: float(bench.ranks.gather(np.array([bench.seconds_inside[arm]])).max())
            / (arguments.pairs * arguments.steps)
            for arm in pairs
        }
        one_offs = bench.one_offs()
        if bench.ranks.is_first:
            arguments.out.write_text(json.dumps({"pairs": pairs, "inside": inside, "one_offs": one_offs}))


if __name__ == "__main__":
    main()
