"""What is used of torch that has no public name, in one place: tried on torch 2.10, 2.11 and 2.15."""

import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
import torch.library
from torch import Tensor, nn
from torch._C import _distributed_c10d
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

_c10d: Any = _distributed_c10d


def count_begun(group: Any) -> int:
    """Return how many collectives a process group has begun."""
    return int(group._get_sequence_number_for_group())


def time_steps_of_ddp(wrapped: nn.parallel.DistributedDataParallel, *, every: int) -> None:
    """Have DDP time one step in so many."""
    wrapped._set_ddp_runtime_logging_sample_rate(every)


def read_facts_of_ddp(wrapped: nn.parallel.DistributedDataParallel) -> dict[str, Any]:
    """Return the sizes of DDP's buckets, bytes as text, and the times of the last step that it timed, nanoseconds."""
    facts: Any = wrapped._get_ddp_logging_data()
    results: dict[str, Any] = facts
    return results


def forget_forward_order(unit: Any) -> None:
    """Have FSDP2 forget a forward pass of this unit that no backward follows.

    It would gather ahead by that order. Before 2.12 a unit has one group of parameters at most.
    """
    state = unit._get_fsdp_state()
    for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
        if group is not None:
            group.comm_ctx.post_forward_order.clear()
            group._post_forward_indices.clear()


def get_rows(tensor: Tensor) -> Tensor:
    """Return this rank's rows, of a tensor of which every rank has some, without an operation of torch."""
    rows: Tensor = getattr(tensor, "_local_tensor", tensor)
    return rows


def is_fake(tensor: Tensor) -> bool:
    """Return whether it has a shape and no memory."""
    return isinstance(tensor, FakeTensor)


def make_fake_mode() -> FakeTensorMode:
    """Return what makes tensors that have a shape and no memory, while it is entered."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fakes_sums_in_fp32() -> bool:
    """Return whether a product of 16-bit tensors without memory can be added to one in fp32; in 2.11 it cannot."""
    left, right, total = (torch.empty(2, 2, dtype=dtype) for dtype in (torch.bfloat16, torch.bfloat16, torch.float32))
    with make_fake_mode() as mode:
        total, left, right = (mode.from_tensor(part) for part in (total, left, right))
        try:
            torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
        except (TypeError, RuntimeError):
            return False
    return True


def without_modes() -> AbstractContextManager[Any]:
    """Return what runs operations as if no mode were entered."""
    made: AbstractContextManager[Any] = _disable_current_modes()
    return made


def is_in_place(operation: Any) -> bool:
    """Return whether an operator of torch writes what it is given."""
    return bool(operation._schema.is_mutable)


def override_operators() -> AbstractContextManager[torch.library.Library]:
    """Return what takes other kernels for operators of aten, until it is left."""
    made: AbstractContextManager[torch.library.Library] = torch.library._scoped_library("aten", "IMPL")
    return made


def join_fake_group(rank: int, world_size: int) -> None:
    """Begin a process group that exchanges nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)


def list_exchanges_of_ddp() -> list[tuple[Any, str, Any]]:
    """Return owner, name and stand-in of what DDP exchanges beside gradients.

    Ranks compare shapes and send their weights, and send in which order buckets are built anew.
    """
    ddp = torch.nn.parallel.distributed
    return [
        (ddp, "_verify_param_shape_across_processes", _do_nothing),
        (ddp, "_sync_module_states", _do_nothing),
        (_c10d.Reducer, "_rebuild_buckets", lambda _: False),
    ]


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


def set_compiler() -> None:
    """Have torch.compile take layers by themselves, of any length."""
    import torch._dynamo
    import torch.fx.experimental._config as shapes

    # Else a length that happens to equal the hidden size is taken to be always that.
    shapes.use_duck_shape = False
    # It cuts a whole model's graph where DDP's buckets end; layers are cut already.
    torch._dynamo.config.optimize_ddp = False


def allow_any_length(tensor: Tensor) -> None:
    """Have what is compiled of it hold for any number of rows."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)


def is_compiler_error(error: Exception) -> bool:
    """Return whether torch.compile raised it; where nothing is compiled nothing is imported, which takes a second."""
    dynamo = sys.modules.get("torch._dynamo.exc")
    return dynamo is not None and isinstance(error, dynamo.TorchDynamoException)
