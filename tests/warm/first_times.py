"""Imported ahead: what a process makes when it first needs it, and then has.

Those are the table that transformers builds from a thousand patterns when a process opens its first model, the patterns
for the names of that model's weights, and what torch looks for in every installed package before ranks join.
"""

import functools
import os
import tempfile
from pathlib import Path
from unittest import mock

import torch
from safetensors.torch import save_file
from torch.distributed.distributed_c10d import Backend
from transformers import AutoModelForCausalLM
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.models.qwen2.configuration_qwen2 import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM
from transformers.utils import logging

_WITHOUT_THREADS = {"HF_DEACTIVATE_ASYNC_LOAD": "1"}


def open_first_model():
    """Write a tiny model and open it; starts no thread, and the next random number is the same as before."""
    config = Qwen2Config(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=4,
        num_attention_heads=1,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    had_progress_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # whose thread a fork would miss
    with (
        mock.patch.dict(os.environ, _WITHOUT_THREADS),
        torch.random.fork_rng(devices=[]),
        tempfile.TemporaryDirectory() as folder,
    ):
        weights = Qwen2ForCausalLM(config).state_dict()
        del weights["lm_head.weight"]
        save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})
        config.to_json_file(Path(folder) / "config.json")
        AutoModelForCausalLM.from_pretrained(folder)
    if had_progress_bar:
        logging.enable_progress_bar()


get_checkpoint_conversion_mapping("qwen2")
if hasattr(Backend, "_ensure_backend_registered"):  # from torch 2.14 on
    # Every group looks for it twice, in all packages.
    Backend._ensure_backend_registered = functools.cache(Backend._ensure_backend_registered)
    Backend._ensure_backend_registered("gloo")
open_first_model()
