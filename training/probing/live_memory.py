"""What is in a device's memory while the code runs, by what it is there for; and what the code asks of the device.

A rehearsal follows tensors that have no memory, the stage `measure` real ones. torch's own MemTracker
(torch.distributed._tools) refuses a model that runs twice in a step, and does not tell logits or communication from the
rest: so tensors are followed here in the same way, by the life of their storage.
"""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from training.process.heartbeat import StepSection
from training.process.torch_private import get_rows, is_fake, is_in_place
from training.step.strategy import Strategy

WEIGHTS, GRADIENTS, MOMENTS = "weights", "gradients", "moments"
ACTIVATIONS, LOGITS, COMMUNICATION = "activations", "logits", "communication"
KINDS = (WEIGHTS, GRADIENTS, MOMENTS, ACTIVATIONS, LOGITS, COMMUNICATION)
"""weights: and their copies in 16 bit; logits: all that is as wide as the head; communication: what collectives are
given and what they fill, gathered layers among it; activations: all else."""

_ROUNDED_TO = 512
"""Bytes that torch's allocator hands out together."""
_16_BIT = (torch.float16, torch.bfloat16)
_aten = torch.ops.aten
_READ_IN_PART = {_aten.gather, _aten.index_select, _aten.embedding}
"""Operations that read, of their first tensor, no more than they write."""
_WRITTEN_IN_PART = {_aten.scatter_add_}
"""Operations that read and write, of their first tensor, as much as they are given to add: their last."""
_NOT_READ = {_aten.copy_, _aten.fill_, _aten.zero_}
"""Operations that write their first tensor without a look at it."""


@dataclass
class Work:
    """What the code asked of the device: one kernel per operation."""

    products: Counter[tuple[float, int, bool]] = field(default_factory=Counter)
    """Matrix products, convolutions and attention: (operations, bytes read and written, in 16 bit) -> how many."""
    other_bytes: int = 0
    """Bytes that all other operations read and write."""
    num_kernels: int = 0
    """Operations that the host has to launch."""
    exchanged: Counter[str] = field(default_factory=Counter)
    """Collective -> bytes that this rank gave to it, or had of it where that is more."""


