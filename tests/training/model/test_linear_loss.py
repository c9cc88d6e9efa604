"""Cross-entropy in chunks of rows: the same loss and gradients, and no tensor of all rows' logits."""

import pytest
import torch
import torch.nn.functional as F

from tests.training.models import build
from training.data.batches import IGNORED_LABEL, open_slice
from training.model.linear_loss import linear_cross_entropy
from training.workloads import causal_lm

_ROWS, _HIDDEN, _VOCAB = 37, 24, 101


def _inputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(_ROWS, _HIDDEN, generator=generator, dtype=dtype).requires_grad_()
    weight = (torch.randn(_VOCAB, _HIDDEN, generator=generator, dtype=dtype) / 3).requires_grad_()
    return hidden, weight, torch.randint(_VOCAB, (_ROWS,), generator=generator)


def _by_hand(hidden, weight, targets):
    return -(hidden @ weight.T).log_softmax(1)[torch.arange(len(targets)), targets].sum()


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize(("chunk_rows", "said"), [(1, None), (7, 0.0), (_ROWS, 0.25), (1000, 1e-3)])
def test_loss_and_gradients_are_those_of_fp64_by_hand_whatever_was_said_of_the_factor(chunk_rows, said, is_compiled):
    exact = _inputs(torch.float64)
    expected = _by_hand(*exact)
    (0.3 * expected).backward()
    hidden, weight, targets = (
        part.detach().to(torch.float32 if part.is_floating_point() else part.dtype) for part in exact
    )
    hidden.requires_grad_(), weight.requires_grad_()
    scale = None if said is None else torch.tensor(said)
    # What would be compiled, as it is written; tests/gpu/test_kernels.py has it compiled.
    with torch.compiler.set_stance("force_eager"):
        loss = linear_cross_entropy(
            hidden, weight, targets, chunk_rows=chunk_rows, scale=scale, is_compiled=is_compiled
        )
    (0.3 * loss).backward()
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    for got, wanted in ((hidden, exact[0]), (weight, exact[1])):
        torch.testing.assert_close(got.grad, wanted.grad.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_gradients_are_fp32_and_as_near_as_those_of_whole_logits(dtype):
    exact = _inputs(torch.float64)
    _by_hand(*exact).backward()
    distances = []
    for is_chunked in (False, True):
        hidden, weight, targets = _inputs(torch.float64)
        hidden, weight = (part.detach().float().requires_grad_() for part in (hidden, weight))
        with torch.autocast("cpu", dtype):
            if is_chunked:
                loss = linear_cross_entropy(hidden, weight, targets, chunk_rows=10)
            else:
                loss = F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="sum")
        loss.backward()
        assert weight.grad.dtype == torch.float32
        distances.append(float((weight.grad.double() - exact[1].grad).norm() / exact[1].grad.norm()))
    whole, chunked = distances
    assert chunked < 1e-2
    assert chunked < 1.2 * whole


def test_a_target_whose_probability_is_too_small_for_fp32_has_its_loss():
    # The rows' logits reach 400, so that some probabilities are below e**-103, fp32's smallest number.
    hidden, weight, targets = (part.detach() for part in _inputs())
    hidden = (hidden * 100).requires_grad_()
    expected = _by_hand(hidden.detach().double(), weight.double(), targets)
    loss = linear_cross_entropy(hidden, weight, targets, chunk_rows=8)
    loss.backward()
    assert float(expected) / _ROWS > 103
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-6)
    assert bool(hidden.grad.isfinite().all())


@pytest.mark.parametrize("is_compiled", [False, True])
def test_rows_that_are_nearly_certain_keep_the_digits_of_their_loss(is_compiled):
    # The target's logit is 100, the others' are 3 to 10 below: losses of about 0.001 nats.
    generator = torch.Generator().manual_seed(1)
    logits = 97 - 7 * torch.rand(64, _VOCAB, generator=generator)
    targets = torch.randint(_VOCAB, (64,), generator=generator)
    logits[torch.arange(64), targets] = 105.0
    expected = -logits.double().log_softmax(1)[torch.arange(64), targets].sum()
    logits.requires_grad_()
    with torch.compiler.set_stance("force_eager"):
        loss = linear_cross_entropy(logits, torch.eye(_VOCAB), targets, chunk_rows=10, is_compiled=is_compiled).detach()
    assert float(expected) / 64 < 0.02
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_a_model_that_caps_its_logits_keeps_its_own(slices):
    model = build("gemma2", final_logit_softcapping=1.0, initializer_range=1.0)
    batch = open_slice(slices[0]).collate(range(4), seq_len=32)
    logits = model(input_ids=batch.input_ids).logits.flatten(0, 1)
    expected = F.cross_entropy(logits, batch.labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum")
    assert causal_lm.loss_sum(model, batch).item() == pytest.approx(float(expected.detach()), rel=1e-6)
    assert 0.99 < logits.abs().max().item() <= 1.0, "the cap has to bite"
