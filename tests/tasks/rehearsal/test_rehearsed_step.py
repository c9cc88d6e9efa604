"""What a rehearsal without a GPU says of a rank's memory, against what is known of its parts."""

from pathlib import Path
from typing import Any

import pytest

from tests.extras import skip_without
from tests.gpu.steps import read_told
from tests.tiny import make_config, make_slice, make_tiny_workload
from training.probing.live_memory import KINDS
from training.process.failure import UnfitModelError
from training.rehearsal.rehearsed_step import RehearsedStep, rehearse_step
from training.workloads import causal_lm

pytestmark = pytest.mark.slow

AMPERE = (8, 0)
_ROUNDED = 512


def _rehearse(
    folder: Path, *, workload: str = "causal_lm", capability: tuple[int, int] = AMPERE, **changes: Any
) -> Any:
    model, slices = make_tiny_workload(workload, folder)
    # Of the model config.json alone is read.
    (model / "model.safetensors").unlink()
    return _rehearse_again(folder, model, slices, workload=workload, **changes)


def _rehearse_again(
    folder: Path, model: Path, slices: list[Path], *, capability: tuple[int, int] = AMPERE, **changes: Any
) -> RehearsedStep:
    told = make_config(folder / "work", model, slices, **{"device": "cuda", "precision": "bf16", **changes})
    return rehearse_step(read_told(told, folder), capability=capability)


def test_of_shards_replicas_add_up_their_part_and_matrices_in_bf16_are_half_the_bytes(tmp_path: Path) -> None:
    options: dict[str, dict[str, Any]] = {"plain": {}, "mixed": {"mixed": "bf16"}, "replicas": {"replicas": 2}}
    steps = {}
    for name, asked in options.items():
        size = 4 if name == "replicas" else 2
        (tmp_path / name).mkdir()
        steps[name] = _rehearse(tmp_path / name, strategy="fsdp2", world_size=size, options=asked)
    gathered = {name: step.work.exchanged["_allgather_base_"] for name, step in steps.items()}
    assert gathered["replicas"] == gathered["plain"]
    assert 0.5 * gathered["plain"] <= gathered["mixed"] < 0.6 * gathered["plain"]
    assert steps["replicas"].work.exchanged["allreduce_"] == pytest.approx(2 * steps["plain"].num_parameters, rel=0.1)
    assert steps["replicas"].peak_bytes["moments"] == steps["plain"].peak_bytes["moments"]
    with pytest.raises(UnfitModelError, match=r"options\.offload: cpu cannot be rehearsed"):
        _rehearse(tmp_path, strategy="fsdp2", world_size=2, options={"offload": "cpu"})
    with pytest.raises(UnfitModelError, match="strategy: deepspeed cannot be rehearsed"):
        _rehearse(tmp_path, strategy="deepspeed", world_size=2)


@pytest.mark.parametrize(
    ("strategy", "world_size", "weights", "moments", "exchanged"),
    [("single", 1, 1, 1, []), ("ddp", 2, 1, 1, ["allreduce_"]), ("zero1", 2, 1, 0.5, ["allreduce_", "broadcast_"]),
     ("fsdp2", 2, 0.5, 0.5, ["_allgather_base_", "_reduce_scatter_base_"])],
)  # fmt: skip
def test_weights_moments_and_exchange_of_a_rank_are_those_of_its_strategy(
    strategy: str, world_size: int, weights: float, moments: float, exchanged: list[str], tmp_path: Path
) -> None:
    step = _rehearse(tmp_path, strategy=strategy, world_size=world_size)
    assert set(step.peak_bytes) == set(KINDS)
    num_bytes = 4 * step.num_parameters
    # Every tensor is rounded up by itself, and zero1's and fsdp2's shares are whole tensors or rows.
    assert step.peak_bytes["moments"] == pytest.approx(2 * moments * num_bytes, rel=0.2)
    assert step.peak_bytes["moments"] >= 2 * 0.95 * moments * num_bytes
    assert step.peak_bytes["weights"] >= 0.95 * weights * num_bytes
    assert sorted(step.work.exchanged) == sorted(exchanged)
    for kind in exchanged:
        # The layers of fsdp2 are gathered twice, in forward and backward, and the root once.
        times = 1.9 if kind == "_allgather_base_" else 1.0
        assert step.work.exchanged[kind] == pytest.approx(times * num_bytes, rel=0.1), kind
    # Alone there is no more than a sum of losses.
    assert (step.peak_bytes["communication"] > 4 * _ROUNDED) == (world_size > 1)


