"""How many floating-point operations a model's forward and backward need by definition: the numerator of MFU.

A product of a matrix with a vector takes 2 operations per weight forward, and twice that backward. Embedding look-up,
normalisation, softmax, activation and the optimizer are not counted, nor is anything that is computed twice. It stands
alone, since benchmarks/gpu_day reads it where pydantic is not installed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_KNOWN_TYPES = ("llama", "mistral", "qwen2", "qwen3")
"""Decoders with rotary positions, grouped queries and a gated MLP of three matrices, as transformers names them."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What the operations of a decoder follow from."""

    matmul_weights: int
    """Weights that every token is multiplied with, the output head included whether tied or not; no biases."""
    num_layers: int
    attention_width: int
    """Heads x size of a head."""

    def count_flops_per_token(self, seq_len: int) -> float:
        """Return the operations per token, forward and backward, by the usual definition.

        6 x weights + 12 x layers x width x seq_len, as if every token attended to all seq_len positions, padding
        included. Source: Chowdhery et al. 2022, PaLM, appendix B.
        """
        return 6.0 * self.matmul_weights + self._flops_per_pair * seq_len

    def count_document_flops(self, lengths: Sequence[int]) -> float:
        """Return the operations that the documents need, forward and backward: causal, each on its own, no padding.

        `lengths` are tokens fed per document. The token at position p (from 1) attends to p positions, so that a
        document of n tokens has n (n + 1) / 2 pairs: 6 x weights x sum(n) + 12 x layers x width x sum(n (n + 1) / 2).
        """
        num_tokens, num_pairs = sum(lengths), sum(length * (length + 1) // 2 for length in lengths)
        return 6.0 * self.matmul_weights * num_tokens + self._flops_per_pair * num_pairs

    @property
    def _flops_per_pair(self) -> float:
        """Operations per query and key, all layers: 2 x width for the score, 2 x width for the value, x 3."""
        return 12.0 * self.num_layers * self.attention_width


def find_model_shape(config: Mapping[str, Any]) -> tuple[ModelShape | None, str | None]:
    """Return the shape that a transformers config.json describes, or None and why it cannot be said."""
    kind = config.get("model_type")
    if kind not in _KNOWN_TYPES:
        return None, f"model_type {kind!r} is not one whose operations are known here ({', '.join(_KNOWN_TYPES)})"
    if any(not name.endswith("ForCausalLM") for name in config.get("architectures") or ()):
        return None, f"the model is a {config['architectures'][0]}, and only those that predict tokens are counted here"
    if _has_sliding_window(config):
        return None, "attention looks at a sliding window, which the formula does not describe"
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [name for name in names if not isinstance(config.get(name), int)]
    if missing:
        return None, f"config.json does not say {', '.join(missing)}"
    hidden, num_layers, num_heads, intermediate, vocabulary = (int(config[name]) for name in names)
    head_size = config.get("head_dim") or hidden // num_heads
    attention, keys = num_heads * head_size, (config.get("num_key_value_heads") or num_heads) * head_size
    per_layer = 2 * hidden * attention + 2 * hidden * keys + 3 * hidden * intermediate
    weights = num_layers * per_layer + hidden * vocabulary
    return ModelShape(matmul_weights=weights, num_layers=num_layers, attention_width=attention), None


def _has_sliding_window(config: Mapping[str, Any]) -> bool:
    if "sliding_attention" in (config.get("layer_types") or ()):
        return True
    # Mistral has no switch: a window that is set is used.
    is_on = config["model_type"] == "mistral" or config.get("use_sliding_window")
    return bool(is_on and config.get("sliding_window"))
