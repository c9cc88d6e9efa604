"""The built-in base model: Qwen2's architecture, about a million parameters, random weights and its own tokenizer.

It has learned nothing: it is there so that a comparison runs on any machine, offline, on the real kind of model.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tasks.data.builtin.random_weights import write_random_model

NUM_TOKENIZER_ROWS = 1_000
"""Rows of the built-in corpus, from the first one, that the tokenizer is trained on, whatever is trained later."""
VOCAB_SIZE = 2_048
END_OF_TEXT = "<|endoftext|>"


def write_tiny_qwen2(folder: Path, rows: Iterable[str]) -> None:
    """Fill `folder` with config, fp32 safetensors weights and the tokenizer trained on `rows`.

    The same rows and versions of torch, transformers and tokenizers give the same bytes.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

    # A class of its own would not do: AutoTokenizer gives every Qwen2 model the pre-tokenizer of Qwen2.
    tokenizer = Qwen2Tokenizer().train_new_from_iterator([list(rows)], VOCAB_SIZE, show_progress=False)
    end_of_text = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2_048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_of_text,
        pad_token_id=end_of_text,
        dtype="float32",
    )
    write_random_model(folder, partial(Qwen2ForCausalLM, config), tokenizer, name="tiny-qwen2")
