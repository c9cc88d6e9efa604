"""Several rows in one sequence: the same update as row by row, for any number of ranks."""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.equivalence.orders import make_rank_order
from tasks.equivalence.reference.update import OneProcess
from tests.ledgers import read_ledger
from tests.tiny import make_config, make_slice, make_tiny_model, write_slice
from tests.training.conftest import events_in, facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.data.batches import MicroBatch, open_slice
from training.data.plan import plan_segment
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.workloads import causal_lm


def test_rows_follow_one_another_and_each_counts_from_0(tmp_path: Path) -> None:
    source = open_slice(write_slice(tmp_path, [[5, 6, 7], [9], [1, 2]], first_row=20))
    packed = source.collate([0, 2, 1], seq_len=16, is_packed=True)
    assert packed.input_ids.tolist() == [[5, 6, 7, 1, 2, 9, 0, 0]]
    assert packed.labels.tolist() == [[6, 7, -100, 2, -100, -100, -100, -100]]
    assert packed.label_places.tolist() == [0, 1, 3]
    assert packed.row_ids.tolist() == [20, 22, 21]
    assert packed.sample_num_tokens.tolist() == [2, 1, 0]
    assert packed.documents is not None
    assert packed.documents.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert packed.documents.boundaries.tolist() == [0, 3, 5, 8]
    assert packed.documents.lengths == (3, 2, 3)
    assert packed.num_padding_tokens == 2


def test_padding_never_makes_a_row_longer_than_seq_len(tmp_path: Path) -> None:
    source = open_slice(write_slice(tmp_path, [[1] * 10, [2] * 9]))
    packed = source.collate([0, 1], seq_len=10, is_packed=True)
    assert packed.input_ids.shape == (1, 19)
    assert packed.documents is not None
    assert packed.documents.lengths == (10, 9)


@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=120),
    micro_batch_size=st.integers(1, 6),
    num_parts=st.integers(1, 5),
)
@settings(max_examples=80, deadline=None)
def test_packs_hold_every_row_once_are_as_many_as_without_and_nearly_equal(
    lengths: list[int], micro_batch_size: int, num_parts: int
) -> None:
    sizes = np.array(lengths)
    plans = [
        plan_segment(
            sizes, seed=3, epoch=1, rows=f"0-{len(sizes)}", global_batch_size=micro_batch_size * num_parts,
            micro_batch_size=micro_batch_size, is_packed=is_packed,
        )
        for is_packed in (True, False)
    ]  # fmt: skip
    for number in range(1, plans[0].num_steps + 1):
        packed, plain = (plan.step(number) for plan in plans)
        assert len(packed.micro_batches) == len(plain.micro_batches)
        assert Counter(np.concatenate(packed.micro_batches)) == Counter(np.concatenate(plain.micro_batches))
        assert packed.num_tokens == plain.num_tokens
        assert all(len(part) for part in packed.micro_batches)
        tokens = [int(np.maximum(sizes[part], 1).sum()) for part in packed.micro_batches]
        assert tokens == sorted(tokens, reverse=True)
        assert tokens[0] - tokens[-1] <= max(int(sizes.max()), 1), "one row more or less at most"


def test_packs_of_real_lengths_leave_ranks_within_a_hundredth_of_each_other() -> None:
    lengths = np.random.default_rng(0).integers(20, 400, size=640)
    plan = plan_segment(
        lengths, seed=1, epoch=1, rows="0-640", global_batch_size=64, micro_batch_size=8, is_packed=True
    )
    for number in range(1, 11):
        step = plan.step(number)
        work = [
            sum(
                int(lengths[step.micro_batches[index]].sum())
                for index in step.select_for_rank(rank, 2)
                if index is not None
            )
            for rank in range(2)
        ]
        assert abs(work[0] - work[1]) / sum(work) < 0.01


def _gradients(model: torch.nn.Module, parts: list[MicroBatch]) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = sum(float(_backward(model, part)) for part in parts)
    return loss, {name: part.grad.clone() for name, part in model.named_parameters() if part.grad is not None}


