"""Built-in models of random weights: the same code and versions write the same bytes."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

_SEED = 20_240_607


def write_random_model(folder: Path, new_model: Callable[[], Any], tokenizer: Any, *, name: str) -> None:
    """Fill `folder` with the tokenizer, and with config and fp32 safetensors weights of the model that is made here.

    The caller's random state is left as it was.
    """
    num_parameters = draw_weights(folder, new_model)
    tokenizer.save_pretrained(folder)
    _log.info("%s: %s parameters, random weights, %s tokens", name, f"{num_parameters:,}", len(tokenizer))


def draw_weights(folder: Path, new_model: Callable[[], Any]) -> int:
    """Write config and fp32 safetensors weights of the model that is made here; return its number of parameters.

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
    return int(model.num_parameters())
