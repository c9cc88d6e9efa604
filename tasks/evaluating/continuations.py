"""How a language model goes on with a few held-out rows, beside how they really go on."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from training.data.batches import Slice

_NUM_SAMPLES = 3
_PROMPT_TOKENS = 24
_PROMPT_TOKENS_AT_MOST = 160
_CONTINUATION_TOKENS = 40


def select_rows(lengths: np.ndarray, num_given: np.ndarray | None = None) -> list[tuple[int, int]]:
    """Return (row, tokens of its prompt) of the first rows that are long enough to show a continuation of.

    Where rows begin with prompts: of the first whose prompt is read at a glance, else of the shortest.
    """
    if num_given is not None:
        shortest = np.argsort(np.maximum(num_given, _PROMPT_TOKENS_AT_MOST), kind="stable")[:_NUM_SAMPLES]
        return [(row, int(num_given[row])) for row in shortest.tolist()]
    wanted = _PROMPT_TOKENS + _CONTINUATION_TOKENS // 2
    order = sorted(np.flatnonzero(lengths >= 2).tolist(), key=lambda row: (bool(lengths[row] < wanted), row))
    return [(row, min(_PROMPT_TOKENS, int(lengths[row]) // 2)) for row in order[:_NUM_SAMPLES]]


def continue_rows(model: Any, source: "Slice", *, base_model: Path, eos_token_id: int) -> list[dict[str, Any]]:
    """Return the model's greedy continuations of the first tokens of a few rows, beside how the rows really go on."""
    import torch
    from tokenizers import Tokenizer
    from transformers import GenerationConfig

    tokenizer = Tokenizer.from_file(str(base_model / "tokenizer.json"))
    # The model's own settings might sample or punish repetition, which would hide what the weights say.
    model.generation_config = GenerationConfig(
        max_new_tokens=_CONTINUATION_TOKENS,
        do_sample=False,
        use_cache=True,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
    )
    samples = []
    for row, num_prompt in select_rows(np.diff(source.offsets), source.num_given):
        tokens = source.row(row, num_prompt + _CONTINUATION_TOKENS).tolist()
        prompt = torch.tensor([tokens[:num_prompt]], device=model.device)
        written = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt))[0, num_prompt:].tolist()
        samples.append(
            {
                "row_id": int(source.row_ids[row]),
                "prompt": tokenizer.decode(tokens[:num_prompt]),
                "reference": tokenizer.decode(tokens[num_prompt:]),
                "continuation": tokenizer.decode(written),
            }
        )
    return samples
