"""What a model comes to on the held-out rows, whatever their batches, and how it goes on with a few of them."""

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.process.failure import DataError
from tasks.process.progress import show_progress

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import nn

    from training.data.batches import Rows, Slice


_MAX_TOKENS_PER_BATCH = 16_384
_LOGITS_BYTES = {"cpu": 2**30, "cuda": 6 * 2**30}
"""Memory for the logits of a batch: with a vocabulary of 152,000 they, not the model, fill it."""


def make_batches(lengths: np.ndarray, *, max_tokens: int) -> list[list[int]]:
    """Return all rows, longest first, in batches of at most `max_tokens` with padding; a longer row stands alone."""
    batches: list[list[int]] = []
    for row in np.argsort(-lengths, kind="stable").tolist():
        # The first row of a batch is its longest: all others are padded to it.
        if batches and (len(batches[-1]) + 1) * int(lengths[batches[-1][0]]) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def compute_sums(
    source: "Rows", model: "nn.Module", workload: Any, *, seq_len: int, vocab_size: int | None, what: str
) -> tuple[dict[str, float], dict[str, int]]:
    """Return the sums over all rows of the loss and of what else the workload measures; and what was counted.

    That is `num_tokens` and `num_targets`, each once. `vocab_size`: of a model that gives logits for every position.
    """
    device = next(model.parameters()).device
    lengths = source.lengths(seq_len)
    max_tokens = _MAX_TOKENS_PER_BATCH
    if vocab_size is not None and not workload.HAS_LABELS:
        # Logits in fp32, their log-softmax and one copy.
        max_tokens = min(max_tokens, _LOGITS_BYTES[device.type] // (3 * 4 * vocab_size))
    sums, counts = defaultdict[str, float](float), {"num_tokens": 0, "num_targets": 0}
    with show_progress(what, len(source)) as advance:
        for batch in make_batches(lengths, max_tokens=max_tokens):
            micro_batch = source.collate(batch, seq_len=seq_len).to(device)
            for name, value in workload.metrics(model, micro_batch).items():
                sums[name] += float(value)
            for name in counts:
                counts[name] += getattr(micro_batch, name)
            advance(len(batch))
    expected = int(source.num_targets(seq_len).sum())
    assert counts["num_targets"] == expected, f"{counts['num_targets']} labels counted, the rows have {expected}"
    if not expected:
        raise DataError("no held-out row has a second token to predict; choose other rows as heldout")
    return sums, counts


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
    from transformers import AutoTokenizer, GenerationConfig

    if (file := base_model / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(file))
    else:  # vocab.json and merges.txt, say
        tokenizer = AutoTokenizer.from_pretrained(base_model, trust_remote_code=False).backend_tokenizer
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    # The model's own settings might sample or punish repetition, which would hide what the weights say.
    model.generation_config = GenerationConfig(
        do_sample=False,
        use_cache=True,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
    )
    samples = []
    for row, num_prompt in select_rows(np.diff(source.offsets), source.num_given):
        tokens = source.row(row, num_prompt + _CONTINUATION_TOKENS).tolist()
        prompt = torch.tensor([tokens[:num_prompt]], device=model.device)
        room = _CONTINUATION_TOKENS if positions is None else min(_CONTINUATION_TOKENS, positions - num_prompt)
        written = list[int]()
        if room > 0:
            mask = torch.ones_like(prompt)
            whole = model.generate(input_ids=prompt, attention_mask=mask, max_new_tokens=room)
            written = whole[0, num_prompt:].tolist()
        samples.append(
            {
                "row_id": int(source.row_ids[row]),
                "prompt": tokenizer.decode(tokens[:num_prompt]),
                "reference": tokenizer.decode(tokens[num_prompt:]),
                "continuation": tokenizer.decode(written),
            }
        )
    return samples
