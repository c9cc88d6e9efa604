"""The causal language model and its loss."""

from pathlib import Path

import pytest
import torch

from tests.tiny import make_tiny_model
from training.model.weights import collect_weights, compute_parameter_checksum
from training.process.failure import BadCheckpointError
from training.workloads.causal_lm import load_model


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
