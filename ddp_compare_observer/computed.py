"""What the model computes: its outermost calls, the losses, the backward passes."""

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_compare_observer import timeline
from ddp_compare_observer.clocks import ScriptLines
from ddp_compare_observer.fed import Loaders
from ddp_compare_observer.record import Guard
from ddp_compare_observer.samples import digest_rows, is_on_host, list_tensors, read_bytes
from ddp_compare_observer.steps import Micro, Steps

_IGNORED = -100
_HEADS = 512
_HEAD_TOKENS = 64
_MASK = "attention_mask"


class Computing:
    """Watches models that have something to learn; what else is called is left alone."""

    def __init__(
        self, guard: Guard, times: timeline.Timeline, steps: Steps, loaders: Loaders, lines: ScriptLines
    ) -> None:
        self._guard, self._times, self._steps, self._loaders, self._lines = guard, times, steps, loaders, lines
        self._known: set[type] = set()
        self._is_learning = False
        self._is_inside = False
        self._is_backward = False
        self._wrappers: dict[int, Any] = {}
        self._heads = 0

    def watch(self) -> None:
        """From now on models, losses and backward passes are watched."""
        self._plain_call = torch.nn.Module.__call__
        self.learn_models()
        backward = torch.autograd.backward

        @functools.wraps(backward)
        def observed_backward(tensors: Any, *arguments: Any, **named: Any) -> None:
            if self._is_backward or not _is_main_thread():
                return backward(tensors, *arguments, **named)
            self._is_backward = True
            self._times.charge(self._guard, self._begin_backward, tensors)
            self._times.enter(timeline.BACKWARD)
            try:
                return backward(tensors, *arguments, **named)
            finally:
                self._times.leave()
                self._is_backward = False

        torch.autograd.backward = observed_backward
        _wrap_loss("cross_entropy", lambda *found: self._times.charge(self._guard, self._see_loss, *found))

    def learn_models(self) -> None:
        """Until the next optimizer step has come every model is looked at, to find those that are called outermost."""
        torch.nn.Module.__call__ = self._make_learning_call()  # type: ignore[method-assign]
        self._is_learning = True

    def stop_learning(self) -> None:
        """From now on only models of the kinds that were found are watched."""
        # Setting it costs every class of a module a look-up.
        if self._is_learning:
            torch.nn.Module.__call__ = self._plain_call  # type: ignore[method-assign]
            self._is_learning = False

    def _make_learning_call(self) -> Callable[..., Any]:
        plain = self._plain_call

        @functools.wraps(plain)
        def call(module: Any, *arguments: Any, **named: Any) -> Any:
            if self._leaves_alone(module):
                return plain(module, *arguments, **named)
            # What is called inside is the module as it is: a compiler may look at it.
            torch.nn.Module.__call__ = plain  # type: ignore[method-assign]
            self._guard(self._watch_class, type(module))
            try:
                return self._run(plain, module, arguments, named)
            finally:
                if self._steps.number == 0 or self._steps.is_lost:
                    torch.nn.Module.__call__ = call  # type: ignore[method-assign]

        return call

    def _leaves_alone(self, module: Any) -> bool:
        """Return whether a call is inside another one or a backward, is traced, or has nothing to be learned."""
        if self._is_inside or self._is_backward or torch.compiler.is_compiling() or not _is_main_thread():
            return True
        return not _can_learn(module)

    def _watch_class(self, kind: type) -> None:
        if kind in self._known or kind is torch.nn.Module:
            return
        self._known.add(kind)
        original = kind.__call__

        @functools.wraps(original)
        def call(module: Any, *arguments: Any, **named: Any) -> Any:
            if self._leaves_alone(module):
                return original(module, *arguments, **named)
            return self._run(original, module, arguments, named)

        kind.__call__ = call  # type: ignore[method-assign]

    def _run(self, original: Callable[..., Any], module: Any, arguments: Any, named: Any) -> Any:
        is_training = torch.is_grad_enabled()
        self._is_inside = True
        if is_training:
            self._times.name_the_rest(timeline.SCRIPT)
        self._times.charge(self._guard, self._begin_forward, module, arguments, named, is_training)
        self._times.enter(timeline.FORWARD if is_training else timeline.EVALUATION)
        try:
            return original(module, *arguments, **named)
        finally:
            self._times.leave()
            self._is_inside = False
            if not is_training:
                self._times.name_the_rest(timeline.EVALUATION)

    def _begin_forward(self, module: Any, arguments: Any, named: Any, is_training: bool) -> None:
        found = [(name, tensor) for name, tensor in list_tensors([list(arguments), named]) if tensor.dim()]
        given, ids = self._loaders.find([tensor for _, tensor in found], is_training=is_training)
        if not is_training:
            return
        mask = next((tensor for name, tensor in found if name.rpartition(".")[2] == _MASK), None)
        if mask is None:
            mask = next((tensor for name, tensor in found[1:] if _looks_like_mask(name, tensor, found[0][1])), None)
        labels = next((tensor for name, tensor in found if name.rpartition(".")[2] == "labels"), None)
        first = found[0][1] if found else None
        micro = Micro(
            ids=ids,
            loader=None if given is None else given.loader,
            wrapper=self._find_wrapper(module),
            module=list(self._wrappers).index(id(module)),
            model=type(module).__name__,
            line=self._lines.find(),
            is_synchronised=self._find_synchronised(module),
            precision=_find_precision(module, first),
            attention=str(getattr(getattr(module, "config", None), "_attn_implementation", None) or ""),
        )
        if first is not None:
            micro.num_samples, micro.shape = len(first), list(first.shape)
            self._describe(micro, first, mask, labels, device=first.device.type)
        self._steps.add(micro, module)

    def _describe(self, micro: Micro, first: Any, mask: Any, labels: Any, *, device: str) -> None:
        is_sampled = self._steps.is_sampled
        if device != "cpu":
            if not is_sampled:
                # It would have to be waited for.
                return
            first, mask, labels = (one if one is None else one.detach().cpu() for one in (first, mask, labels))
        if not is_on_host(first) or (mask is not None and not is_on_host(mask)):
            return
        micro.rows = digest_rows(first, mask)
        if not first.is_floating_point() and first.dim() > 1:
            micro.num_tokens = int(mask.sum()) if mask is not None and mask.shape == first.shape else first.numel()
            room = _HEADS - self._heads
            if micro.ids is not None and room > 0:
                micro.heads = first.reshape(len(first), -1)[:room, :_HEAD_TOKENS].tolist()
                self._heads += len(micro.heads)
        if not is_sampled:
            return
        micro.mask = mask
        if labels is not None and mask is not None and labels.shape == mask.shape and labels.dim() > 1:
            micro.labels_are_mask = bool(torch.equal(labels.long(), mask.long()))

    def _find_wrapper(self, module: Any) -> str:
        """Return the name of what spreads the model over ranks: the module itself, or one inside; empty for none."""
        if id(module) not in self._wrappers:
            found = [one for one in module.modules() if _is_wrapper(one)]
            self._wrappers[id(module)] = found[0] if found else None
        wrapper = self._wrappers[id(module)]
        return "" if wrapper is None else type(wrapper).__name__

    def _find_synchronised(self, module: Any) -> bool | None:
        wrapper = self._wrappers.get(id(module))
        return bool(wrapper.require_backward_grad_sync) if isinstance(wrapper, DistributedDataParallel) else None

    def _begin_backward(self, tensors: Any) -> None:
        loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        value = None
        is_near = isinstance(loss, torch.Tensor) and loss.device.type == "cpu"
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and (is_near or self._steps.is_sampled):
            value = float(loss.detach())
        self._steps.add_backward(value, self._lines.find())

    def _see_loss(self, output: torch.Tensor, given: dict[str, Any]) -> None:
        target: torch.Tensor = given["target"]
        micro = self._steps.open_micro
        if micro is None or not torch.is_grad_enabled() or not output.requires_grad:
            return
        micro.num_losses += 1
        if not self._steps.can_read(output) or given["weight"] is not None or target.is_floating_point():
            micro.is_weighted = True
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


