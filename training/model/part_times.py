"""What parts of a model really take: forward and backward of each alone, on the device, with what it is given."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

_TIMED_RUNS = 3


def time_parts(
    groups: Sequence[Sequence[nn.Module]], run: Callable[[], object], device: torch.device
) -> list[list[float | None]]:
    """Return the seconds of each part, group by group; None for one that `run`, a forward pass, does not call.

    A part is on the device while it is timed and nowhere else, so that a model is timed that would not fit there. Of
    parts alike, by class and shapes, each gets their median.
    """
    parts = [part for group in groups for part in group]
    given = _record_inputs(parts, run)
    seconds = {part: _time_part(part, *given[part], device) for part in parts if part in given}
    alike: dict[Any, list[float]] = {}
    for part, one in seconds.items():
        alike.setdefault(_describe(part), []).append(one)
    return [
        [float(np.median(alike[_describe(part)])) if part in seconds else None for part in group] for group in groups
    ]


def _describe(part: nn.Module) -> tuple[Any, ...]:
    return type(part), *(tuple(one.shape) for one in part.parameters())


def _record_inputs(parts: Sequence[nn.Module], run: Callable[[], object]) -> dict[nn.Module, tuple[Any, Any]]:
    given: dict[nn.Module, tuple[Any, Any]] = {}

    def note(part: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        given.setdefault(part, (positional, named))

    hooks = [part.register_forward_pre_hook(note, with_kwargs=True) for part in parts]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return given


def _time_part(part: nn.Module, positional: Any, named: Any, device: torch.device) -> float:
    """Return the quickest of a few runs, after one that is not timed."""

    def bring(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        moved = value.detach().to(device)
        return moved.requires_grad_() if moved.is_floating_point() else moved

    with _on_device(part, device):
        found = []
        for _ in range(1 + _TIMED_RUNS):
            inputs, more = tree_map(bring, positional), tree_map(bring, named)
            started = _tell_time(device)
            with torch.enable_grad():
                outputs = [one for one in tree_leaves(part(*inputs, **more)) if isinstance(one, Tensor)]
                outputs[0].float().sum().backward()
            found.append(_tell_time(device) - started)
        part.zero_grad(set_to_none=True)
    return min(found[1:])


@contextmanager
def _on_device(part: nn.Module, device: torch.device) -> Iterator[None]:
    """Have the part there while inside; a tied weight stays the same parameter."""
    before = next(part.parameters()).device
    part.to(device)
    try:
        yield
    finally:
        part.to(before)


def _tell_time(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
