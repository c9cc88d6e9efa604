"""Built-in models of random weights, so that a comparison runs on any machine, offline, on the real kind of model.

The same rows, classes and versions of torch, transformers and tokenizers give the same bytes.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

NUM_TOKENIZER_ROWS = 1_000
"""Rows of the built-in corpus, from the first one, that tokenizers are trained on, whatever is trained later."""
VOCAB_SIZE = 2_048
"""Of the language model."""
END_OF_TEXT = "<|endoftext|>"
_CLASSIFIER_VOCAB_SIZE = 4_096
_SEED = 20_240_607


def write_tiny_qwen2(folder: Path, rows: Iterable[str]) -> None:
    """Fill `folder` with a Qwen2 of about a million parameters, and its tokenizer trained on `rows`."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    # A class of its own would not do: AutoTokenizer gives every Qwen2 model the pre-tokenizer of Qwen2.
    tokenizer = Qwen2Tokenizer().train_new_from_iterator([list(rows)], VOCAB_SIZE, show_progress=False)
    end_of_text = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2_048, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=end_of_text, pad_token_id=end_of_text, dtype="float32",
    )  # fmt: skip
    draw_weights(folder, partial(Qwen2ForCausalLM, config))
    tokenizer.save_pretrained(folder)


def write_tiny_modernbert(folder: Path, rows: Iterable[str], class_names: Sequence[str]) -> None:
    """Fill `folder` with a small ModernBERT that tells these classes apart, and its vocabulary made from `rows`."""
    from transformers import ModernBertConfig, ModernBertForSequenceClassification, RobertaTokenizer

    # Its byte pairs are the same in every run; word pieces, as BERT has, come out differently where counts are equal.
    tokenizer = RobertaTokenizer().train_new_from_iterator([list(rows)], _CLASSIFIER_VOCAB_SIZE, show_progress=False)
    config = ModernBertConfig(
        vocab_size=_CLASSIFIER_VOCAB_SIZE, hidden_size=128, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=512,
        # The mean over a text learns from few rows, which the first token alone does not.
        classifier_pooling="mean",
        **{f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "cls", "eos", "sep")},
        num_labels=len(class_names), id2label=dict(enumerate(class_names)),
        label2id={name: number for number, name in enumerate(class_names)}, dtype="float32",
    )  # fmt: skip
    draw_weights(folder, partial(ModernBertForSequenceClassification, config))
    tokenizer.save_pretrained(folder)


def draw_weights(folder: Path, new_model: Callable[[], Any]) -> None:
    """Write config and fp32 safetensors weights of the model that is made here.

    The caller's random state is left as it was.
    """
    import torch
    from transformers.utils import logging as transformers_logging

    from training.model.weights import without_deepspeed

    transformers_logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = new_model().float()
    # In one file: it is what the manifest of a folder without an index names.
    with without_deepspeed():
        model.save_pretrained(folder, max_shard_size="1TB")
    # safetensors lets only the owner read what it writes.
    (folder / "model.safetensors").chmod(0o644)
    _log.info("%s: %s parameters, random weights", type(model).__name__, f"{model.num_parameters():,}")