def _wrap_loss(name: str, see: Callable[[torch.Tensor, dict[str, Any]], Any]) -> None:
    original = getattr(torch.nn.functional, name)
    parameters = inspect.signature(original).parameters
    defaults = {key: one.default for key, one in parameters.items()}

    @functools.wraps(original)
    def observed(*arguments: Any, **named: Any) -> Any:
        output = original(*arguments, **named)
        if not torch.compiler.is_compiling() and _is_main_thread() and isinstance(output, torch.Tensor):
            see(output, defaults | dict(zip(parameters, arguments, strict=False)) | named)
        return output

    setattr(torch.nn.functional, name, observed)


def _looks_like_mask(name: str, tensor: torch.Tensor, first: torch.Tensor) -> bool:
    """Return whether an input without a name is one 0 or 1 for each token."""
    if not name.startswith("0.") or tensor.shape != first.shape or tensor.dim() < 2 or tensor.is_floating_point():
        return False
    content = read_bytes(tensor) if is_on_host(tensor) else b""
    return 1 in content and not content.translate(None, b"\0\1")


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _can_learn(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _is_wrapper(module: Any) -> bool:
    names = {kind.__name__ for kind in type(module).__mro__}
    return bool(names & {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"})


def _find_precision(module: Any, first: Any) -> str:
    device = "cpu" if first is None else first.device.type
    if torch.is_autocast_enabled(device):
        return f"autocast {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
    parameter = next((one for one in module.parameters() if one.requires_grad), None)
    return "" if parameter is None else str(parameter.dtype).removeprefix("torch.")
