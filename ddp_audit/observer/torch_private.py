"""What is read of torch that has no public name, in one place: tried on torch 2.10, 2.11 and 2.15."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import dataloader

untraced: Any = torch._disable_dynamo
"""Makes a function that a compiler calls as it is; torch.compiler's would import the compiler at once."""

_IS_AVAILABLE = dist.is_available()
_GROUPS: Any = dist.distributed_c10d._world.pg_map if _IS_AVAILABLE else ()
"""Every process group that there is now."""

Pass: Any = dataloader._BaseDataLoaderIter
"""The class of the iterators of a DataLoader, with workers and without."""
NEXT_INDEX = "_next_index"
"""Its method that asks the sampler."""
BEGINNINGS = ("__init__", "_reset")
"""Its methods that are given the loader as a pass begins, of which workers that stay are asked the second alone."""

_OF_TORCH = "torch.distributed.algorithms"
"""Hooks of DDP's exchange from there send other bytes, and clip nothing."""


def count_collectives() -> dict[str, int]:
    """Return how many collectives each process group has begun, whoever called them; empty without any group."""
    counts: dict[str, int] = {}
    for group in list(_GROUPS):
        try:
            counts[str(group.group_name)] = int(group._get_sequence_number_for_group())
        except RuntimeError:
            # Not every backend counts.
            continue
    return counts


def count_sharded_dimensions(tensor: Any) -> int:
    """Return along how many dimensions of the mesh a tensor is split: along none where it is no DTensor."""
    return sum("Shard" in type(placement).__name__ for placement in getattr(tensor, "placements", ()))


def has_hooks(parameters: list[torch.Tensor], wrapper: Any) -> bool:
    """Return whether the script's own code runs on gradients within the backward, or as DDP exchanges them."""
    if any(
        getattr(parameter, "_backward_hooks", None) or getattr(parameter, "_post_accumulate_grad_hooks", None)
        for parameter in parameters
    ):
        return True
    hooks = [pair[0] for pair in getattr(wrapper, "_comm_hooks", None) or [] if isinstance(pair, tuple) and pair]
    return any(not str(getattr(hook, "__module__", "")).startswith(_OF_TORCH) for hook in hooks)


def list_kept_buffers(model: Any) -> dict[str, torch.Tensor]:
    """Return name -> what a model saves beside its parameters, such as means; nothing that it can compute anew."""
    return {
        f"{at}.{name}".lstrip("."): buffer for at, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in getattr(module, "_non_persistent_buffers_set", ())
    }  # fmt: skip


def get_uncompiled(module: Any) -> Any:
    """Return the module that torch.compile has wrapped, or the one that was given."""
    return getattr(module, "_orig_mod", module)


def is_compiler_used() -> bool:
    """Return whether torch.compile has compiled something in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters and counters["frames"]["ok"])


get_transform: Any = torch._C._functorch.peek_interpreter_stack
"""Returns what of vmap, grad or the like of torch.func is under way, or None: tensors have no elements then."""
