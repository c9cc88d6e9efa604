"""The built-in classifier: a small ModernBERT of random weights, with its own vocabulary.

It has learned nothing: it is there so that a comparison of classifiers runs on any machine, offline.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from tasks.data.builtin.random_weights import write_random_model

VOCAB_SIZE = 4_096


def write_tiny_modernbert(folder: Path, rows: Iterable[str], class_names: Sequence[str]) -> None:
    """Fill `folder` with config, fp32 safetensors weights and the vocabulary made from `rows`.

    The same rows, classes and versions of torch, transformers and tokenizers give the same bytes.
    """
    from transformers import ModernBertConfig, ModernBertForSequenceClassification, RobertaTokenizer

    # Its byte pairs are the same in every run; word pieces, as BERT has, come out differently where counts are equal.
    tokenizer = RobertaTokenizer().train_new_from_iterator([list(rows)], VOCAB_SIZE, show_progress=False)
    config = ModernBertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        # The mean over a text learns from few rows, which the first token alone does not.
        classifier_pooling="mean",
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        cls_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.eos_token_id,
        sep_token_id=tokenizer.sep_token_id,
        num_labels=len(class_names),
        id2label=dict(enumerate(class_names)),
        label2id={name: number for number, name in enumerate(class_names)},
        dtype="float32",
    )
    write_random_model(folder, partial(ModernBertForSequenceClassification, config), tokenizer, name="tiny-modernbert")
