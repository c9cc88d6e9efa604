"""The causal language model and its loss."""

from pathlib import Path

import pytest
import torch

from tests.tiny import batches_in_order, make_tiny_model
from training.data.batches import make_dummy_micro_batch, open_slice
from training.model.weights import collect_weights, compute_parameter_checksum
from training.process.failure import BadCheckpointError
from training.workloads.causal_lm import has_dropout, load_model, loss_sum


def test_loss_of_padded_batches_equals_the_loss_row_by_row_by_hand(tiny_model: Path, slices: list[Path]) -> None:
    model = load_model(tiny_model).eval()
    source = open_slice(slices[0])
    by_hand = torch.zeros((), dtype=torch.float64)
    num_tokens = 0
    with torch.no_grad():
        for index in range(len(source)):
            row = torch.tensor(source.row(index, 32).astype("int64"))
            if len(row) < 2:
                continue
            logits = model(input_ids=row[None]).logits[0, :-1].double()
            by_hand -= logits.log_softmax(-1)[torch.arange(len(row) - 1), row[1:]].sum()
            num_tokens += len(row) - 1
        batches = list(batches_in_order(source, batch_size=7, seq_len=32))
        total = sum(float(loss_sum(model, batch)) for batch in batches)
    assert sum(batch.num_tokens for batch in batches) == num_tokens
    assert total == pytest.approx(float(by_hand), rel=1e-6)


def test_loss_sum_is_what_transformers_itself_calls_the_loss_times_its_tokens(
    tiny_model: Path, slices: list[Path]
) -> None:
    model = load_model(tiny_model).eval()
    batch = next(batches_in_order(open_slice(slices[0]), batch_size=6, seq_len=32))
    theirs = torch.cat([batch.input_ids[:, :1], batch.labels[:, :-1]], dim=1)
    theirs[:, 0] = -100
    with torch.no_grad():
        loss = model(input_ids=batch.input_ids, labels=theirs).loss
        assert float(loss_sum(model, batch)) == pytest.approx(float(loss) * batch.num_tokens, rel=1e-5)


def test_a_dummy_micro_batch_has_no_loss_and_gives_every_parameter_a_gradient_of_zero(tiny_model: Path) -> None:
    model = load_model(tiny_model)
    loss = loss_sum(model, make_dummy_micro_batch(32))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(part.grad is not None and float(part.grad.abs().max()) == 0.0 for part in model.parameters())


def test_weights_are_fp32_even_where_the_folder_holds_bf16(tmp_path: Path, tiny_model: Path) -> None:
    load_model(tiny_model).to(torch.bfloat16).save_pretrained(tmp_path / "bf16")  # type: ignore[operator]
    assert {part.dtype for part in load_model(tmp_path / "bf16").parameters()} == {torch.float32}


def test_tied_weights_are_saved_once_and_load_back_strictly(tiny_model: Path, tmp_path: Path) -> None:
    model = load_model(tiny_model)
    torch.save(collect_weights(model), tmp_path / "model.pt")
    num_bytes = sum(part.numel() * part.element_size() for part in model.parameters())
    assert (tmp_path / "model.pt").stat().st_size < num_bytes + 60_000
    other = make_tiny_model(tmp_path / "other", seed=1)
    loaded = load_model(other, checkpoint=tmp_path / "model.pt")
    assert compute_parameter_checksum(loaded) == compute_parameter_checksum(model)
    assert compute_parameter_checksum(loaded) != compute_parameter_checksum(load_model(other))
    head, embedding = loaded.get_output_embeddings(), loaded.get_input_embeddings()  # type: ignore[operator]
    assert head.weight.data_ptr() == embedding.weight.data_ptr()


def test_a_checkpoint_of_another_architecture_is_refused_with_the_first_differences(
    tiny_model: Path, tmp_path: Path
) -> None:
    other = load_model(make_tiny_model(tmp_path / "wide", hidden_size=32))
    torch.save(collect_weights(other), tmp_path / "wide.pt")
    with pytest.raises(BadCheckpointError, match=r"\d+ differences.*float32 \[128, 32\], the model has") as caught:
        load_model(tiny_model, checkpoint=tmp_path / "wide.pt")
    assert str(caught.value).count(";") == 4


def test_a_checkpoint_with_code_in_it_is_refused_and_not_run(tiny_model: Path, tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (canary,))  # type: ignore[return-value]

    torch.save({"weights": Bomb()}, tmp_path / "bomb.pt")
    with pytest.raises(BadCheckpointError, match="not loadable"):
        load_model(tiny_model, checkpoint=tmp_path / "bomb.pt")
    assert not canary.exists()


def test_dropout_is_seen_where_there_is_some(tiny_model: Path, tmp_path: Path) -> None:
    assert not has_dropout(load_model(tiny_model))
    assert has_dropout(load_model(make_tiny_model(tmp_path / "dropout", dropout=0.1)))


def test_padding_never_changes_the_loss_of_real_tokens(tiny_model: Path, slices: list[Path]) -> None:
    model = load_model(tiny_model).eval()
    batch = next(batches_in_order(open_slice(slices[0]), batch_size=4, seq_len=32))
    with torch.no_grad():
        once = loss_sum(model, batch)
        batch.input_ids[batch.labels == -100] = 77
        real = batch.labels != -100
        # The last real token of each row is an input without a label: put it back.
        for index in range(batch.num_samples):
            last = int(real[index].sum())
            if last:
                batch.input_ids[index, last] = batch.labels[index, last - 1]
        again = loss_sum(model, batch)
    assert torch.equal(once, again)
