"""A pretrained model that is to tell classes apart: given its head once, so that every process starts from the same."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.services.model_files import WEIGHTS_FILES

_SEED = 20_240_607


def require_all_weights(found: Mapping[str, Any], is_needed: Callable[[str], bool] = lambda _: True) -> None:
    """Raise ValueError for a tensor that transformers drew at random: the weights lack it, or have another shape."""
    for name, has, wanted in sorted(found["mismatched_keys"]):
        if is_needed(name):
            raise ValueError(f"{name} has the shape {list(has)} in the weights, and {list(wanted)} by config.json")
    if lacking := sorted(filter(is_needed, found["missing_keys"])):
        more = f" ({len(lacking)} such)" if len(lacking) > 1 else ""
        raise ValueError(f"the weights lack {lacking[0]}{more}; allowed: every tensor; save the whole model")


def give_head(folder: Path, class_names: Sequence[str]) -> int:
    """Make the transformers model in the folder one for these classes, in fp32; return its number of parameters.

    A head for as many classes is kept; another one is drawn anew, the same in every run. The caller's random state is
    left as it was. Raises ValueError if anything but the head had to be drawn.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    from training.model.weights import without_deepspeed

    logging.disable_progress_bar()
    # It warns that a head is new, which is what is wanted.
    logging.set_verbosity_error()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model, found = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=len(class_names),
            id2label=dict(enumerate(class_names)),
            label2id={name: number for number, name in enumerate(class_names)},
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
        )
    body = f"{model.base_model_prefix}."
    require_all_weights(found, lambda name: name.startswith(body) and "pooler" not in name)
    if model.config.pad_token_id is None:
        # Where attention is causal the model looks for the last token that is none.
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model.config.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    for pattern in (*WEIGHTS_FILES, "*.index.json"):
        for file in folder.glob(pattern):
            file.unlink()
    with without_deepspeed():
        model.save_pretrained(folder)
    for file in folder.glob("*.safetensors"):
        # safetensors lets only the owner read what it writes.
        file.chmod(0o644)
    return int(model.num_parameters())
