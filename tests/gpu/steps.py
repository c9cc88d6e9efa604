"""Optimizer steps as in a training, during which the host must not wait for the device."""

import torch

from tests.tiny import make_config, make_tiny_workload
from training.config import read_config
from training.data.batches import prefetch_micro_batches
from training.data.plan import make_micro_batches
from training.process.files import write_json
from training.record.segment import SegmentRecord, format_utc_time
from training.record.segment_facts import Counters
from training.record.window import Window
from training.step.strategy import find_strategy
from training.workloads import find_workload, open_segment

NUM_STEPS = 5
WORKLOADS = [
    ("causal_lm", False), ("causal_lm", True), ("sequence_classification", False),
    ("image_classification", False),
]  # fmt: skip
"""Each with what its config says of packing."""


def read_told(told, folder):
    """Return the config as a training process reads it."""
    path = folder / "config.json"
    write_json(path, told)
    return read_config(path)


def open_steps(config, ranks, model=None):
    """Return a rank's strategy, the plan of the first segment, and what makes the rank's micro-batches of a step."""
    workload = find_workload(config.workload)
    built = workload.load_model(config.model_dir) if model is None else model
    strategy = find_strategy(config.strategy).build(built, workload, config, ranks)
    source, plan = open_segment(workload, config, config.segments[0])
    share = {"rank": strategy.data_rank, "world_size": strategy.data_world_size}

    def make(step):
        seed = (config.seed, step)
        return list(make_micro_batches(source, plan.step(step), **share, seq_len=config.seq_len, seed=seed))

    return strategy, plan, make


def run_steps_without_waiting(ranks, folder, *, workload, strategy, packing, precision):
    """Run a few steps and return their facts. RuntimeError if one of them makes the host wait for the device."""
    model_dir, slices = make_tiny_workload(workload, folder)
    told = make_config(
        folder / "work", model_dir, slices[:1], device="cuda", strategy=strategy, workload=workload, packing=packing,
        precision=precision,
    )  # fmt: skip
    config = read_told(told, folder)
    trainer, plan, make = open_steps(config, ranks)
    trainer.warm_up(make(1)[-1].to(ranks.device))
    for part in make(1):
        trainer.train_step([part.to(ranks.device)], num_targets=10, learning_rate=0.0)
    record = SegmentRecord(
        segment=config.segments[0], first_step=1, num_steps=NUM_STEPS,
        counters=Counters(started_at=format_utc_time(), start_checksum=""),
        folder=config.work_dir,
    )  # fmt: skip
    window = Window(ranks)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step, micro_batches, waited in prefetch_micro_batches(make, range(1, NUM_STEPS + 1), ranks.device):
            planned = plan.step(step)
            result = trainer.train_step(micro_batches, num_targets=planned.num_targets, learning_rate=1e-3)
            record.consume(step, 0, micro_batches, result)
            window.add(step, result, micro_batches, planned=planned, learning_rate=1e-3, data_wait_seconds=waited)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return window.close(forgives_overflow=trainer.replica.may_overflow)
