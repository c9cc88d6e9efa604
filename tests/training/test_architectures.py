"""Architectures that presets name, tiny and with random weights: spread out, their updates are those of one process."""

from pathlib import Path
from typing import Any

import pytest

from tests.tiny import make_config, make_slice, with_manifest
from tests.training.conftest import facts_of, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks

pytestmark = pytest.mark.slow

_ROWS = 8
"""One step."""


def _describe_architectures() -> dict[str, Any]:
    from transformers import BloomConfig, LlamaConfig, OPTConfig

    return {
        # Tied, with learned positions; dropout is drawn in training.
        "opt": OPTConfig(
            vocab_size=128, hidden_size=32, ffn_dim=64, num_hidden_layers=3, num_attention_heads=4,
            max_position_embeddings=64, word_embed_proj_dim=32, dropout=0.1,
        ),
        "llama": LlamaConfig(
            vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
        ),
        # It has no fused attention, and positions that are added to its scores.
        "bloom": BloomConfig(vocab_size=128, hidden_size=32, n_layer=3, n_head=4, hidden_dropout=0.0),
    }  # fmt: skip


@pytest.fixture(scope="module", params=["opt", "llama", "bloom"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the architecture."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp(request.param) / "model"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config(_describe_architectures()[request.param])
    made.save_pretrained(folder)
    return with_manifest(
        folder, num_parameters=sum(part.numel() for part in made.parameters()), model_type=request.param
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One step of ragged rows."""
    return make_slice(tmp_path_factory.mktemp("rows") / "slice", num_rows=_ROWS, min_len=4)


@pytest.fixture(scope="module")
def alone(model: Path, rows: Path, ranks: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The step of one plain process."""
    return ranks.train(make_config(tmp_path_factory.mktemp("alone") / "work", model, [rows], learning_rate=1e-3))


@pytest.mark.parametrize(
    "spread",
    [
        {"strategy": "fsdp2", "world_size": 2, "activation_checkpointing": "layers"},
        {"strategy": "fsdp2", "world_size": 2, "options": {"reshard_after_forward": False, "offload": "cpu"}},
        {"strategy": "pipeline", "world_size": 2},
        {"strategy": "pipeline", "world_size": 4, "options": {"replicas": 2, "zero1": True}},
    ],
    ids=["opt-1.3b-fsdp", "llama-1b-zero2-offload", "2 stages of llama-1b-pipeline", "llama-1b-pipeline"],
)
def test_one_step_of_what_a_preset_spreads_is_that_of_one_process(
    spread: dict[str, Any], model: Path, rows: Path, alone: dict[str, Any], ranks: ForkedRanks, tmp_path: Path
) -> None:
    asked = make_config(tmp_path / "work", model, [rows], cell="ranks", learning_rate=1e-3, **spread)
    if model.parent.name.startswith("bloom") and spread["strategy"] == "pipeline":
        with pytest.raises(AssertionError, match="BloomForCausalLM hands on more than hidden states; use strategy ddp"):
            ranks.train(asked)
        return
    config = ranks.train(asked)
    assert facts_of(config)["num_steps"] == 1
    assert facts_of(config)["loss"] == pytest.approx(facts_of(alone)["loss"], rel=1e-6)
    assert relative_l2(weights_at_end(config), weights_at_end(alone)) < 2e-6
