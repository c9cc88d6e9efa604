"""What is particular to classifying texts; what holds for every workload stands in test_workloads.py."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.data.sources.heads import give_head
from tasks.params import load_params
from tasks.params.schedule import list_schedule_spans
from tests.tiny import make_config, make_slice, make_tiny_classifier, make_tiny_model, write_slice
from tests.training.conftest import events_in, facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.config import TrainingConfig
from training.process.failure import BadCheckpointError, UnfitModelError
from training.workloads import sequence_classification as workload


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny classifier and a slice."""
    root = tmp_path_factory.mktemp("classifier")
    make_tiny_classifier(root / "model")
    make_slice(root / "rows", num_rows=20, num_classes=3)
    return root


def test_a_text_that_is_too_long_keeps_the_token_that_closes_it(tmp_path: Path) -> None:
    write_slice(tmp_path / "rows", [[1, *range(10, 20), 127], [1, 5, 127], [1, 6, 7, 127]], labels=[2, 0, 1])
    rows = workload.open_slice(tmp_path / "rows")
    assert [rows.row(index, 4).tolist() for index in range(3)] == [[1, 10, 11, 127], [1, 5, 127], [1, 6, 7, 127]]
    batch = rows.collate([0, 1, 2], seq_len=4)
    assert batch.attention_mask is not None
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert (batch.labels.tolist(), batch.num_tokens, batch.num_targets, batch.num_padding_tokens) == (
        [2, 0, 1],
        11,
        3,
        1,
    )


def test_without_the_mask_a_text_would_see_its_padding(folder: Path) -> None:
    model, rows = workload.load_model(folder / "model").eval(), workload.open_slice(folder / "rows")
    batch = rows.collate(range(6), seq_len=32)
    assert batch.num_padding_tokens
    blind = type(batch)(**{**vars(batch), "attention_mask": torch.ones_like(batch.input_ids)})
    with torch.no_grad():
        right, wrong = (float(workload.loss_sum(model, part)) for part in (batch, blind))
    assert abs(wrong / right - 1) > 1e-5


def test_accuracy_counts_the_rows_whose_likeliest_class_is_theirs(folder: Path) -> None:
    model, rows = workload.load_model(folder / "model").eval(), workload.open_slice(folder / "rows")
    expected = 0
    for row in range(20):
        text = torch.from_numpy(rows.row(row, 32).astype("int64"))
        with torch.no_grad():
            likeliest = int(torch.argmax(model(text[None]).logits))
        expected += likeliest == int(rows.labels[row])
    with torch.no_grad():
        assert float(workload.metrics(model, rows.collate(range(20), seq_len=32))["correct"]) == expected


def test_a_decoder_that_classifies_finds_the_end_of_each_padded_text(folder: Path, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "decoder", tied=False)
    give_head(tmp_path / "decoder", ["a", "b", "c"])
    model, rows = workload.load_model(tmp_path / "decoder").eval(), workload.open_slice(folder / "rows")
    model.config.pad_token_id = 126
    with torch.no_grad():
        alone = sum(float(workload.loss_sum(model, rows.collate([row], seq_len=32))) for row in range(6))
        assert float(workload.loss_sum(model, rows.collate(range(6), seq_len=32))) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing": True, "compile": True}, "packing: true, compile: true, but packs of texts that are classified"),
        ({"seq_len": 65}, "seq_len: 65, but BertForSequenceClassification has 64 positions; use fewer tokens"),
    ],
)
def test_what_the_model_cannot_do_is_refused_in_one_line(
    folder: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = make_config(
        tmp_path / "work", folder / "model", [folder / "rows"], workload="sequence_classification", **changes
    )
    model = workload.load_model(folder / "model")
    with pytest.raises(UnfitModelError, match=message):
        workload.prepare(model, parsed(config, tmp_path))


def _fresh(kind: str, *, positions: int) -> Any:
    """Return a model with random weights whose position of a token depends on whether it is padding, or on its end."""
    from transformers import BartConfig, BartForSequenceClassification, RobertaConfig, RobertaForSequenceClassification

    if kind == "bart":
        sizes = dict.fromkeys(["encoder_attention_heads", "decoder_attention_heads"], 2)
        sizes |= dict.fromkeys(["encoder_ffn_dim", "decoder_ffn_dim", "d_model"], 16)
        sizes |= dict.fromkeys(["encoder_layers", "decoder_layers"], 1)
        return BartForSequenceClassification(BartConfig(vocab_size=99, max_position_embeddings=positions, **sizes))
    # Two of its positions are never anybody's.
    config = RobertaConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=positions + 2,
    )  # fmt: skip
    return RobertaForSequenceClassification(config)


