"""On a GPU the host never waits for the device between log points."""

import pytest
import torch

from tests.gpu.steps import NUM_STEPS, WORKLOADS, read_told, run_steps_without_waiting
from tests.tiny import make_config, make_slice, make_tiny_model
from training.data.batches import open_slice
from training.data.plan import make_micro_batches, plan_segment
from training.process.distributed import join_ranks
from training.strategies.single import step as single
from training.workloads import causal_lm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.fixture(scope="module")
def on_gpu():
    """This process as the only rank, on a GPU."""
    config = type("Config", (), {"world_size": 1, "device": "cuda", "oversubscribe": False})()
    with join_ranks(config) as ranks:
        yield ranks


@pytest.mark.parametrize("strategy", ["single", "ddp"])
@pytest.mark.parametrize(("workload", "packing"), WORKLOADS)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_no_step_waits_for_the_device(strategy, workload, packing, precision, on_gpu, tmp_path):
    if workload == "image_classification":
        pytest.importorskip("torchvision")
        pytest.importorskip("PIL")
    facts = run_steps_without_waiting(
        on_gpu, tmp_path, workload=workload, strategy=strategy, packing=packing, precision=precision
    )
    assert [fact.step for fact in facts] == list(range(1, NUM_STEPS + 1))
    if workload == "causal_lm":
        assert facts[-1].loss_sum < facts[0].loss_sum


def test_packed_rows_have_the_gradient_that_each_has_alone(on_gpu, tmp_path):
    slice_dir = make_slice(tmp_path / "slice", num_rows=12, min_len=2)
    model_dir = make_tiny_model(tmp_path / "model")
    gradients = []
    for packing in (False, True):
        told = make_config(
            tmp_path / "work", model_dir, [slice_dir], device="cuda", packing=packing, precision="bf16",
            micro_batch_size=12, global_batch_size=12,
        )  # fmt: skip
        config = read_told(told, tmp_path)
        replica = single.STRATEGY.build(causal_lm.load_model(model_dir), causal_lm, config, on_gpu).replica
        source = open_slice(slice_dir)
        plan = plan_segment(
            source.lengths(32), seed=1, epoch=1, rows="0-12", global_batch_size=12, micro_batch_size=12,
            is_packed=packing,
        )  # fmt: skip
        for part in make_micro_batches(source, plan.step(1), rank=0, world_size=1, seq_len=32, seed=(1, 1)):
            replica.forward_backward(replica.module, part.to(on_gpu.device), weight=0.01)
        gradients.append(torch.cat([part.flatten().double() for part in replica.take_gradient()]))
    plain, packed = gradients
    # Of the rounding of bf16, and far below what a row that sees its neighbour would make.
    assert float((packed - plain).norm() / plain.norm()) < 2e-2
