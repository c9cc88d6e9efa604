"""A base model whose weights wait in 4 bits beside low-rank factors: on real ranks, through real checkpoints."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.equivalence.reference.causal_lm import compute_rows_loss, read_rows
from tasks.equivalence.updates import compare_with_one_process, judge
from tests.extras import skip_without
from tests.tiny import make_config
from tests.training.conftest import are_bitwise_equal, events_in, facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.data.plan import plan_segment
from training.model.adapter import adapt, round_base
from training.model.attention_kernels import DTYPES
from training.model.weights import compute_parameter_checksum
from training.process.distributed import Ranks
from training.strategies import single
from training.workloads import causal_lm

skip_without("peft")
skip_without("bitsandbytes")

_NF4 = {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": ["q_proj", "up_proj"], "base": "nf4"}
_CPU = torch.device("cpu")
_LEVELS = torch.tensor([
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
])  # fmt: skip
"""What NF4 has of a block's largest weight (Dettmers et al. 2023, appendix E)."""


def _config(work: Path, model: Path, slices: list[Path], **changes: Any) -> dict[str, Any]:
    return make_config(work, model, slices[:1], **{"adapter": _NF4, "learning_rate": 1e-2, **changes})


def _factors(config: dict[str, Any]) -> dict[str, torch.Tensor]:
    (file,) = (Path(config["work_dir"]) / "segments").glob("*/state.pt")
    found: dict[str, torch.Tensor] = torch.load(file, weights_only=True)["adapter"]
    return found


def _make_rounded(folder: Path) -> torch.nn.Module:
    model = causal_lm.load_model(folder)
    round_base(model, "nf4", device=_CPU)
    return model


@pytest.fixture(scope="module")
def alone_fp32(ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path_factory: Any) -> dict[str, Any]:
    """The config of one process's training, with what each update began with."""
    config = _config(tmp_path_factory.mktemp("alone") / "work", tiny_model, slices)
    assert ranks.launch(config, entry="tests.training.keeping") == [0]
    return config


