"""Texts that are classified, several in one sequence: each has the class scores that it has alone, and its gradient."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tasks.data.sources.heads import give_head
from tasks.equivalence.orders import make_rank_order
from tasks.equivalence.reference.update import OneProcess
from tests.ledgers import read_ledger
from tests.tiny import make_config, make_slice, make_tiny_classifier, make_tiny_model, write_slice
from tests.training.conftest import parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.data.batches import MicroBatch
from training.model import packed_texts
from training.process.failure import UnfitModelError
from training.workloads import causal_lm
from training.workloads import sequence_classification as workload

_WINDOW = 6
"""Tokens to either side that every other layer of the small ModernBERT sees; rows have up to 40."""


def _make_modernbert(folder: Path, pooling: str) -> Path:
    from transformers import ModernBertConfig, ModernBertForSequenceClassification

    config = ModernBertConfig(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
        max_position_embeddings=64, global_attn_every_n_layers=2, local_attention=2 * _WINDOW, num_labels=3,
        classifier_pooling=pooling, pad_token_id=3, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
        # Else attention is nearly even, and whom a token sees matters little.
        initializer_range=0.2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ModernBertForSequenceClassification(config).save_pretrained(folder)
    return folder


def _make_decoder(folder: Path) -> Path:
    make_tiny_model(folder, tied=False)
    give_head(folder, ["a", "b", "c"])
    return folder


_MODELS: dict[str, Callable[[Path], Path]] = {
    "bert": make_tiny_classifier,
    "modernbert, first token": lambda folder: _make_modernbert(folder, "cls"),
    "modernbert, mean": lambda folder: _make_modernbert(folder, "mean"),
    "decoder": _make_decoder,
}


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two slices of texts of three classes, of 2 to 40 tokens."""
    root = tmp_path_factory.mktemp("texts")
    return [
        make_slice(root / "0", num_rows=45, min_len=2, num_classes=3),
        make_slice(root / "1", num_rows=27, min_len=2, first_row=45, seed=1, num_classes=3),
    ]


def _config(work: Path, model: Path, slices: list[Path], **changes: Any) -> dict[str, Any]:
    return make_config(work, model, slices, workload="sequence_classification", **{"packing": True, **changes})


def _load_pair(kind: str, slices: list[Path], tmp_path: Path) -> tuple[Any, Any]:
    """Return a model as it comes, and the same prepared for packs."""
    folder = _MODELS[kind](tmp_path / "model")
    plain, packing = (workload.load_model(folder).eval() for _ in range(2))
    for model in (plain, packing):
        model.config.pad_token_id = 3
    workload.prepare(packing, parsed(_config(tmp_path / "work", folder, slices), tmp_path))
    return plain, packing


def _gradients(model: torch.nn.Module, parts: list[MicroBatch]) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = torch.stack([workload.loss_sum(model, part) for part in parts]).sum()
    loss.backward()
    return float(loss.detach()), {name: part.grad for name, part in model.named_parameters() if part.grad is not None}


def test_texts_follow_one_another_and_padding_is_seen_by_none(tmp_path: Path) -> None:
    source = workload.open_slice(write_slice(tmp_path, [[5, 6, 7], [9], [1, 2]], first_row=20, labels=[2, 0, 1]))
    packed = source.collate([0, 2, 1], seq_len=16, is_packed=True)
    assert packed.input_ids.tolist() == [[5, 6, 7, 1, 2, 9, 0, 0]]
    assert packed.labels.tolist() == [2, 1, 0]
    assert packed.row_ids.tolist() == [20, 22, 21]
    assert packed.sample_num_tokens.tolist() == [3, 2, 1]
    assert packed.attention_mask is None
    assert packed.documents is not None
    assert packed.documents.lengths == (3, 2, 1, 2), "what pads is a document of its own"
    assert packed.documents.position_ids.tolist() == [[0, 1, 2, 0, 1, 0, 0, 1]]
    assert packed.num_padding_tokens == 2
    full = source.collate([0, 0, 2], seq_len=16, is_packed=True)
    assert full.documents is not None
    assert (full.documents.lengths, full.num_padding_tokens) == ((3, 3, 2), 0)


