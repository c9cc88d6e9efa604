"""What a rank runs in the tests of the probe: every probe once, written by rank 0 into probe.json."""

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import Any

from training.config import read_config
from training.data.batches import open_slice
from training.data.plan import make_micro_batches, plan_segment
from training.model.weights import compute_parameter_checksum
from training.plug import select_hardware
from training.probing.parts import probe_compute, probe_slowdown_in_flight
from training.probing.sweep import sweep_exchange
from training.process.distributed import join_ranks
from training.process.files import write_json
from training.workloads import find_workload

NUM_REPEATS = 5
SIZES = (2**16, 2**18, 2**20)
KINDS = ("all_gather", "reduce_scatter", "broadcast", "send")


def main() -> int:
    """Probe what the config file describes; return the exit code."""
    config = read_config(Path(sys.argv[-1]))
    with join_ranks(config) as ranks:
        workload = find_workload(config.workload)
        strategies: Any = importlib.import_module(f"training.strategies.{config.strategy}")
        model = workload.load_model(config.model_dir)
        strategy = strategies.build(model, workload, config, ranks)
        source = open_slice(config.segments[0].slice_dir)
        plan = plan_segment(
            source.lengths(config.seq_len), seed=config.seed, epoch=1, rows=config.segments[0].range,
            global_batch_size=config.global_batch_size, micro_batch_size=config.micro_batch_size,
        )  # fmt: skip
        step = plan.step(1)
        parts = list(
            make_micro_batches(
                source, step, rank=ranks.rank, world_size=ranks.world_size, seq_len=config.seq_len, seed=(1, 1)
            )
        )
        strategy.warm_up(parts[-1])
        strategy.train_step(parts, num_targets=step.num_targets, learning_rate=0.0)
        before = compute_parameter_checksum(model)
        begin = partial(select_hardware(workload).begin, model)
        buckets = strategy.describe().get("bucket_bytes", [])
        found: dict[str, Any] = {"bucket_bytes": buckets}
        if ranks.world_size == 1:
            found["compute"] = probe_compute(strategy.replica, ranks, parts, num_repeats=NUM_REPEATS, on_start=begin)
        else:
            found |= {
                "sweep": sweep_exchange(ranks, sizes=SIZES, num_repeats=NUM_REPEATS, seconds_budget=5.0),
                "kinds": {
                    kind: sweep_exchange(ranks, kind=kind, sizes=SIZES, num_repeats=3, seconds_budget=5.0)
                    for kind in KINDS
                },
                "short_sweep": sweep_exchange(
                    ranks, sizes=(2**16, 2**30), num_repeats=NUM_REPEATS, seconds_budget=0.1
                ),
                "slept": sweep_exchange(
                    ranks, sizes=(2**20, 2**21), num_repeats=NUM_REPEATS, seconds_budget=5.0,
                    seconds_of_link=lambda num_bytes: num_bytes / 2**20 * 10e-3,
                ),
                "in_flight": probe_slowdown_in_flight(
                    strategy.replica, ranks, parts[-1], num_bytes=2**20, num_repeats=NUM_REPEATS
                ),
            }  # fmt: skip
        result = strategy.train_step(parts, num_targets=step.num_targets, learning_rate=0.0)
        found |= {
            "checksum_stays": compute_parameter_checksum(model) == before,
            "checksums": ranks.gather_text(compute_parameter_checksum(model)),
            "traffic": result.traffic,
        }
        if ranks.is_first:
            write_json(config.work_dir / "probe.json", found)
    return 0