def _backward(model: torch.nn.Module, part: MicroBatch) -> torch.Tensor:
    loss = causal_lm.loss_sum(model, part)
    loss.backward()
    return loss.detach()


def _prepared(model_dir: Path, work: Path, slice_dir: Path, **changes: Any) -> torch.nn.Module:
    work.mkdir(exist_ok=True)
    config = parsed(make_config(work, model_dir, [slice_dir], packing=True, **changes), work)
    model = causal_lm.load_model(model_dir)
    causal_lm.prepare(model, config)
    return model.eval()


def _llama(folder: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _opt(folder: Path) -> Path:
    """Write a model whose positions are learned: it matters that they begin anew."""
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=128, hidden_size=32, ffn_dim=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=32, dropout=0.0, init_std=0.3,
    )  # fmt: skip
    OPTForCausalLM(config).save_pretrained(folder)
    return folder


_MODELS: dict[str, Callable[[Path], Path]] = {
    "qwen2, tied": make_tiny_model,
    "qwen2, untied": lambda folder: make_tiny_model(folder, tied=False),
    "llama": _llama,
    "opt": _opt,
}


@pytest.mark.parametrize("kind", _MODELS)
def test_each_row_has_the_loss_and_the_gradient_that_it_has_alone(kind: str, tmp_path: Path) -> None:
    slice_dir = make_slice(tmp_path / "slice", num_rows=12, min_len=2)
    model = _prepared(_MODELS[kind](tmp_path / "model"), tmp_path / "work", slice_dir)
    source = open_slice(slice_dir)
    for row in range(12):
        # The row's own loss: all others in the sequence have no label.
        packed = source.collate([3, row, 5], seq_len=32, is_packed=True)
        start, end = int(packed.documents.boundaries[1]), int(packed.documents.boundaries[2])  # type: ignore[union-attr]
        mine = packed.label_places[(packed.label_places >= start) & (packed.label_places < end)]
        packed = MicroBatch(**{**vars(packed), "label_places": mine})
        with torch.no_grad():
            alone = causal_lm.loss_sum(model, source.collate([row], seq_len=32))
            assert float(causal_lm.loss_sum(model, packed)) == pytest.approx(float(alone), rel=2e-6)
    loss, gradient = _gradients(model, [source.collate(range(12), seq_len=32, is_packed=True)])
    loss_alone, gradient_alone = _gradients(model, [source.collate([row], seq_len=32) for row in range(12)])
    assert loss == pytest.approx(loss_alone, rel=1e-6)
    assert relative_l2(gradient, gradient_alone) < 1e-6


