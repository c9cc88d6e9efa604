"""Masks are made without looking, so that a training step reads no value from the device: shown on a CPU."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tasks.data.sources.heads import give_head
from tests.tiny import make_config, make_slice, make_tiny_classifier, make_tiny_model
from tests.training.conftest import parsed
from training.data.plan import make_micro_batches, make_segment_plan
from training.model.attention_masks import skip_mask_checks
from training.process.distributed import Ranks

_READS = {
    torch.ops.aten.equal,
    torch.ops.aten.is_nonzero,
    torch.ops.aten.item,
    torch.ops.aten._local_scalar_dense,
    torch.ops.aten.masked_select,
    torch.ops.aten.nonzero,
}
"""What returns a number, or a tensor whose size is one, and therefore waits for the device."""


class _NoReads(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket not in _READS, f"{func} reads a value"
        return func(*args, **(kwargs or {}))


def test_a_look_at_a_value_is_noticed() -> None:
    ones = torch.ones(2)
    for look in (lambda: bool(ones.all()), lambda: float(ones[0]), ones.nonzero, lambda: torch.equal(ones, ones)):
        with pytest.raises(AssertionError, match="reads a value"), _NoReads():
            look()


def _decoder_that_classifies(folder: Path) -> Path:
    make_tiny_model(folder, tied=False)
    give_head(folder, ["a", "b", "c"])
    return folder


_JOBS: dict[str, tuple[str, Callable[[Path], Path], bool]] = {
    "causal_lm": ("causal_lm", make_tiny_model, False),
    "causal_lm, packed": ("causal_lm", make_tiny_model, True),
    "sequence_classification, encoder": ("sequence_classification", make_tiny_classifier, False),
    "sequence_classification, decoder": ("sequence_classification", _decoder_that_classifies, False),
}


@pytest.mark.parametrize("job", _JOBS)
@pytest.mark.parametrize("strategy", ["single", "ddp"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_no_step_reads_a_value(job: str, strategy: str, precision: str, alone: Ranks, tmp_path: Path) -> None:
    workload_name, make_model, packing = _JOBS[job]
    # Of one length each: then nothing is padded, and there is nothing to mask.
    slices = [
        make_slice(tmp_path / f"from {min_len}", num_rows=16, num_classes=3, min_len=min_len, max_len=16)
        for min_len in (2, 16)
    ]
    told = make_config(
        tmp_path / "work", make_model(tmp_path / "model"), slices, workload=workload_name, strategy=strategy,
        packing=packing, precision=precision,
    )  # fmt: skip
    config = parsed(told, tmp_path)
    workload: Any = importlib.import_module(f"training.workloads.{workload_name}")
    built: Any = importlib.import_module(f"training.strategies.{strategy}")
    trainer = built.build(workload.load_model(config.model_dir), workload, config, alone)
    for segment in config.segments:
        source = workload.open_slice(segment.slice_dir)
        plan = make_segment_plan(source, config, segment)
        for number in (1, 2):
            step = plan.step(number)
            parts = list(make_micro_batches(source, step, rank=0, world_size=1, seq_len=32, seed=(1, number)))
            trainer.warm_up(parts[0])
            with _NoReads():
                result = trainer.train_step(parts, num_targets=step.num_targets, learning_rate=1e-3)
            assert result.grad_norm.isfinite()


def _with_a_window(kind: str) -> Any:
    """Return a model with random weights, some of whose layers see 3 tokens to one side or to both."""
    from transformers import MistralConfig, MistralForCausalLM, ModernBertConfig, ModernBertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    if kind == "decoder":
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
        return MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=3)).eval()
    config = ModernBertConfig(**sizes, num_attention_heads=2, local_attention=6, pad_token_id=0, initializer_range=0.5)
    return ModernBertForSequenceClassification(config).eval()


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
@pytest.mark.parametrize("is_padded", [False, True])
def test_what_is_seen_is_what_transformers_lets_be_seen(kind: str, is_padded: bool) -> None:
    model = _with_a_window(kind)
    input_ids = torch.arange(1, 41).reshape(2, 20)
    mask = torch.ones_like(input_ids)
    if is_padded:
        mask[1, 15:] = 0
    with torch.no_grad():
        theirs = model(input_ids=input_ids, attention_mask=mask).logits
        with skip_mask_checks(is_padded=is_padded), _NoReads():
            ours = model(input_ids=input_ids, attention_mask=mask).logits
        blind = model(input_ids=input_ids, attention_mask=torch.ones_like(mask)).logits
    if kind == "decoder":
        theirs, ours = theirs[mask == 1], ours[mask == 1]
    elif is_padded:
        assert not torch.allclose(blind, theirs, rtol=1e-3)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
