"""What a rehearsal says of a rank's memory, against what is known of its parts and what ranks on the CPU hold."""

import json
from functools import cache

import pytest

from tests.extras import skip_without
from tests.gpu.steps import read_told
from tests.tiny import make_config, make_slice, make_tiny_model, make_tiny_workload
from training.probing.live_memory import KINDS
from training.process.failure import UnfitModelError
from training.registry import list_strategies
from training.rehearsal.rehearsed_step import rehearse_step
from training.strategies import find_traits

pytestmark = pytest.mark.slow

_ROUNDED = 512
_SIZES = {name: 1 if name == "single" else 2 for name in list_strategies() if not find_traits(name).no_rehearsal}


@pytest.fixture(scope="module")
def rehearse(tmp_path_factory):
    """Return `rehearse(workload, slices=None, **changes)`: a step of a model of which config.json alone is there."""

    @cache
    def make(workload):
        folder = tmp_path_factory.mktemp(workload)
        model, slices = make_tiny_workload(workload, folder)
        (model / "model.safetensors").unlink()
        return folder, model, slices

    def rehearse(workload="causal_lm", *, slices=None, **changes):
        folder, model, own = make(workload)
        changes = {"device": "cuda", "precision": "bf16", **changes}
        told = make_config(folder / "work", model, slices or own, workload=workload, **changes)
        return rehearse_step(read_told(told, folder), capability=(8, 0))

    return rehearse


def test_shards_are_gathered_twice_replicas_add_up_theirs_and_matrices_in_bf16_are_half_the_bytes(rehearse):
    plain, mixed, replicas = (
        rehearse(strategy="fsdp2", world_size=size, options=options)
        for size, options in [(2, {}), (2, {"mixed": "bf16"}), (4, {"replicas": 2})]
    )
    # Layers in forward and backward, and the root once.
    wanted = {"_allgather_base_": 1.9 * 4 * plain.num_parameters, "_reduce_scatter_base_": 4.0 * plain.num_parameters}
    assert dict(plain.work.exchanged) == pytest.approx(wanted, rel=0.1)
    assert plain.peak_bytes["communication"] > 4 * _ROUNDED
    gathered = [step.work.exchanged["_allgather_base_"] for step in (plain, mixed, replicas)]
    assert gathered[2] == gathered[0]
    assert 0.5 * gathered[0] <= gathered[1] < 0.6 * gathered[0]
    assert replicas.work.exchanged["allreduce_"] == pytest.approx(2 * plain.num_parameters, rel=0.1)
    assert replicas.peak_bytes["moments"] == plain.peak_bytes["moments"]
    for changes in ({"strategy": "fsdp2", "options": {"offload": "cpu"}}, {"strategy": "deepspeed"}):
        with pytest.raises(UnfitModelError, match="cannot be rehearsed"):
            rehearse(world_size=2, **changes)


@pytest.mark.parametrize(("strategy", "kinds"), [("ddp", ["allreduce_"]), ("zero1", ["allreduce_", "broadcast_"])])
def test_the_exchange_of_a_rank_is_that_of_its_strategy(strategy, kinds, rehearse):
    step = rehearse(strategy=strategy, world_size=2)
    assert dict(step.work.exchanged) == pytest.approx(dict.fromkeys(kinds, 4 * step.num_parameters), rel=0.1)
    assert step.peak_bytes["communication"] > 4 * _ROUNDED


def test_half_the_rows_and_recomputed_layers_leave_less_in_memory_and_a_step_of_one_micro_batch_no_gradient(
    rehearse, tmp_path
):
    slices = [make_slice(tmp_path / "long", num_rows=64, min_len=32, max_len=32)]
    sizes = {"global_batch_size": 64, "micro_batch_size": 32}
    whole, half, again, alone = (
        rehearse(slices=slices, **sizes | changes)
        for changes in (
            {}, {"micro_batch_size": 16}, {"activation_checkpointing": "layers"}, {"global_batch_size": 32}
        )
    )  # fmt: skip
    assert whole.num_positions == 2 * half.num_positions
    assert max(step.peak_bytes["activations"] for step in (half, again)) < 0.7 * whole.peak_bytes["activations"]
    # Elsewhere memory is most when there is no gradient yet.
    assert alone.total_bytes < whole.total_bytes - 2 * whole.num_parameters
    # Without others there is no more than a sum of losses.
    assert not whole.work.exchanged
    assert whole.peak_bytes["communication"] <= 4 * _ROUNDED


@pytest.mark.parametrize("workload", ["instruction", "sequence_classification", "image_classification"])
def test_every_workload_is_rehearsed(workload, rehearse):
    step = rehearse(workload, global_batch_size=8, micro_batch_size=4)
    assert step.peak_bytes["moments"] >= 8 * step.num_parameters
    assert sum(flops * number for (flops, _, _), number in step.work.products.items()) > 0


def test_beside_an_adapter_all_weights_are_there_and_gradient_and_moments_are_its_own(rehearse):
    skip_without("peft")
    lora = {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": ["q_proj"], "base": None}
    whole, step = (
        rehearse(strategy="ddp", world_size=2, precision="fp32", adapter=adapter) for adapter in (None, lora)
    )
    factors = 4 * step.num_parameters
    # Two layers of 64 inputs and 64 outputs.
    assert factors == 4 * 2 * 4 * (64 + 64)
    assert step.peak_bytes["weights"] == pytest.approx(4 * whole.num_parameters + factors, rel=0.1)
    # By their shapes some activations are counted among them.
    assert factors <= step.peak_bytes["gradients"] < whole.peak_bytes["gradients"] / 3
    assert factors <= step.peak_bytes["communication"] < 2 * factors
    assert step.work.exchanged["allreduce_"] == pytest.approx(factors, rel=0.1)


@pytest.mark.parametrize("strategy", _SIZES)
def test_what_each_rank_holds_in_a_step_is_what_a_rehearsal_says_of_it(strategy, ranks, tmp_path):
    model = make_tiny_model(tmp_path / "model", vocab_size=512, hidden_size=64, num_layers=4)
    slices = [make_slice(tmp_path / "slice", num_rows=48, min_len=16, max_len=32, vocab_size=512)]
    told = make_config(
        tmp_path / "work", model, slices, global_batch_size=16, micro_batch_size=4, strategy=strategy,
        world_size=_SIZES[strategy],
    )  # fmt: skip
    assert ranks.launch(told, entry="tests.training.observing") == [0] * _SIZES[strategy]
    config = read_told(told, tmp_path)
    rehearse = cache(lambda rank: rehearse_step(config, capability=None, rank=rank))
    for rank in range(_SIZES[strategy]):
        found = json.loads((tmp_path / "work" / f"observed-{rank}.json").read_bytes())
        assert set(found["parts"]) == set(KINDS)
        assert found["allocated_bytes"] == sum(found["parts"].values())
        assert found["reserved_bytes"] is None
        # The process has all of it, and torch beside it.
        assert found["host_bytes"] > found["allocated_bytes"]
        assert found["host_before_bytes"] > 0
        # Of these every rank holds as much.
        step = rehearse(0 if strategy in ("ddp", "fsdp2") else rank)
        for kind in ("weights", "gradients", "moments"):
            assert found["parts"][kind] == pytest.approx(step.peak_bytes[kind], rel=0.1), kind
        assert found["allocated_bytes"] == pytest.approx(step.total_bytes, rel=0.1)
