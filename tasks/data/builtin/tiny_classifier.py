"""The built-in classifier: a small ModernBERT of random weights, with its own vocabulary.

It has learned nothing: it is there so that a comparison of classifiers runs on any machine, offline.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

VOCAB_SIZE = 4_096
_SEED = 20_240_607


def write_tiny_modernbert(folder: Path, rows: Iterable[str], class_names: Sequence[str]) -> None:
    """Fill `folder` with config, fp32 safetensors weights and the vocabulary made from `rows`.

    The same rows, classes and versions of torch, transformers and tokenizers give the same bytes. The caller's random
    state is left as it was.
    """
    import torch
    from transformers import ModernBertConfig, ModernBertForSequenceClassification, RobertaTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
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
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = ModernBertForSequenceClassification(config).float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # safetensors lets only the owner read what it writes.
    (folder / "model.safetensors").chmod(0o644)
    _log.info(
        "tiny-modernbert: %s parameters, random weights, %s tokens", f"{model.num_parameters():,}", len(tokenizer)
    )