def test_the_base_is_rounded_to_the_16_levels_of_every_64_weights_below_the_head(tiny_model: Path) -> None:
    plain, rounded = (
        dict(model.named_parameters()) for model in (causal_lm.load_model(tiny_model), _make_rounded(tiny_model))
    )
    changed = {name for name, part in plain.items() if not torch.equal(part, rounded[name])}
    assert changed == {name for name in plain if "_proj.weight" in name}
    for name in changed:
        before, after = (found[name].detach().reshape(-1, 64) for found in (plain, rounded))
        largest = after.abs().amax(1, keepdim=True)
        assert torch.equal(largest, before.abs().amax(1, keepdim=True))
        nearest = ((before / largest)[..., None] - _LEVELS).abs().argmin(-1)
        assert torch.allclose(after, _LEVELS[nearest] * largest, rtol=0, atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_model_in_4_bits_computes_what_its_rounded_weights_do_to_the_bit(
    precision: str, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    told = parsed(_config(tmp_path / "work", tiny_model, slices, precision=precision), tmp_path)
    rounded, packed = _make_rounded(tiny_model), causal_lm.load_model(tiny_model)
    adapter = adapt(packed, told, device=_CPU)
    assert adapter is not None
    batch, found = causal_lm.open_slice(slices[0]).collate(range(8), seq_len=32), []
    for model in (rounded, packed):
        embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
        embedding.weight.requires_grad_()
        for is_training in (True, False):
            with torch.autocast("cpu", DTYPES[precision], enabled=precision != "fp32"):
                loss = causal_lm.loss_sum(model.train(is_training), batch)
            (gradient,) = torch.autograd.grad(loss, embedding.weight)
            found.append((loss, gradient))
    assert found[0][1].any()
    assert all(torch.equal(one, first) for pair in found[1:] for one, first in zip(pair, found[0], strict=True))
    # Also after it was evaluated, and with every bias in fp32.
    assert are_bitwise_equal(adapter.merge_weights(), dict(rounded.state_dict()))
    taken = sum(part.nbytes for name, part in packed.named_parameters() if "lora" not in name)
    assert taken + adapter.num_bytes_saved == sum(part.nbytes for part in rounded.parameters())
    packed_bytes = sum(part.nbytes for part in packed.parameters() if part.dtype == torch.uint8)
    assert packed_bytes * 8 == sum(part.nbytes for name, part in rounded.named_parameters() if "_proj.weight" in name)


def test_step_1_has_the_weights_and_the_loss_of_the_rounded_model(
    alone_fp32: dict[str, Any], tiny_model: Path, slices: list[Path]
) -> None:
    facts = facts_of(alone_fp32)
    (first, *_) = (
        event for event in events_in(Path(alone_fp32["work_dir"]) / "steps.jsonl") if event["event"] == "step"
    )
    assert facts["start_checksum"] == compute_parameter_checksum(_make_rounded(tiny_model))
    plan = plan_segment(
        causal_lm.open_slice(slices[0]).lengths(32), seed=1, epoch=1, rows="0-45",
        global_batch_size=alone_fp32["global_batch_size"], micro_batch_size=alone_fp32["micro_batch_size"],
    )  # fmt: skip
    rows = [int(row) for part in plan.step(1).micro_batches for row in part]
    loss, plain = (
        total / number
        for total, number in (
            compute_rows_loss(tiny_model, read_rows(slices[0], rows, seq_len=32), device="cpu", base=base)
            for base in ("nf4", None)
        )
    )
    assert first["loss"] == pytest.approx(loss, rel=1e-6)
    assert abs(plain - loss) > 1e-5 * loss


@pytest.mark.parametrize("changes", [{"strategy": "zero1"}, {"strategy": "ddp", "exact": True}], ids=str)
def test_two_ranks_train_the_factors_that_one_trains(
    changes: dict[str, Any],
    alone_fp32: dict[str, Any],
    ranks: ForkedRanks,
    tiny_model: Path,
    slices: list[Path],
    tmp_path: Path,
) -> None:
    two = ranks.train(_config(tmp_path / "work", tiny_model, slices, world_size=2, **changes))
    for found in (weights_at_end, _factors):
        assert relative_l2(found(two), found(alone_fp32)) < 2e-5
        assert are_bitwise_equal(found(two), found(alone_fp32)) or not changes.get("exact")


def test_in_bf16_two_ranks_go_on_to_the_same_bits_and_the_certificate_knows_the_base(
    alone_fp32: dict[str, Any], ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    changes = {"world_size": 2, "strategy": "ddp", "precision": "bf16"}
    whole = _config(tmp_path / "whole", tiny_model, slices, **changes)
    assert ranks.launch(whole, entry="tests.training.keeping") == [0, 0]
    stopped = _config(tmp_path / "stopped", tiny_model, slices, **changes)
    assert any(ranks.launch(stopped, fault="rank=0,step=3,kind=sigterm"))
    ranks.train(stopped)
    assert facts_of(stopped)["num_resumes"] == 1
    for found in (weights_at_end, _factors):
        assert are_bitwise_equal(found(stopped), found(whole))
        assert 0 < relative_l2(found(whole), found(alone_fp32)) < 0.05
    told = parsed(whole, tmp_path)
    assert judge(*compare_with_one_process(told, on_update=lambda: None)) == ("passed", None)
    other = dataclasses.replace(told, adapter={**_NF4, "base": None})
    updates, problems = compare_with_one_process(other, on_update=lambda: None)
    assert judge(updates, problems)[0] == judge(updates, [])[0] == "failed"
    assert "not the base model's" in problems[0]


def test_a_checkpoint_is_the_rounded_model_with_the_factors_merged_and_goes_on_with_no_other_base(
    alone_fp32: dict[str, Any], alone: Ranks, tiny_model: Path, tmp_path: Path
) -> None:
    weights, rounded = weights_at_end(alone_fp32), _make_rounded(tiny_model).state_dict()
    changed = {name for name, part in rounded.items() if not torch.equal(part, weights[name])}
    assert changed == {name for name in rounded if name.endswith(("q_proj.weight", "up_proj.weight"))}
    assert {part.dtype for part in weights.values()} == {torch.float32}
    (file,) = (Path(alone_fp32["work_dir"]) / "segments").glob("*/state.pt")
    state = torch.load(file, weights_only=True)
    for base in ("nf4", None):
        told = parsed({**alone_fp32, "adapter": {**_NF4, "base": base}}, tmp_path)
        strategy = single.build(causal_lm.load_model(tiny_model), causal_lm, told, alone)  # type: ignore[arg-type]
        if base:
            strategy.restore(weights, state)
            assert strategy.digest().parameters[0] == facts_of(alone_fp32)["parameter_checksums"][0]
        else:
            with pytest.raises(ValueError, match="is not that of the base"):
                strategy.restore(weights, state)
