"""What a loss of torch.nn.functional is a mean or a sum over: how many targets, and whether all weigh the same."""

import functools
import inspect
from typing import Any

import torch

from ddp_audit.observer import timeline
from ddp_audit.observer.record import Guard, is_main_thread
from ddp_audit.observer.steps import Steps

_IGNORED = -100
_OF_CLASSES = ("cross_entropy", "nll_loss")
_LOSSES = (
    *_OF_CLASSES, "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
"""Of torch.nn.functional: those whose mean is one over their targets, which are counted."""
_WEIGHTS = ("weight", "pos_weight", "size_average", "reduce")
"""Arguments with which such a loss is another mean, or none."""


def watch_losses(guard: Guard, times: timeline.Timeline, steps: Steps) -> None:
    """From now on these losses tell the micro-batch that is under way what they are over."""
    for name in _LOSSES:
        _watch(name, guard, times, steps)


def _watch(name: str, guard: Guard, times: timeline.Timeline, steps: Steps) -> None:
    original = getattr(torch.nn.functional, name)
    parameters = inspect.signature(original).parameters
    defaults = {key: one.default for key, one in parameters.items()}

    @functools.wraps(original)
    def observed(*arguments: Any, **named: Any) -> Any:
        output = original(*arguments, **named)
        if torch.compiler.is_compiling() or not steps.is_read or not is_main_thread():
            return output
        given = defaults | dict(zip(parameters, arguments, strict=False)) | named
        times.charge(guard, _see, steps, name, output, given)
        return output

    # TorchScript compiles what this returns, which is the loss as it was.
    observed.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
    setattr(torch.nn.functional, name, observed)


def _see(steps: Steps, name: str, output: Any, given: dict[str, Any]) -> None:
    target: torch.Tensor = given["target"]
    micro = steps.open_micro
    if micro is None or not isinstance(output, torch.Tensor) or not output.requires_grad:
        return
    micro.num_losses += 1
    is_of_classes = name in _OF_CLASSES
    if (
        not steps.can_read(output)
        or any(given.get(one) is not None for one in _WEIGHTS)
        or (target.is_floating_point() if is_of_classes else target.shape != given["input"].shape)
    ):
        micro.is_weighted = True
        return
    if not is_of_classes:
        micro.num_targets, micro.reduction = target.numel(), given["reduction"]
        micro.loss_of_model = float(output.detach()) if output.numel() == 1 else None
        return
    kept = target.detach().cpu()
    micro.num_targets = int((kept != given["ignore_index"]).sum())
    micro.reduction = given["reduction"]
    micro.loss_of_model = float(output.detach()) if output.numel() == 1 else None
    if micro.mask is not None and micro.mask.dim() > 1 and micro.mask.shape[1] > 1:
        mask = micro.mask
        # Whole, without the first place, and shifted by one with a place to spare, as transformers does.
        for cut in (mask, mask[:, 1:], torch.nn.functional.pad(mask, (0, 1), value=_IGNORED)[:, 1:]):
            if kept.numel() == cut.numel() and torch.equal(kept.reshape(-1).long(), cut.reshape(-1).long()):
                micro.labels_are_mask = True
