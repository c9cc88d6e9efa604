"""Low-rank factors trained beside a model's weights: on real ranks, through real checkpoints."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from tasks.equivalence.reference.update import OneProcess, order_as_one_rank
from tasks.equivalence.updates import compare_with_one_process, judge
from tests.extras import skip_without
from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import are_bitwise_equal, facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.loop import train
from training.model.adapter import adapt, draw_first_factor
from training.process.distributed import Ranks
from training.process.events import EventStream
from training.process.failure import StoppedError, UnfitModelError
from training.process.stop_request import StopRequest
from training.strategies import single
from training.workloads import causal_lm

skip_without("peft")

Launch = Callable[..., list[dict[str, Any]]]

_LORA = {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": "all-linear", "base": None}
_CPU = torch.device("cpu")
_LAYER = "model.layers.0.self_attn.q_proj"


def _config(work: Path, model: Path, slices: list[Path], **changes: Any) -> dict[str, Any]:
    return make_config(work, model, slices, **{"adapter": _LORA, "learning_rate": 1e-2, **changes})


def _state_at_end(config: dict[str, Any]) -> dict[str, Any]:
    folder = Path(config["work_dir"]) / "segments" / config["segments"][-1]["fingerprint"]
    state: dict[str, Any] = torch.load(folder / "state.pt", weights_only=True)
    return state


def _count_factors(model: Path) -> int:
    linear = [part for name, part in causal_lm.load_model(model).named_modules() if isinstance(part, torch.nn.Linear)]
    # The head has none.
    return sum(_LORA["rank"] * (part.in_features + part.out_features) for part in linear[:-1])  # type: ignore[operator]


@pytest.fixture(scope="module")
def plain(ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The config of one plain process's training of both slices."""
    return ranks.train(_config(tmp_path_factory.mktemp("plain") / "work", tiny_model, slices))


@pytest.mark.parametrize(
    "changes", [{"strategy": "ddp"}, {"strategy": "zero1"}, {"strategy": "ddp", "exact": True}], ids=str
)
def test_two_ranks_train_the_factors_that_one_trains_and_exchange_these_alone(
    changes: dict[str, Any],
    plain: dict[str, Any],
    ranks: ForkedRanks,
    tiny_model: Path,
    slices: list[Path],
    tmp_path: Path,
) -> None:
    config = ranks.train(_config(tmp_path / "work", tiny_model, slices, world_size=2, **changes))
    one, two = _state_at_end(plain)["adapter"], _state_at_end(config)["adapter"]
    assert list(one) == list(two)
    assert relative_l2(two, one) < 2e-5
    assert relative_l2(weights_at_end(config), weights_at_end(plain)) < 2e-6
    facts = facts_of(config)
    if not config["exact"]:
        gradient = facts["traffic"]["all_reduce"]["num_bytes"] / facts["num_steps"]
        assert gradient == 4 * _count_factors(tiny_model)
        assert gradient < 4 * sum(part.numel() for part in causal_lm.load_model(tiny_model).parameters()) / 2


