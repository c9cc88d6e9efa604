"""What becomes of a gradient between the backward passes of a step and its optimizer; looked at in sampled steps."""

import math
from typing import Any

import torch

from ddp_audit.observer.samples import digest_tensors
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
