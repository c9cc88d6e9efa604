"""The second computation of a causal language model's loss: what it computes twice, and what it need not."""

import functools
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from tasks.equivalence.reference import causal_lm
from tests.tiny import make_tiny_model
from training.data.batches import IGNORED_LABEL

LABELS, VOCABULARY = 60, 128


class _Held(TorchDispatchMode):
    """Counts the numbers that operations hold, a view holds none of its own, and products as wide as a head."""

    now = most = heads = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        known = {id(one) for one in tree_leaves((arguments, named))}
        found = function(*arguments, **(named or {}))
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor) and id(one) not in known and one._base is None:
                self.heads += "log_softmax" in str(function) and one.shape[-1] == VOCABULARY
                self.now += one.numel()
                self.most = max(self.most, self.now)
                weakref.finalize(one, self._let_go, one.numel())
        return found

    def _let_go(self, number: int) -> None:
        self.now -= number


def compute(model: Any, *, chunk_rows: int) -> tuple[list[torch.Tensor], _Held]:
    """Return the gradients of one micro-batch, and what was held meanwhile."""
    tokens = torch.randint(0, VOCABULARY, (2, LABELS // 2 + 1), generator=torch.Generator().manual_seed(1))
    labels = torch.cat([tokens[:, 1:], torch.full((2, 1), IGNORED_LABEL)], dim=1)
    part: Any = SimpleNamespace(input_ids=tokens, labels=labels, documents=None)
    model.zero_grad(set_to_none=True)
    with _Held() as held:
        causal_lm.loss_sum(model, part, chunk_rows=chunk_rows).backward()
    return [one.grad.clone() for one in model.parameters()], held


@pytest.mark.parametrize(("chunk_rows", "num_chunks"), [(LABELS, 1), (LABELS // 3, 3)])
def test_the_head_of_the_chunk_that_a_backward_begins_with_is_computed_once_and_takes_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int, num_chunks: int
) -> None:
    make_tiny_model(tmp_path, vocab_size=VOCABULARY)
    model = causal_lm.load_model(tmp_path, device="cpu")
    compute(model, chunk_rows=chunk_rows)  # looks once at how the model ends
    found, held = compute(model, chunk_rows=chunk_rows)
    own = causal_lm._compute_chunk_loss
    twice = functools.partial(checkpoint, own, use_reentrant=False)
    monkeypatch.setattr(causal_lm, "checkpoint", lambda _, *arguments, **named: checkpoint(own, *arguments, **named))
    monkeypatch.setattr(causal_lm, "_compute_chunk_loss", twice)
    every, held_of_every = compute(model, chunk_rows=chunk_rows)
    assert all(torch.equal(one, other) for one, other in zip(found, every, strict=True))
    assert (held.heads, held_of_every.heads) == (2 * num_chunks - 1, 2 * num_chunks)
    assert held.most <= held_of_every.most