def test_a_packed_training_is_the_unpacked_one_in_fewer_positions(
    tiny_model: Path, slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    configs = [
        make_config(tmp_path / str(packing), tiny_model, slices, packing=packing, micro_batch_size=4)
        for packing in (False, True)
    ]
    steps = [[event for event in train_here(config) if event["event"] == "step"] for config in configs]
    for plain, packed in zip(*steps, strict=True):
        assert packed["num_tokens"] == plain["num_tokens"]
        assert packed["num_samples"] == plain["num_samples"]
        assert packed["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert relative_l2(weights_at_end(configs[1]), weights_at_end(configs[0])) < 2e-6
    plain, packed = (sum(step["num_padding_tokens"] for step in run) for run in steps)
    assert packed < plain / 3
    ledgers = []
    for config in configs:
        folder = Path(config["work_dir"]) / "segments" / config["segments"][0]["fingerprint"]
        ledger = read_ledger(folder)
        ledgers.append(sorted(zip(ledger["step"].tolist(), ledger["row_id"].tolist(), strict=True)))
    assert ledgers[0] == ledgers[1]
    assert len(ledgers[0]) == 45


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_one_process_with_code_of_its_own_computes_the_same_packed_updates(
    precision: str, slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    # Dropout in attention too: drawn per document, in the same order.
    model = make_tiny_model(tmp_path / "model", dropout=0.1)
    config = make_config(
        tmp_path / "work", model, slices[:1], packing=True, precision=precision, loss_chunk_rows=16, micro_batch_size=4
    )  # fmt: skip
    train_here(config)
    settings = parsed(config, tmp_path)
    expected = OneProcess(settings).update(make_rank_order(settings), on_step=lambda: None)
    assert relative_l2(weights_at_end(config), expected.weights) < 1e-6


def test_what_a_model_is_like_is_found_out_once_and_not_at_every_micro_batch(
    tiny_model: Path, slices: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = causal_lm.load_model(tiny_model), []
    to_dict = type(model.config).to_dict
    monkeypatch.setattr(type(model.config), "to_dict", lambda config: asked.append(config) or to_dict(config))
    # As on a GPU: there it matters whether the model has dropout.
    monkeypatch.setattr(causal_lm, "has_varlen_kernel", lambda device, *, is_16_bit: True)
    packed = open_slice(slices[0]).collate(range(4), seq_len=32, is_packed=True)
    told = [causal_lm._make_attention_inputs(model, packed) for _ in range(3)]
    assert all("document_boundaries" in each for each in told)
    assert len(asked) == 1


def test_heads_that_the_kernel_for_all_documents_refuses_are_attended_to_one_document_after_the_other(
    slices: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU.
    monkeypatch.setattr(causal_lm, "has_varlen_kernel", lambda device, *, is_16_bit: True)
    packed = open_slice(slices[0]).collate(range(4), seq_len=32, is_packed=True)
    for hidden_size, key in ((32, "document_boundaries"), (48, "document_lengths")):
        model = causal_lm.load_model(make_tiny_model(tmp_path / str(hidden_size), hidden_size=hidden_size))
        assert model.config.hidden_size // model.config.num_attention_heads == hidden_size // 4
        assert causal_lm._make_attention_inputs(model, packed).keys() == {"position_ids", key} | (
            {"longest_document", "takes_groups"} if key == "document_boundaries" else set()
        )


def _sha256(config: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(weights_at_end(config).items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.slow
def test_packed_weights_are_the_same_bits_on_1_2_and_4_ranks_in_exact_mode_and_near_in_the_fast_one(
    ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    def trained(world_size: int, **changes: Any) -> dict[str, Any]:
        config = make_config(
            tmp_path / f"{world_size}{changes}", tiny_model, slices, packing=True, world_size=world_size,
            strategy="ddp" if world_size > 1 else "single", **changes,
        )  # fmt: skip
        return ranks.train(config)

    assert len({_sha256(trained(world_size, exact=True)) for world_size in (1, 2, 4)}) == 1
    one, two = trained(1), trained(2)
    assert relative_l2(weights_at_end(two), weights_at_end(one)) < 2e-6
    assert facts_of(two)["num_tokens"] == facts_of(one)["num_tokens"]
    assert facts_of(two)["num_padding_tokens"] == facts_of(one)["num_padding_tokens"]
    # Killed after any step, it goes on to the same bits.
    config = make_config(tmp_path / "killed", tiny_model, slices, packing=True, checkpoint_every_steps=2)
    assert ranks.launch(config, fault="rank=0,step=4,kind=sigkill") == [-9]
    assert _sha256(ranks.train(config)) == _sha256(one)
    assert events_in(Path(config["work_dir"]) / "steps.jsonl")


def test_a_model_whose_positions_cannot_begin_anew_is_refused_in_one_line(
    tmp_path: Path, slices: list[Path], alone: Ranks
) -> None:
    from transformers import FalconConfig, FalconForCausalLM

    config = FalconConfig(vocab_size=128, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, alibi=True)
    FalconForCausalLM(config).save_pretrained(tmp_path / "model")
    with pytest.raises(UnfitModelError, match=r"FalconForCausalLM cannot: .* use packing: false") as caught:
        _prepared(tmp_path / "model", tmp_path / "work", slices[0])
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_model_with_a_window_shorter_than_a_row_is_refused(tmp_path: Path, slices: list[Path]) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=16,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(tmp_path / "model")
    with pytest.raises(UnfitModelError, match="a window of 16 tokens"):
        _prepared(tmp_path / "model", tmp_path / "work", slices[0])
    _prepared(tmp_path / "model", tmp_path / "work", slices[0], seq_len=16)