@pytest.mark.parametrize("kind", _MODELS)
def test_each_text_has_the_scores_and_the_gradient_that_it_has_alone(
    kind: str, slices: list[Path], tmp_path: Path
) -> None:
    plain, packing = _load_pair(kind, slices, tmp_path)
    source = workload.open_slice(slices[0])
    # One length several times in a row, as long as a row may be, and others.
    rows = [3, 7, 7, 7, 12, 20, 20, 5, 40]
    pack = source.collate(rows, seq_len=32, is_packed=True)
    alone = [source.collate([row], seq_len=32) for row in rows]
    with torch.no_grad():
        scores = workload._compute_batch_logits(packing, pack)
        expected = torch.cat([workload._compute_batch_logits(plain, part) for part in alone])
    assert torch.allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert (expected - expected.roll(1, 0)).abs().max() > 1e-2, "texts that nothing tells apart show nothing"
    found, wanted = _gradients(packing, [pack]), _gradients(plain, alone)
    assert found[0] == pytest.approx(wanted[0], rel=1e-6)
    assert relative_l2(found[1], wanted[1]) < 2e-6


def test_a_text_that_sees_its_neighbour_or_past_its_window_has_other_scores(
    slices: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, packing = _load_pair("modernbert, mean", slices, tmp_path)
    source = workload.open_slice(slices[0])
    pack = source.collate(range(8), seq_len=32, is_packed=True)
    with torch.no_grad():
        right = workload._compute_batch_logits(packing, pack)
        monkeypatch.setattr(packed_texts, "_find_band", lambda *_, **__: None)
        too_far = workload._compute_batch_logits(packing, pack)
        monkeypatch.undo()
        documents = pack.documents
        assert documents is not None
        first, second, *others = documents.lengths
        run = packing.base_model.forward
        packing.base_model.forward = lambda **told: run(**{**told, "document_lengths": (first + second, *others)})
        together = workload._compute_batch_logits(packing, pack)
    assert (too_far - right).abs().max() > 1e-3
    assert (together - right)[:2].abs().max() > 1e-3
    assert torch.equal(together[2:], right[2:])


def test_a_packed_training_is_the_unpacked_one_in_fewer_positions(
    slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    model = _make_modernbert(tmp_path / "model", "mean")
    configs = [
        _config(tmp_path / str(packing), model, slices, packing=packing, micro_batch_size=4)
        for packing in (False, True)
    ]
    steps = [[event for event in train_here(config) if event["event"] == "step"] for config in configs]
    for plain, packed in zip(*steps, strict=True):
        assert packed["num_tokens"] == plain["num_tokens"]
        assert packed["num_samples"] == plain["num_samples"]
        assert packed["loss"] == pytest.approx(plain["loss"], rel=1e-5)
    assert relative_l2(weights_at_end(configs[1]), weights_at_end(configs[0])) < 2e-6
    padding, packed_padding = (sum(step["num_padding_tokens"] for step in run) for run in steps)
    assert packed_padding < padding / 3
    ledgers = []
    for config in configs:
        ledger = read_ledger(Path(config["work_dir"]) / "segments" / config["segments"][0]["fingerprint"])
        ledgers.append(sorted(zip(ledger["step"].tolist(), ledger["row_id"].tolist(), strict=True)))
    assert ledgers[0] == ledgers[1]
    assert len(ledgers[0]) == 45


@pytest.mark.parametrize(("precision", "dropout"), [("fp32", 0.1), ("fp32", 0.0), ("bf16", 0.0)])
def test_one_process_with_code_of_its_own_computes_the_same_packed_updates(
    precision: str, dropout: float, slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    model = make_tiny_classifier(tmp_path / "model", dropout=dropout)
    config = _config(tmp_path / "work", model, slices[:1], precision=precision, micro_batch_size=4)
    train_here(config)
    settings = parsed(config, tmp_path)
    expected = OneProcess(settings).update(make_rank_order(settings), on_step=lambda: None)
    assert relative_l2(weights_at_end(config), expected.weights) < 1e-6


def _sha256(config: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(weights_at_end(config).items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.slow
def test_packed_weights_are_the_same_bits_on_1_2_and_4_ranks_in_exact_mode_and_near_in_the_fast_one(
    ranks: ForkedRanks, slices: list[Path], tmp_path: Path
) -> None:
    model = _make_modernbert(tmp_path / "model", "mean")

    def trained(world_size: int, strategy: str = "ddp", **changes: Any) -> dict[str, Any]:
        config = _config(
            tmp_path / f"{world_size}{strategy}{changes}", model, slices, world_size=world_size,
            strategy=strategy if world_size > 1 else "single", **changes,
        )  # fmt: skip
        return ranks.train(config)

    assert len({_sha256(trained(world_size, exact=True)) for world_size in (1, 2, 4)}) == 1
    one = weights_at_end(trained(1))
    for strategy in ("ddp", "fsdp2", "pipeline"):
        assert relative_l2(weights_at_end(trained(2, strategy)), one) < 2e-6


def test_whether_a_model_can_pack_is_found_without_changing_it(slices: list[Path], tmp_path: Path) -> None:
    folder = make_tiny_classifier(tmp_path / "model")
    settings = parsed(_config(tmp_path / "work", folder, slices, packing=False), tmp_path)
    model: Any = workload.load_model(folder)
    before = model.config._attn_implementation
    assert workload.can_pack(model, settings)
    assert model.config._attn_implementation == before
    assert model.training is workload.load_model(folder).training


@pytest.mark.parametrize("kind", ["roberta", "bart"])
def test_a_model_that_cannot_keep_texts_apart_is_refused_in_one_line(
    kind: str, slices: list[Path], tmp_path: Path
) -> None:
    from tests.training.test_sequence_classification import _fresh

    settings = parsed(_config(tmp_path / "work", make_tiny_classifier(tmp_path / "model"), slices), tmp_path)
    model = _fresh(kind, positions=64)
    assert not workload.can_pack(model, settings)
    with pytest.raises(UnfitModelError, match=r"cannot: .* use packing: false") as caught:
        workload.prepare(model, settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("of", [workload, causal_lm], ids=["classifier", "language model"])
def test_a_model_that_caps_its_scores_is_not_packed_without_the_cap(
    of: Any, slices: list[Path], tmp_path: Path
) -> None:
    """With random weights scores are so small that the cap changes nothing yet: what is computed alone is the same."""
    from transformers import Gemma2Config, Gemma2ForCausalLM, Gemma2ForSequenceClassification

    config = Gemma2Config(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, sliding_window=64, pad_token_id=3,
    )  # fmt: skip
    kind = Gemma2ForSequenceClassification if of is workload else Gemma2ForCausalLM
    settings = parsed(_config(tmp_path / "work", make_tiny_classifier(tmp_path / "model"), slices), tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        capped = kind(config)
        config.attn_logit_softcapping = None
        plain = kind(config)
    assert of.can_pack(plain, settings)
    assert not of.can_pack(capped, settings)
    with pytest.raises(UnfitModelError, match=r"Gemma2\w+ cannot: .* use packing: false"):
        of.prepare(capped, settings)


def test_a_model_for_which_there_is_no_memory_is_not_said_to_be_unfit(
    slices: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    folder = make_tiny_classifier(tmp_path / "model")
    settings = parsed(_config(tmp_path / "work", folder, slices, packing=False), tmp_path)
    monkeypatch.setattr(workload, "_compute_batch_logits", find_no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        workload.can_pack(workload.load_model(folder), settings)


def test_what_a_rehearsal_attended_to_leaves_no_tensor_without_numbers() -> None:
    def attend_to(query: torch.Tensor) -> torch.Tensor:
        return packed_texts.attend(torch.nn.Identity(), query, query, query, None, sliding_window=3)[0]

    with FakeTensorMode():
        attend_to(torch.zeros(1, 2, 11, 4))
    assert type(attend_to(torch.ones(1, 2, 11, 4))) is torch.Tensor
