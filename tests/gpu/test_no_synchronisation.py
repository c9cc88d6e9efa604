"""On a GPU the host never waits for the device between log points."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import make_config, make_slice, make_tiny_classifier, make_tiny_model
from tests.training.conftest import parsed
from training.data.batches import open_slice
from training.data.plan import make_micro_batches, make_segment_plan, plan_segment
from training.data.prefetch import prefetch_micro_batches
from training.process.distributed import Ranks, join_ranks
from training.record.segment import SegmentRecord, tell_utc_time
from training.record.segment_facts import Counters
from training.record.window import Window

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(scope="module")
def on_gpu() -> Iterator[Ranks]:
    """This process as the only rank, on a GPU."""
    config: Any = type("Config", (), {"world_size": 1, "device": "cuda", "oversubscribe": False})()
    with join_ranks(config) as ranks:
        yield ranks


@pytest.mark.parametrize("strategy", ["single", "ddp"])
@pytest.mark.parametrize(
    ("workload_name", "packing"), [("causal_lm", False), ("causal_lm", True), ("sequence_classification", False)]
)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_no_step_waits_for_the_device(
    strategy: str, workload_name: str, packing: bool, precision: str, on_gpu: Ranks, tmp_path: Path
) -> None:
    slice_dir = make_slice(tmp_path / "slice", num_rows=48, num_classes=3)
    make_model = make_tiny_model if workload_name == "causal_lm" else make_tiny_classifier
    told = make_config(
        tmp_path / "work", make_model(tmp_path / "model"), [slice_dir], device="cuda", strategy=strategy,
        workload=workload_name, packing=packing, precision=precision,
    )  # fmt: skip
    config = parsed(told, tmp_path)
    workload: Any = importlib.import_module(f"training.workloads.{workload_name}")
    built: Any = importlib.import_module(f"training.strategies.{strategy}")
    trainer = built.build(workload.load_model(config.model_dir), workload, config, on_gpu)
    source = workload.open_slice(slice_dir)
    plan = make_segment_plan(source, config, config.segments[0])

    def make(step: int) -> list[Any]:
        return list(make_micro_batches(source, plan.step(step), rank=0, world_size=1, seq_len=32, seed=(1, step)))

    trainer.warm_up(make(1)[-1].to(on_gpu.device))
    for part in make(1):
        trainer.train_step([part.to(on_gpu.device)], num_targets=10, learning_rate=0.0)
    record = SegmentRecord(
        segment=config.segments[0], first_step=1, num_steps=6,
        counters=Counters(started_at=tell_utc_time(), start_checksum=""),
        folder=config.work_dir,
    )  # fmt: skip
    window = Window(on_gpu)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step, micro_batches, waited in prefetch_micro_batches(make, range(1, 7), on_gpu.device):
            planned = plan.step(step)
            result = trainer.train_step(micro_batches, num_targets=planned.num_targets, learning_rate=1e-3)
            record.consume(step, 0, micro_batches, result)
            window.add(step, result, micro_batches, planned=planned, learning_rate=1e-3, data_wait_seconds=waited)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    facts = window.close(forgives_overflow=trainer.may_overflow)
    assert [fact.step for fact in facts] == list(range(1, 7))
    if workload_name == "causal_lm":
        assert facts[-1].loss_sum < facts[0].loss_sum


def test_packed_rows_have_the_gradient_that_each_has_alone(on_gpu: Ranks, tmp_path: Path) -> None:
    slice_dir = make_slice(tmp_path / "slice", num_rows=12, min_len=2)
    model_dir = make_tiny_model(tmp_path / "model")
    workload: Any = importlib.import_module("training.workloads.causal_lm")
    single: Any = importlib.import_module("training.strategies.single")
    gradients = []
    for packing in (False, True):
        told = make_config(
            tmp_path / "work", model_dir, [slice_dir], device="cuda", packing=packing, precision="bf16",
            micro_batch_size=12, global_batch_size=12,
        )  # fmt: skip
        config = parsed(told, tmp_path)
        replica = single.build(workload.load_model(model_dir), workload, config, on_gpu).replica
        source = open_slice(slice_dir)
        plan = plan_segment(
            source.lengths(32), seed=1, epoch=1, rows="0-12", global_batch_size=12, micro_batch_size=12,
            is_packed=packing,
        )  # fmt: skip
        for part in make_micro_batches(source, plan.step(1), rank=0, world_size=1, seq_len=32, seed=(1, 1)):
            replica.add(replica.module, part.to(on_gpu.device), weight=0.01)
        gradients.append(torch.cat([part.flatten().double() for part in replica.take_gradient()]))
    plain, packed = gradients
    # Of the rounding of bf16, and far below what a row that sees its neighbour would make.
    assert float((packed - plain).norm() / plain.norm()) < 2e-2
