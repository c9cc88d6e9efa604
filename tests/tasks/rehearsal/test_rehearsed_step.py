"""What a rehearsal without a GPU says of a rank's memory, against what is known of its parts."""

import pytest

from tests.extras import skip_without
from tests.gpu.steps import read_told
from tests.tiny import make_config, make_slice, make_tiny_workload
from training.process.failure import UnfitModelError
from training.rehearsal.rehearsed_step import rehearse_step

pytestmark = pytest.mark.slow

_ROUNDED = 512


def _rehearse(folder, *, workload="causal_lm", **changes):
    folder.mkdir(exist_ok=True)
    model, slices = make_tiny_workload(workload, folder)
    # Of the model config.json alone is read.
    (model / "model.safetensors").unlink()
    return _rehearse_again(folder, model, slices, workload=workload, **changes)


def _rehearse_again(folder, model, slices, **changes):
    told = make_config(folder / "work", model, slices, **{"device": "cuda", "precision": "bf16", **changes})
    return rehearse_step(read_told(told, folder), capability=(8, 0))


def test_of_shards_replicas_add_up_their_part_and_matrices_in_bf16_are_half_the_bytes(tmp_path):
    plain, mixed, replicas = (
        _rehearse(tmp_path / str(number), strategy="fsdp2", world_size=size, options=options)
        for number, (size, options) in enumerate([(2, {}), (2, {"mixed": "bf16"}), (4, {"replicas": 2})])
    )
    gathered = [step.work.exchanged["_allgather_base_"] for step in (plain, mixed, replicas)]
    assert gathered[2] == gathered[0]
    assert 0.5 * gathered[0] <= gathered[1] < 0.6 * gathered[0]
    assert replicas.work.exchanged["allreduce_"] == pytest.approx(2 * plain.num_parameters, rel=0.1)
    assert replicas.peak_bytes["moments"] == plain.peak_bytes["moments"]
    for changes in ({"strategy": "fsdp2", "options": {"offload": "cpu"}}, {"strategy": "deepspeed"}):
        with pytest.raises(UnfitModelError, match="cannot be rehearsed"):
            _rehearse(tmp_path, world_size=2, **changes)


@pytest.mark.parametrize(
    ("strategy", "world_size", "exchanged"),
    [("single", 1, {}), ("ddp", 2, {"allreduce_": 1.0}), ("zero1", 2, {"allreduce_": 1.0, "broadcast_": 1.0}),
     # Layers are gathered twice, in forward and backward, and the root once.
     ("fsdp2", 2, {"_allgather_base_": 1.9, "_reduce_scatter_base_": 1.0})],
)  # fmt: skip
def test_the_exchange_of_a_rank_is_that_of_its_strategy(strategy, world_size, exchanged, tmp_path):
    step = _rehearse(tmp_path, strategy=strategy, world_size=world_size)
    wanted = {kind: times * 4 * step.num_parameters for kind, times in exchanged.items()}
    assert dict(step.work.exchanged) == pytest.approx(wanted, rel=0.1)
    # Alone there is no more than a sum of losses.
    assert (step.peak_bytes["communication"] > 4 * _ROUNDED) == (world_size > 1)


def test_half_the_rows_and_recomputed_layers_leave_less_in_memory_and_a_step_of_one_micro_batch_no_gradient(tmp_path):
    model, _ = make_tiny_workload("causal_lm", tmp_path)
    slices = [make_slice(tmp_path / "long", num_rows=64, min_len=32, max_len=32)]
    sizes = {"global_batch_size": 64, "micro_batch_size": 32}
    whole, half, again, alone = (
        _rehearse_again(tmp_path, model, slices, **sizes | changes)
        for changes in (
            {}, {"micro_batch_size": 16}, {"activation_checkpointing": "layers"}, {"global_batch_size": 32}
        )
    )  # fmt: skip
    assert whole.num_positions == 2 * half.num_positions
    assert max(step.peak_bytes["activations"] for step in (half, again)) < 0.7 * whole.peak_bytes["activations"]
    # Elsewhere memory is most when there is no gradient yet.
    assert alone.total_bytes < whole.total_bytes - 2 * whole.num_parameters


@pytest.mark.parametrize("workload", ["instruction", "sequence_classification", "image_classification"])
def test_every_workload_is_rehearsed(workload, tmp_path):
    step = _rehearse(tmp_path, workload=workload, global_batch_size=8, micro_batch_size=4)
    assert step.peak_bytes["moments"] >= 8 * step.num_parameters
    assert sum(flops * number for (flops, _, _), number in step.work.products.items()) > 0


def test_beside_an_adapter_all_weights_are_there_and_gradient_and_moments_are_its_own(tmp_path):
    skip_without("peft")
    lora = {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": ["q_proj"], "base": None}
    whole = _rehearse(tmp_path / "all", strategy="ddp", world_size=2, precision="fp32")
    step = _rehearse(tmp_path / "lora", strategy="ddp", world_size=2, precision="fp32", adapter=lora)
    factors = 4 * step.num_parameters
    # Two layers of 64 inputs and 64 outputs.
    assert factors == 4 * 2 * 4 * (64 + 64)
    assert step.peak_bytes["weights"] == pytest.approx(4 * whole.num_parameters + factors, rel=0.1)
    # By their shapes some activations are counted among them.
    assert factors <= step.peak_bytes["gradients"] < whole.peak_bytes["gradients"] / 3
    assert factors <= step.peak_bytes["communication"] < 2 * factors
    assert step.work.exchanged["allreduce_"] == pytest.approx(factors, rel=0.1)