def test_half_the_rows_and_recomputed_layers_leave_less_in_memory_and_a_step_of_one_micro_batch_no_gradient(
    tmp_path: Path,
) -> None:
    model, _ = make_tiny_workload("causal_lm", tmp_path)
    slices = [make_slice(tmp_path / "long", num_rows=64, min_len=32, max_len=32)]
    sizes = {"global_batch_size": 64, "micro_batch_size": 32}
    whole = _rehearse_again(tmp_path, model, slices, **sizes)
    half = _rehearse_again(tmp_path, model, slices, **{**sizes, "micro_batch_size": 16})
    again = _rehearse_again(tmp_path, model, slices, **sizes, activation_checkpointing="layers")
    alone = _rehearse_again(tmp_path, model, slices, **{**sizes, "global_batch_size": 32})
    assert whole.num_positions == 2 * half.num_positions
    kept = {name: step.peak_bytes["activations"] for name, step in (("whole", whole), ("half", half), ("again", again))}
    assert kept["half"] < 0.7 * kept["whole"]
    assert kept["again"] < 0.7 * kept["whole"]
    # Elsewhere memory is most when there is no gradient yet.
    assert alone.total_bytes < whole.total_bytes - 2 * whole.num_parameters


@pytest.mark.parametrize("workload", ["instruction", "sequence_classification", "image_classification"])
def test_every_workload_is_rehearsed(workload: str, tmp_path: Path) -> None:
    step = _rehearse(tmp_path, workload=workload, global_batch_size=8, micro_batch_size=4)
    assert step.peak_bytes["moments"] >= 8 * step.num_parameters
    assert sum(flops * number for (flops, _, _), number in step.work.products.items()) > 0


def test_the_operations_are_those_of_the_model(tmp_path: Path) -> None:
    step = _rehearse(tmp_path, precision="fp32")
    flops = sum(size * number for (size, _, _), number in step.work.products.items())
    # Forward and backward, by definition, of the matrices: all but the norms; attention on top.
    assert flops > 0.95 * 6 * step.num_parameters * step.num_positions * 0.9


def test_beside_an_adapter_all_weights_are_there_and_gradient_and_moments_are_its_own(tmp_path: Path) -> None:
    skip_without("peft")
    lora = {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": ["q_proj"], "base": None}
    steps = {}
    for name, adapter in (("all", None), ("lora", lora)):
        (tmp_path / name).mkdir()
        steps[name] = _rehearse(tmp_path / name, strategy="ddp", world_size=2, precision="fp32", adapter=adapter)
    whole, factors = (4 * steps[name].num_parameters for name in ("all", "lora"))
    # Two layers of 64 inputs and 64 outputs.
    assert factors == 4 * 2 * 4 * (64 + 64)
    found = steps["lora"].peak_bytes
    assert found["weights"] == pytest.approx(whole + factors, rel=0.1)
    assert 2 * factors <= found["moments"] < 3 * factors
    # By their shapes some activations are counted among them.
    assert factors <= found["gradients"] < steps["all"].peak_bytes["gradients"] / 3
    assert factors <= found["communication"] < 2 * factors
    assert steps["lora"].work.exchanged["allreduce_"] == pytest.approx(factors, rel=0.1)
    assert steps["lora"].total_bytes < steps["all"].total_bytes


def test_a_base_in_4_bits_takes_an_eighth_of_its_layers(tmp_path: Path) -> None:
    skip_without("peft")
    skip_without("bitsandbytes")
    peaks = {}
    for base in (None, "nf4"):
        lora = {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": ["q_proj"], "base": base}
        (tmp_path / str(base)).mkdir()
        peaks[base] = _rehearse(tmp_path / str(base), precision="fp32", adapter=lora).peak_bytes
    model = causal_lm.outline_model(tmp_path / "nf4" / "model")
    of_layers = sum(part.nbytes for name, part in model.named_parameters() if "_proj.weight" in name)
    assert peaks[None]["weights"] - peaks["nf4"]["weights"] == pytest.approx(7 / 8 * of_layers, rel=0.02)