@pytest.mark.parametrize("kind", ["roberta", "bart"])
def test_the_longest_text_that_a_model_takes_is_found_by_trying(folder: Path, tmp_path: Path, kind: str) -> None:
    def config(seq_len: int) -> TrainingConfig:
        workload_ = {"workload": "sequence_classification", "seq_len": seq_len}
        return parsed(make_config(tmp_path / "work", folder / "model", [folder / "rows"], **workload_), tmp_path)

    model = _fresh(kind, positions=64)
    workload.prepare(model, config(64))
    with pytest.raises(UnfitModelError, match="use fewer tokens"):
        workload.prepare(model, config(65))


def test_twenty_epochs_of_the_preset_run_one_schedule_from_its_peak_to_zero(
    folder: Path, project: Path, ranks: ForkedRanks, tmp_path: Path
) -> None:
    asked = load_params(project / "presets" / "imdb.yaml", looks_at_data=False)
    train = asked.train.model_copy(update={"global_batch_size": 8, "micro_batch_size": 2})
    params = asked.model_copy(update={"train": train, "ranges": asked.ranges[:1]})
    spans = list_schedule_spans(params, {str(params.ranges[0]): 20})
    # 20 rows, 8 per step.
    num_steps, warm_up, peak = 20 * 3, 6, 2e-3
    assert [tuple(span) for span in spans] == [(3 * epoch, num_steps) for epoch in range(20)]

    def train_on(world_size: int) -> dict[str, Any]:
        config = make_config(
            tmp_path / str(world_size), folder / "model", [folder / "rows"], epochs=20, learning_rate=peak,
            workload="sequence_classification", schedule=train.schedule, warmup_steps=warm_up, world_size=world_size,
            strategy="ddp" if world_size > 1 else "single",
        )  # fmt: skip
        for segment, (begin, total) in zip(config["segments"], spans, strict=True):
            segment |= {"schedule_begin": begin, "schedule_total": total}
        return ranks.train(config)

    one, two = train_on(1), train_on(2)
    rates = [
        line["learning_rate"] for line in events_in(Path(two["work_dir"]) / "steps.jsonl") if line["event"] == "step"
    ]
    assert len(rates) == num_steps
    assert rates[:warm_up] == pytest.approx([peak * step / warm_up for step in range(1, warm_up + 1)])
    falls = [before - after for before, after in itertools.pairwise(rates[warm_up:])]
    # No epoch begins anew: every step takes as much off as any other.
    assert falls == pytest.approx([peak / (num_steps - warm_up)] * len(falls), rel=1e-6)
    assert [facts_of(two, epoch)["epoch"] for epoch in range(20)] == list(range(1, 21))
    assert facts_of(two)["loss"] < facts_of(two, 0)["loss"]
    assert relative_l2(weights_at_end(two), weights_at_end(one)) < 1e-4


def test_a_slice_without_its_labels_is_refused(tmp_path: Path) -> None:
    make_slice(tmp_path / "rows", num_rows=5)
    with pytest.raises(BadCheckpointError, match=r"labels\.npy"):
        workload.open_slice(tmp_path / "rows")
    make_slice(tmp_path / "rows", num_rows=5, num_classes=2)
    make_slice(tmp_path / "other", num_rows=6, num_classes=2)
    (tmp_path / "rows" / "labels.npy").write_bytes((tmp_path / "other" / "labels.npy").read_bytes())
    with pytest.raises(ValueError, match="6 labels and 5 rows"):
        workload.open_slice(tmp_path / "rows")
