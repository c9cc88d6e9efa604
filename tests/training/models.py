"""Small models with random weights, each by what is particular to it."""

from functools import partial

import torch
from ruamel.yaml import YAML

from tasks.data.sources.models import give_head
from tests.images import make_image_model
from tests.tiny import make_tiny_classifier, make_tiny_model, write_tiny_model

_MODELS = YAML(typ="safe", pure=True).load("""
sizes: &sizes {vocab_size: 128, hidden_size: 32, num_hidden_layers: 3, num_attention_heads: 4}
# Tied, with learned positions; dropout is drawn in training.
opt: {<<: *sizes, max_position_embeddings: 64, ffn_dim: 64, word_embed_proj_dim: 32}
llama: {<<: *sizes, intermediate_size: 48, max_position_embeddings: 64, num_key_value_heads: 2,
  tie_word_embeddings: true}
# It has no fused attention, and positions that are added to its scores.
bloom: {vocab_size: 128, hidden_size: 32, n_layer: 3, n_head: 4, hidden_dropout: 0.0}
gpt2: {vocab_size: 128, n_embd: 32, n_layer: 2, n_head: 2, n_positions: 64}
mistral: {<<: *sizes, intermediate_size: 48, num_key_value_heads: 1, sliding_window: 16}
gemma2: {<<: *sizes, intermediate_size: 48, max_position_embeddings: 64, num_key_value_heads: 1, head_dim: 16,
  pad_token_id: 3, sliding_window: 64}
# Two of its positions are never anybody's.
roberta: {<<: *sizes, intermediate_size: 48, max_position_embeddings: 66}
# With weights of the usual size attention is nearly even, and whom a token sees matters little.
modernbert: {<<: *sizes, intermediate_size: 48, max_position_embeddings: 64, global_attn_every_n_layers: 2,
  local_attention: 12, num_labels: 3, num_attention_heads: 2, pad_token_id: 3, bos_token_id: 1, eos_token_id: 2,
  cls_token_id: 1, sep_token_id: 2, initializer_range: 0.2}
""")


def build(kind, *, classifies=False, **changes):
    """Return a model of an architecture of transformers, always with the same weights."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **{**_MODELS[kind], **changes})
    auto = transformers.AutoModelForSequenceClassification if classifies else transformers.AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return auto.from_config(config)


def _write(folder, kind, **changes):
    return write_tiny_model(folder, lambda: build(kind, **changes))


def _write_decoder(folder):
    make_tiny_model(folder, tied=False)
    give_head(folder, ["a", "b", "c"])
    return folder


_SPECIAL = {
    "tiny": make_tiny_model,
    "untied": partial(make_tiny_model, num_layers=4, tied=False),
    "dropout": partial(make_tiny_model, num_layers=4, tied=False, dropout=0.2),
    "large": partial(make_tiny_model, hidden_size=128, num_layers=3),
    # Its positions matter already.
    "opt, far apart": partial(_write, kind="opt", init_std=0.3),
    "opt, projected": partial(_write, kind="opt", word_embed_proj_dim=16),
    "bert": make_tiny_classifier,
    "bert, dropout": partial(make_tiny_classifier, dropout=0.1),
    "decoder that classifies": _write_decoder,
    "modernbert, first token": partial(_write, kind="modernbert", classifies=True, classifier_pooling="cls"),
    "modernbert, mean": partial(_write, kind="modernbert", classifies=True, classifier_pooling="mean"),
    "resnet18, normed": partial(make_image_model, norm="sync_batch"),
}


def write(kind, folder):
    """Write a model into an empty folder, with its manifest; return the folder."""
    return _SPECIAL[kind](folder) if kind in _SPECIAL else _write(folder, kind)
