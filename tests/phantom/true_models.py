"""Five models that people train, by the few numbers of which their config.json consists, and rows like real ones."""

import numpy as np
from ruamel.yaml import YAML

from tests.tiny import write_slice
from training.process.files import write_json

_MODELS = """
Qwen2-0.5B: {model_type: qwen2, vocab_size: 151936, hidden_size: 896, num_hidden_layers: 24, num_attention_heads: 14,
  num_key_value_heads: 2, intermediate_size: 4864, max_position_embeddings: 32768, tie_word_embeddings: true,
  architectures: [Qwen2ForCausalLM]}
Llama-3.2-1B: {model_type: llama, vocab_size: 128256, hidden_size: 2048, num_hidden_layers: 16, num_attention_heads: 32,
  num_key_value_heads: 8, head_dim: 64, intermediate_size: 8192, max_position_embeddings: 131072,
  tie_word_embeddings: true, architectures: [LlamaForCausalLM]}
OPT-1.3B: {model_type: opt, vocab_size: 50272, hidden_size: 2048, word_embed_proj_dim: 2048, num_hidden_layers: 24,
  num_attention_heads: 32, ffn_dim: 8192, max_position_embeddings: 2048, dropout: 0.1, tie_word_embeddings: true,
  architectures: [OPTForCausalLM]}
BERT-base: {model_type: bert, vocab_size: 30522, hidden_size: 768, num_hidden_layers: 12, num_attention_heads: 12,
  intermediate_size: 3072, max_position_embeddings: 512, num_labels: 2, architectures: [BertForSequenceClassification]}
ResNet18: {model_type: resnet18, norm: group, num_groups: 32, class_names: [class 0, class 1, class 2, class 3, class 4,
  class 5, class 6, class 7, class 8, class 9]}
"""
MODELS = YAML(typ="safe", pure=True).load(_MODELS)
"""Their dimensions, as transformers and the workload of images name them."""
NUM_PARAMETERS = {
    "Qwen2-0.5B": 494_032_768, "Llama-3.2-1B": 1_235_814_400, "OPT-1.3B": 1_315_758_080, "BERT-base": 109_483_778,
    "ResNet18": 11_181_642,
}  # fmt: skip
_WORKLOADS = {"BERT-base": "sequence_classification", "ResNet18": "image_classification"}

_PRESETS = """
causal_lm: {global_batch_size: 64, micro_batch_size: 16, seq_len: 512, packing: true}
sequence_classification: {global_batch_size: 64, micro_batch_size: 16, seq_len: 512}
image_classification: {global_batch_size: 128, micro_batch_size: 64, optimizer: sgd}
"""
PRESETS = YAML(typ="safe", pure=True).load(_PRESETS)
"""Workload -> the batch of its preset."""
_IMAGE_SIZE = 224


def make_true_case(folder, name, *, num_steps):
    """Write config.json of a model and rows for so many steps; return what tests.tiny.make_config takes, all by name.

    Texts have lengths like those of real abstracts: 177 tokens on average, cut at 512.
    """
    workload, model = _WORKLOADS.get(name, "causal_lm"), folder / "model"
    model.mkdir(parents=True)
    write_json(model / "config.json", MODELS[name])
    num_rows = PRESETS[workload]["global_batch_size"] * num_steps
    if workload == "image_classification":
        from tests.images import make_image_slice

        rows = make_image_slice(folder / "rows", num_rows=num_rows, size=_IMAGE_SIZE)
    else:
        random, classifies = np.random.default_rng(0), workload == "sequence_classification"
        lengths = np.clip(random.gamma(4.2, 42.0, size=num_rows).astype(int), 16, 512)
        # Reviews are longer than abstracts: most are cut.
        lengths = np.clip(lengths * (1 + classifies), 16, 512)
        tokens = [random.integers(0, MODELS[name]["vocab_size"], size=length) for length in lengths]
        rows = write_slice(folder / "rows", tokens, labels=[0] * num_rows if classifies else None)
    return {"model_dir": model, "slices": [rows], "workload": workload, "device": "cuda", **PRESETS[workload]}
