"""A pretrained model that is to tell classes apart: given its head once, so that every process starts from the same."""

from collections.abc import Sequence
from pathlib import Path

from tasks.services.model_files import WEIGHTS_FILES

_SEED = 20_240_607


def give_head(folder: Path, class_names: Sequence[str]) -> int:
    """Make the transformers model in the folder one for these classes, in fp32; return its number of parameters.

    A head for as many classes is kept; another one is drawn anew, the same in every run. The caller's random state is
    left as it was.
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
        model = AutoModelForSequenceClassification.from_pretrained(
            folder,
            num_labels=len(class_names),
            id2label=dict(enumerate(class_names)),
            label2id={name: number for number, name in enumerate(class_names)},
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
        )
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
