"""`python -m tests.phantom.memory FOLDER MODEL PRECISION PACKED`: what a training of a true model holds of a card.

The model is made from its dimensions alone: its weights are zeros that take no memory of this machine.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.gpu.steps import read_told
from tests.tiny import make_config, write_slice
from training.data.plan import make_micro_batches, make_segment_plan
from training.process.distributed import join_ranks
from training.strategies import single
from training.workloads import causal_lm

MODELS: dict[str, dict[str, Any]] = {
    "Qwen2-0.5B": {
        "vocab_size": 151_936, "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "intermediate_size": 4864, "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    }
}  # fmt: skip
"""Their dimensions, as transformers names them; all of the architecture Qwen2."""
_NUM_STEPS = 3
_LARGE = 100_000


def main(folder: Path, model: str, precision: str, *, is_packed: bool) -> None:
    """Train a few steps as presets/qwen2-arxiv.yaml says, and write the memory (GiB) to standard output."""
    told = make_config(
        folder / "work", folder, [_write_rows(folder / "rows", MODELS[model]["vocab_size"])],
        device="cuda", precision=precision, packing=is_packed, global_batch_size=64, micro_batch_size=16, seq_len=512,
    )  # fmt: skip
    config = read_told(told, folder)
    found: dict[str, Any]
    with join_ranks(config) as ranks:
        try:
            trainer = single.build(_make_model(MODELS[model]), causal_lm, config, ranks)
            source = causal_lm.open_slice(config.segments[0].slice_dir)
            plan = make_segment_plan(source, config, config.segments[0])
            for step in range(1, _NUM_STEPS + 1):
                parts = make_micro_batches(source, plan.step(step), rank=0, world_size=1, seq_len=512, seed=(1, step))
                micro_batches = [part.to(ranks.device) for part in parts]
                trainer.train_step(micro_batches, num_targets=plan.step(step).num_targets, learning_rate=0.0)
            found = {
                "allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
                "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
                "parameters": sum(part.numel() for part in trainer.replica.parameters),
            }
        except torch.OutOfMemoryError as error:
            found = {"error": str(error)}
    json.dump(found, sys.stdout)


def _make_model(shape: dict[str, Any]) -> torch.nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    with torch.device("meta"):
        model = Qwen2ForCausalLM._from_config(Qwen2Config(**shape), attn_implementation="sdpa", dtype=torch.float32)
    model.to_empty(device="cpu")
    model.tie_weights()
    with torch.no_grad():
        for part in (*model.parameters(), *model.buffers()):
            # What is large is pages that nobody has written to, which are zeros already.
            if part.numel() < _LARGE:
                part.zero_()
    model.config.use_cache = False
    return model


def _write_rows(folder: Path, vocab_size: int) -> Path:
    """Write rows with lengths like those of real abstracts: 177 tokens on average, 5 % beyond 331, cut at 512."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.gamma(4.2, 42.0, size=64 * (_NUM_STEPS + 1)).astype(int), 16, 512)
    return write_slice(folder, [random.integers(0, vocab_size, size=length) for length in lengths])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], is_packed=sys.argv[4] == "packed")