def test_a_checkpoint_is_the_ordinary_model_with_the_loss_of_the_adapted_one(
    plain: dict[str, Any], tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    folder = Path(plain["work_dir"]) / "segments" / plain["segments"][-1]["fingerprint"]
    (file,) = folder.glob("tiny_*.pt")
    merged = causal_lm.load_model(tiny_model, checkpoint=file).eval()
    adapted = causal_lm.load_model(tiny_model)
    found = adapt(adapted, parsed(plain, tmp_path), device=_CPU)
    assert found is not None
    found.load_factors(_state_at_end(plain)["adapter"])
    batch = causal_lm.open_slice(slices[0]).collate(range(16), seq_len=32)
    with torch.no_grad():
        of_base, of_merged, of_adapted = (
            float(causal_lm.loss_sum(model, batch))
            for model in (causal_lm.load_model(tiny_model), merged, adapted.eval())
        )
    assert of_merged == pytest.approx(of_adapted, rel=1e-6)
    assert abs(of_merged - of_base) > 1e-3 * of_base
    base, after = causal_lm.load_model(tiny_model).state_dict(), merged.state_dict()
    changed = {name for name in base if not torch.equal(base[name], after[name])}
    assert changed == {
        f"model.layers.{layer}.{part}.weight"
        for layer in range(2)
        for part in [
            *(f"self_attn.{one}_proj" for one in "qkvo"),
            *(f"mlp.{one}_proj" for one in ("gate", "up", "down")),
        ]
    }


def test_factors_that_add_nothing_leave_every_bit_of_the_base(
    plain: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    base = causal_lm.load_model(tiny_model)
    with torch.no_grad():
        base.get_submodule(_LAYER).weight[0, :2] = torch.tensor([-0.0, 0.0])
    before = {name: part.clone() for name, part in base.state_dict().items()}
    found = adapt(base, parsed(plain, tmp_path), device=_CPU)
    assert found is not None
    for merged in (dict(found.merge_parameters()), found.merge_weights()):
        assert [name for name, part in merged.items() if not _has_bits_of(part, before[name])] == []


def _has_bits_of(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()


def test_a_stopped_training_goes_on_to_the_same_bits(
    plain: dict[str, Any], train_here: Launch, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    config = _config(tmp_path / "work", tiny_model, slices)
    with pytest.raises(StoppedError):
        train_here(config, stop_after_step=3)
    train_here(config)
    assert facts_of(config, 0)["num_resumes"] == 1
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(plain))
    assert are_bitwise_equal(_state_at_end(config)["adapter"], _state_at_end(plain)["adapter"])


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_two_ranks_that_were_stopped_go_on_to_the_same_bits(
    strategy: str, ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    spread = {"strategy": strategy, "world_size": 2}
    whole = ranks.train(_config(tmp_path / "whole", tiny_model, slices, **spread))
    stopped = _config(tmp_path / "stopped", tiny_model, slices, **spread)
    assert any(ranks.launch(stopped, fault="rank=0,step=3,kind=sigterm"))
    ranks.train(stopped)
    assert facts_of(stopped, 0)["num_resumes"] == 1
    assert are_bitwise_equal(weights_at_end(stopped), weights_at_end(whole))
    assert are_bitwise_equal(_state_at_end(stopped)["adapter"], _state_at_end(whole)["adapter"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_16_bit_factors_and_what_is_merged_are_fp32_and_the_bits_of_one_rank(
    precision: str, plain: dict[str, Any], ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    changes = {"precision": precision, "exact": True}
    one = ranks.train(_config(tmp_path / "one", tiny_model, slices, **changes))
    two = _config(tmp_path / "two", tiny_model, slices, world_size=2, strategy="ddp", **changes)
    assert any(ranks.launch(two, fault="rank=0,step=3,kind=sigterm"))
    ranks.train(two)
    assert facts_of(two, 0)["num_resumes"] == 1
    for found in (weights_at_end, lambda config: _state_at_end(config)["adapter"]):
        assert {part.dtype for part in found(one).values()} == {torch.float32}
        assert are_bitwise_equal(found(two), found(one))
        # Rounded otherwise in every layer, and still the same training.
        assert 0 < relative_l2(found(one), found(plain)) < 0.05


@pytest.mark.parametrize(("precision", "strategy"), [("bf16", "ddp"), ("bf16", "zero1"), ("fp16", "ddp")])
def test_in_16_bit_the_certificate_passes_two_ranks_and_no_factor_scaled_otherwise(
    precision: str, strategy: str, ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    changes = {"world_size": 2, "strategy": strategy, "precision": precision}
    config = _config(tmp_path / "work", tiny_model, slices[:1], **changes)
    assert ranks.launch(config, entry="tests.training.keeping") == [0, 0]
    told = parsed(config, tmp_path)
    assert judge(*compare_with_one_process(told, on_update=lambda: None)) == ("passed", None)
    other = dataclasses.replace(told, adapter={**_LORA, "alpha": 8.1})
    assert judge(*compare_with_one_process(other, on_update=lambda: None))[0] == "failed"


def test_weights_that_are_not_the_base_with_its_factors_are_not_gone_on_from(
    alone: Ranks, plain: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    strategy = single.build(causal_lm.load_model(tiny_model), causal_lm, parsed(plain, tmp_path), alone)  # type: ignore[arg-type]
    weights, state = weights_at_end(plain), _state_at_end(plain)
    weights[f"{_LAYER}.weight"] = weights[f"{_LAYER}.weight"] * 1.01
    before = strategy.digest()
    with pytest.raises(ValueError, match=f"{_LAYER}.weight is not that of the base"):
        strategy.restore(weights, state)
    assert strategy.digest() == before


def test_the_certificate_passes_right_updates_and_no_changed_base(
    alone: Ranks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    config = parsed(_config(tmp_path / "work", tiny_model, slices[:1]), tmp_path)
    events = EventStream(config.work_dir / "steps.jsonl", rank=0)
    train(config, alone, stop=StopRequest(), events=events, keeps_updates=True)
    updates, problems = compare_with_one_process(config, on_update=lambda: None)
    assert judge(updates, problems) == ("passed", None)
    (file,) = (tmp_path / "work").glob("segments/*/tiny_*.pt")
    weights = torch.load(file, weights_only=True)
    torch.save({**weights, "model.norm.weight": weights["model.norm.weight"] * 1.001}, file)
    verdict, why = judge(*compare_with_one_process(config, on_update=lambda: None))
    assert (verdict, "model.norm.weight" in str(why)) == ("failed", True)


def test_the_second_computation_begins_and_grows_as_the_formula_says(
    tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    process = OneProcess(parsed(_config(tmp_path / "work", tiny_model, slices[:1]), tmp_path))
    first, second = (f"{_LAYER}.lora_{one}.default.weight" for one in "AB")
    begin = process.start_weights
    assert torch.equal(begin[first], draw_first_factor(_LAYER, rank=4, num_inputs=64, seed=1))
    assert not begin[second].any()
    (gradient,) = process.gradient(1, order_as_one_rank).by_order
    # Its second factor is 0, so that nothing of the loss depends on the first.
    assert not gradient[first].any()
    whole = OneProcess(parsed(_config(tmp_path / "work", tiny_model, slices[:1], adapter=None), tmp_path))
    (of_weights,) = whole.gradient(1, order_as_one_rank).by_order
    by_hand = 8 / 4 * of_weights[f"{_LAYER}.weight"] @ begin[first].t()
    assert torch.allclose(gradient[second], by_hand, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("targets", [["q_proj", "query"], ["lm_head"], ["embed_tokens"]], ids=str)
def test_a_target_that_is_no_linear_layer_below_the_head_is_refused_with_those_that_are(
    targets: list[str], tmp_path: Path, slices: list[Path]
) -> None:
    folder = make_tiny_model(tmp_path / "untied", tied=False)
    config = parsed(_config(tmp_path / "work", folder, slices, adapter={**_LORA, "targets": targets}), tmp_path)
    with pytest.raises(UnfitModelError, match=f"got {targets[-1]}, .*allowed: down_proj, gate_proj, k_proj"):
        adapt(causal_lm.load_model(folder), config, device=_CPU)


def test_a_model_without_a_linear_layer_is_refused_in_one_line(tmp_path: Path, slices: list[Path]) -> None:
    config = parsed(_config(tmp_path / "work", tmp_path, slices, adapter={**_LORA, "targets": "all-linear"}), tmp_path)
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=32))
    with pytest.raises(UnfitModelError, match="got all-linear, and GPT2LMHeadModel has no linear layer below its head"):
        adapt(gpt2, config, device=_CPU)