class LiveMemory(TorchDispatchMode):
    """Follows every storage on the device from its first use to its end."""

    def __init__(self, device: torch.device | None = None) -> None:
        """`device`: whose tensors are followed; None: those that have a shape and no memory."""
        super().__init__()
        self._device = device
        self.kind = WEIGHTS
        """What is allocated from now on, unless its shape or its use says otherwise."""
        self.head_width: int | None = None
        """Classes that the head tells apart, by which logits are known."""
        self.work = Work()
        self.now = Counter(dict.fromkeys(KINDS, 0))
        """Kind -> bytes."""
        self.peak = Counter(self.now)
        """The same when all kinds together were most."""
        self._most = 0
        self._blocks: dict[int, _Block] = {}
        self._shapes: set[torch.Size] = set()
        self._resize: Callable[..., Any] = torch.UntypedStorage.resize_

    def name(self, tensors: Iterable[Tensor | None], kind: str) -> None:
        """Say of what kind these are."""
        for tensor in tensors:
            block = None if tensor is None else self._blocks.get(id(get_rows(tensor).untyped_storage()))
            if block is not None:
                self._rename(block, kind)

    def _rename(self, block: "_Block", kind: str) -> None:
        if block.is_weight:
            # Weights that are sent to other ranks stay weights.
            return
        self.now[block.kind] -= block.num_bytes
        self.now[kind] += block.num_bytes
        block.kind = kind

    def forget_peak(self) -> None:
        """Let the peak be what is there now."""
        self._most, self.peak = sum(self.now.values()), Counter(self.now)

    def look_at(self, strategy: Strategy) -> None:
        """Know the weights, gradients and sections of a strategy that was built while this was followed.

        What has the shape of a weight later is a copy or a gradient of one. All else that is there by now is moments if
        it has their shape, and memory to exchange gradients in if not. What there was before is forgotten: a model is
        built, and cut or sharded, on the host.
        """
        # Layers of other stages are held by circles of references.
        gc.collect()
        results = [*strategy.module.parameters(), *strategy.module.buffers()]
        beside = [part for part in strategy.kept_weights if self._is_followed(part)]
        for own in (*map(get_rows, results), *beside):
            if self._is_followed(own):
                # Read from a file by no operation of a tensor.
                self._follow(own)
        shapes = {get_rows(part).shape for part in results}
        for block in self._blocks.values():
            self._rename(block, MOMENTS if block.shape in shapes else COMMUNICATION)
        self.name([*results, *beside], WEIGHTS)
        for own in (*map(get_rows, results), *beside):
            if (known := self._blocks.get(id(own.untyped_storage()))) is not None:
                known.is_weight = True
        self._shapes = {shape for shape in shapes if len(shape) >= 2}
        self.forget_peak()
        for part in (parameter for parameter in strategy.module.parameters() if parameter.requires_grad):
            part.register_post_accumulate_grad_hook(lambda item: self.name([item.grad], GRADIENTS))
        # The warm-up begins with its stand-ins for the moments.
        self.kind = MOMENTS
        strategy.replica.on_section = self._enter_section

    def _enter_section(self, section: StepSection) -> None:
        self.kind = COMMUNICATION if section == StepSection.COLLECTIVE else ACTIVATIONS
        if section == StepSection.FORWARD:
            self.work = Work()

    def __enter__(self) -> "LiveMemory":
        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            done = self._resize(storage, size)
            block = self._blocks.get(id(storage))
            if block is not None and block.num_bytes == 0:
                self._rename(block, COMMUNICATION)
            self._note_size(storage)
            return done

        # No operation of a tensor: what is gathered and given up again.
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        done = func(*args, **(kwargs or {}))
        given = [part for part in tree_leaves((args, kwargs)) if self._is_followed(part)]
        made = [part for part in tree_leaves(done) if self._is_followed(part)]
        for tensor in made:
            self._follow(tensor)
        if given or made:
            self._count(func, args, kwargs or {}, done, given, made)
        return done

    def _is_followed(self, value: Any) -> bool:
        if self._device is not None:
            return isinstance(value, Tensor) and value.device == self._device
        # All that has no memory here would have some there; what is real is of the host.
        return is_fake(value) and value.device.type != "meta"

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) in self._blocks:
            self._note_size(storage)
            return
        kind = self.kind
        if kind in (ACTIVATIONS, COMMUNICATION):
            if tensor.shape in self._shapes:
                kind = WEIGHTS if tensor.dtype in _16_BIT else GRADIENTS
            elif tensor.ndim >= 2 and tensor.shape[-1] == self.head_width:
                kind = LOGITS
        block = self._blocks[id(storage)] = _Block(kind=kind, shape=tensor.shape)
        block.alive = weakref.ref(storage, partial(self._forget, id(storage)))
        self._note_size(storage)

    def _note_size(self, storage: torch.UntypedStorage) -> None:
        block = self._blocks.get(id(storage))
        if block is None:
            return
        num_bytes = -(-storage.nbytes() // _ROUNDED_TO) * _ROUNDED_TO
        self.now[block.kind] += num_bytes - block.num_bytes
        block.num_bytes = num_bytes
        total = sum(self.now.values())
        if total > self._most:
            self._most, self.peak = total, Counter(self.now)

    def _forget(self, key: int, _: object) -> None:
        block = self._blocks.pop(key)
        self.now[block.kind] -= block.num_bytes

    def _count(
        self, func: Any, args: Any, kwargs: dict[str, Any], done: Any, given: list[Tensor], made: list[Tensor]
    ) -> None:
        if func.namespace == "c10d":
            self.name([*given, *made], COMMUNICATION)
            self.work.exchanged[_get_name(func)] += max(part.nbytes for part in given)
            return
        if func.is_view or not (is_in_place(func) or _is_written(func, given, made)):
            return
        is_16_bit, packet = any(part.dtype in _16_BIT for part in given), func.overloadpacket
        if packet in _READ_IN_PART:
            given = [*given[1:], *made]
        elif packet in _WRITTEN_IN_PART:
            given, made = given[1:], [given[-1], given[-1]]
        elif packet in _NOT_READ:
            given = given[1:]
        elif "out" in kwargs:
            given = [part for part in tree_leaves(args) if self._is_followed(part)]
        num_bytes = sum(_count_bytes(part) for part in (*given, *made))
        self.work.num_kernels += 1
        count = flop_registry.get(packet)
        if count is None:
            self.work.other_bytes += num_bytes
            return
        flops = float(count(*args, **kwargs, out_val=done))
        self.work.products[flops, num_bytes, is_16_bit] += 1


@dataclass
class _Block:
    """A storage that is alive."""

    kind: str
    shape: torch.Size
    """Of the tensor that it was made for."""
    num_bytes: int = 0
    is_weight: bool = False
    """Whether it was said to be a weight."""
    alive: Any = None
    """A reference that does not keep it so, and says when it is not any more."""


def _is_written(func: Any, given: list[Tensor], made: list[Tensor]) -> bool:
    """Return whether an operation writes what it returns: neither parts of what it was given nor empty memory."""
    known = {id(part.untyped_storage()) for part in given}
    is_new = any(id(part.untyped_storage()) not in known for part in made)
    return is_new and not _get_name(func).startswith(("empty", "new_empty"))


def _get_name(func: Any) -> str:
    """Return an operator's name, without namespace and overload."""
    name: str = func.name()
    return name.partition("::")[2].partition(".")[0]


def _count_bytes(tensor: Tensor) -> int:
    """Return the bytes of it that are different ones: what is expanded is read once."""
    num = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        num *= size if stride else 1
    return num * tensor.element_size()


def find_head_width(model: Any) -> int | None:
    """Return how many tokens or classes the model tells apart; None where its config does not say."""
    config = getattr(model, "config", None)
    is_causal = getattr(model, "get_output_embeddings", lambda: None)() is not None
    width: int | None = getattr(config, "vocab_size" if is_causal else "num_labels", None)
    return width
