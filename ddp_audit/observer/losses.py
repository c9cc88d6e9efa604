"""What a loss of torch.nn.functional is a mean or a sum over: how many targets, and whether all weigh the same."""

import functools
import inspect
import math
from typing import Any

import torch

from ddp_audit.observer import timeline
from ddp_audit.observer.record import Guard, is_main_thread
from ddp_audit.observer.samples import digest_tensors
from ddp_audit.observer.steps import Steps
from ddp_audit.observer.torch_private import has_hooks


class GradientWatch:
    """Follows the gradient of one step."""

    def __init__(self) -> None:
        self._left: dict[str, Any] | None = None
        self._is_changed_early = False

    def see_before_backward(self, parameters: list[torch.Tensor]) -> None:
        """A backward pass adds to what the one before has left: whoever has changed that did not see all of it."""
        if self._left is not None:
            self._is_changed_early |= not _is_same_or_unscaled(self._left, digest_gradients(parameters))

    def see_after_backward(self, parameters: list[torch.Tensor]) -> None:
        """A backward pass is over: what it left is what the optimizer will find, unless the script changes it."""
        self._left = digest_gradients(parameters)

    def judge(self, parameters: list[torch.Tensor], found: dict[str, Any], wrapper: Any) -> dict[str, bool | None]:
        """Return what is known of the step's gradient, which the optimizer has `found`; begin with the next one.

        `is_gradient_kept`: whether it is what the last backward left; None where that was not looked at.
        `is_gradient_changed_early`: whether something changes it before all of it is summed up over the ranks.
        """
        left, self._left = self._left, None
        is_early, self._is_changed_early = self._is_changed_early, False
        return {
            "is_gradient_kept": None if left is None else _is_same_or_unscaled(left, found),
            "is_gradient_changed_early": is_early or has_hooks(parameters, wrapper),
        }


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


def digest_gradients(parameters: list[torch.Tensor]) -> dict[str, Any]:
    """Return the digest of those that there are."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    found = digest_tensors(gradients)
    if gradients and found["l2"] == 0:
        # Of most tensors some elements alone were looked at.
        parts: list[Any] = [one.to_local() if hasattr(one, "to_local") else one for one in gradients]
        found["is_zero"] = not any(bool(one.any()) for one in parts)
    return found


def _is_same_or_unscaled(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether a gradient is what it was, or a power of two of it, as where a loss was scaled for fp16."""
    if before["digests"] == after["digests"]:
        return True
    if not all(one["l2"] > 0 and math.isfinite(one["l2"]) for one in (before, after)):
        return False
    scale: float = after["l2"] / before["l2"]
    power = 2.0 ** round(math.log2(scale))
    return math.isclose(scale, power, rel_tol=1e-9) and after["head"] == [one * power for one in before["head"]]
