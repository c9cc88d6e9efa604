"""What the model computes: its outermost calls, the losses, the backward passes."""

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn.parallel import DistributedDataParallel

from ddp_audit.observer import timeline
from ddp_audit.observer.clocks import ScriptLines
from ddp_audit.observer.fed import Loaders
from ddp_audit.observer.record import MAIN, Guard, is_main_thread
from ddp_audit.observer.samples import (
    count_tokens,
    digest_rows,
    holds_whole_numbers,
    is_on_host,
    list_tensors,
    looks_like_mask,
    put_rows_first,
)
from ddp_audit.observer.steps import Micro, Steps, is_captured
from ddp_audit.observer.torch_private import get_transform, get_uncompiled, is_compiler_used, untraced

_TRAINED_BY_A_STEP_OF_ITS_OWN = "LightningModule"
"""What is wrapped of such a model is its whole training step; alone, its forward pass is called or none."""
_HEADS = 512
_HEAD_TOKENS = 64
_ONE_IN = 64
"""Of the rows with an index, after the steps that are read, one in so many has its content digested; a power of two."""
_get_turn = (_ONE_IN - 1).__and__
_MASK = "attention_mask"
_WRAPPERS = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine"}
_IGNORED = -100
_OF_CLASSES = ("cross_entropy", "nll_loss")
_LOSSES = (
    *_OF_CLASSES, "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
"""Of torch.nn.functional: those whose mean is one over their targets, which are counted."""
_WEIGHTS = ("weight", "pos_weight", "size_average", "reduce")
"""Arguments with which such a loss is another mean, or none."""
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass
class _Model:
    """What is known of a module that is called outermost."""

    module: Callable[[], Any]
    number: int
    wrapper: Callable[[], Any]
    """What spreads it over ranks: the module itself, or one inside; None for none."""
    wrapper_name: str
    learner: Callable[[], Any] = lambda: None
    """A parameter of it that learned when one was last found."""
    is_frozen: bool = False
    """Whether none did when one was last looked for."""


class Computing:
    """Watches models that have something to learn; what else is called is left alone."""

    def __init__(
        self, guard: Guard, times: timeline.Timeline, steps: Steps, loaders: Loaders, lines: ScriptLines
    ) -> None:
        self._guard, self._times, self._steps, self._loaders, self._lines = guard, times, steps, loaders, lines
        self._find_guarded, self._begin_guarded = guard.wrap(self._find_model), guard.wrap(self._begin_forward)
        self._known: set[type] = set()
        self._is_learning = False
        self._is_inside = False
        self._is_backward = False
        self._models: dict[int, _Model] = {}
        self._num_models = 0
        self._drawing: tuple[Any, list[torch.Tensor], torch.device] | None = None
        self._heads = 0
        self._last_loss: tuple[Callable[[], Any], str, float | None] = (lambda: None, "", None)
        """The last loss of torch's, how autograd names what made it, and what it was."""

    def watch(self) -> None:
        """From now on models, losses and backward passes are watched."""
        self._plain_call = torch.nn.Module.__call__
        self.learn_models()
        backward, add_backward = torch.autograd.backward, self._guard.wrap(self._steps.add_backward)

        @functools.wraps(backward)
        def observed_backward(tensors: Any, *arguments: Any, **named: Any) -> None:
            if self._is_backward or get_ident() != MAIN:
                return backward(tensors, *arguments, **named)
            self._is_backward, steps = True, self._steps
            self._times.enter(timeline.OBSERVER if steps.is_read else timeline.BACKWARD)
            try:
                if steps.is_read:
                    self._guard(self._read_loss, tensors, *(arguments or (named.get("grad_tensors"),)))
                    if steps.is_sampled:
                        self._guard(steps.see_gradient, is_after=False)
                    self._times.switch(timeline.BACKWARD)
                else:
                    add_backward()
                backward(tensors, *arguments, **named)
                if steps.is_sampled:
                    self._times.switch(timeline.OBSERVER)
                    self._guard(steps.see_gradient, is_after=True)
            finally:
                self._times.leave()
                self._is_backward = False

        torch.autograd.backward = observed_backward
        for name in _LOSSES:
            self._watch_loss(name)

    def learn_models(self) -> None:
        """Until the next optimizer step has come every model is looked at, to find those that are called outermost."""
        torch.nn.Module.__call__ = self._make_learning_call()  # type: ignore[method-assign]
        self._is_learning = True
        for model in self._models.values():
            model.is_frozen = False

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
            model = self._find_outermost(module)
            if model is None:
                return plain(module, *arguments, **named)
            # What is called inside is the module as it is: a compiler may look at it.
            torch.nn.Module.__call__ = plain  # type: ignore[method-assign]
            self._guard(self._watch_class, type(module))
            try:
                return self._run(plain, model, module, arguments, named)
            finally:
                if self._steps.number == 0 or self._steps.is_lost:
                    torch.nn.Module.__call__ = call  # type: ignore[method-assign]

        return call

    def list_parameters(self) -> list[torch.Tensor]:
        """Return those of every model that was called, whether it learns or not."""
        called = [model.module() for model in self._models.values()]
        return [parameter for module in called if module is not None for parameter in module.parameters()]

    def _watch_class(self, kind: type) -> None:
        if kind in self._known or kind is torch.nn.Module:
            return
        self._known.add(kind)
        original = kind.__call__

        @functools.wraps(original)
        def call(module: Any, *arguments: Any, **named: Any) -> Any:
            model = self._find_outermost(module)
            if model is None:
                return original(module, *arguments, **named)
            return self._run(original, model, module, arguments, named)

        kind.__call__ = call  # type: ignore[method-assign]

    def _find_outermost(self, module: Any) -> _Model | None:
        """Return what is known of it; None inside another call or a backward, where it is traced, or learns nothing."""
        if self._is_inside or self._is_backward or is_compiling() or get_ident() != MAIN:
            return None
        model: _Model | None = self._find_guarded(module)
        return model

    def _find_model(self, module: Any) -> _Model | None:
        model = self._models.get(id(module))
        if model is None or model.module() is not module:
            wrapper = next(filter(_name_wrapper, module.modules()), None)
            spread = (lambda: None) if wrapper is None else weakref.ref(wrapper)
            model = self._models[id(module)] = _Model(
                weakref.ref(module), self._num_models, spread, _name_wrapper(wrapper)
            )
            self._num_models += 1
        learner = model.learner()
        if learner is not None and learner.requires_grad:
            # A discriminator is frozen in every second step alone.
            model.is_frozen = False
            return model
        if model.is_frozen and not self._steps.is_sampled:
            return None
        learner = next((parameter for parameter in module.parameters() if parameter.requires_grad), None)
        model.is_frozen = learner is None
        if learner is not None:
            model.learner = weakref.ref(learner)
        elif torch.is_grad_enabled() and any(True for _ in module.buffers(recurse=False)):
            # A loss may learn, too, by a mean of its own.
            self._steps.models.setdefault(module)
        return None if model.is_frozen else model

    def _run(self, original: Callable[..., Any], model: _Model, module: Any, arguments: Any, named: Any) -> Any:
        is_training = torch.is_grad_enabled()
        self._is_inside = True
        self._times.enter(timeline.OBSERVER, timeline.SCRIPT if is_training else None)
        try:
            self._begin_guarded(model, module, arguments, named, is_training)
            self._times.switch(timeline.FORWARD if is_training else timeline.EVALUATION)
            output = original(module, *arguments, **named)
            if self._drawing is not None:
                self._times.switch(timeline.OBSERVER)
                self._guard(self._see_drawn, *self._drawing)
            return output
        finally:
            self._times.leave(None if is_training else timeline.EVALUATION)
            self._is_inside, self._drawing = False, None

    def _begin_forward(self, model: _Model, module: Any, arguments: Any, named: Any, is_training: bool) -> None:
        fed = list_tensors((arguments, named) if named else (arguments,)) if get_transform() is None else []
        first = put_rows_first([pair for pair in fed if pair[1].dim()])
        given, ids, source = self._loaders.find([tensor for _, tensor in first], is_training=is_training)
        if not is_training:
            return
        steps, wrapper = self._steps, model.wrapper()
        is_read = steps.is_read
        is_start = is_read and steps.number == 0
        micro: Any = Micro(module=model.number, model=type(module).__name__)
        if given is not None:
            micro.loader, micro.ids = given.loader, ids
        if wrapper is not None:
            micro.wrapper = model.wrapper_name
            if isinstance(wrapper, DistributedDataParallel):
                micro.is_synchronised = bool(wrapper.require_backward_grad_sync)
                if is_start and not wrapper.broadcast_buffers:
                    micro.keeps_statistics = any(isinstance(item, _BATCH_NORMS[:-1]) for item in module.modules())
        if is_read:
            micro.line = self._lines.find()
            micro.precision = find_precision(model.learner(), first)
            # A wrapper that was made around a model in evaluation mode is itself in training mode.
            inner = module if wrapper is None else getattr(wrapper, "module", module)
            micro.is_training = bool(getattr(inner, "training", True))
        if is_start:
            micro.is_made = bool(source)
            micro.is_random = any(draws_at_random(item) for item in module.modules())
        if first:
            micro.shape = list(first[0][1].shape)
            micro.num_samples = len(ids) if ids else micro.shape[0]
            if is_start:
                micro.has_integers = any(
                    # One number for a row is a class of it, and no text.
                    result.dim() > 1
                    and len(result) == len(first[0][1]) == micro.num_samples
                    and not _is_beside(name)
                    and holds_whole_numbers(result)
                    for name, result in first
                )
            # Rows are compared in the first pass over them, and in the first steps with what they were in it.
            if is_read or given is None or (given.is_first_pass and (ids is None or 0 in map(_get_turn, ids))):
                self._describe(micro, first, source)
        # Between the kernels of a step it costs 0.04 ms, which is what it may cost once a step.
        is_first = is_read and all(item.module != model.number for item in steps.micros)
        steps.add(micro, module)
        if is_first and (name := name_computed(module, wrapper)):
            micro.computed = name
            device = model.learner().device
            self._drawing = micro, read_random_states(device), device

    def _see_drawn(self, micro: Any, before: list[torch.Tensor], device: torch.device) -> None:
        micro.has_drawn = has_drawn_since(before, device)

    def _describe(self, micro: Any, results: list[tuple[str, torch.Tensor]], source: list[torch.Tensor]) -> None:
        first, is_sampled = results[0][1], self._steps.is_sampled
        if first.device.type != "cpu" and not is_sampled:
            # It would have to be waited for.
            return
        by_name = {name.rpartition(".")[2]: tensor for name, tensor in reversed(results)}
        masks = (tensor for name, tensor in results[1:] if looks_like_mask(name, tensor, first))
        mask, labels = by_name.get(_MASK), by_name.get("labels")
        if mask is None:
            mask = next(masks, None)
        if first.device.type != "cpu":
            first = first.detach().cpu()
            mask, labels = (None if item is None else item.detach().cpu() for item in (mask, labels))
        if not is_on_host(first) or (mask is not None and not is_on_host(mask)):
            return
        micro.rows = self._digest(micro.ids, [*source, first][0], mask)
        room, tokens = _HEADS - self._heads, None
        # Numbers with a fraction are told from ids by operations of torch, which every step would pay for.
        if self._steps.is_read or not first.is_floating_point():
            # The first input that may hold ids.
            tokens = first if holds_whole_numbers(first) else next(
                (
                    result for name, result in results[1:]
                    if is_on_host(result) and len(result) == len(first) and result is not mask
                    and not _is_beside(name) and holds_whole_numbers(result)
                ),
                None,
            )  # fmt: skip
        micro.has_rows_of_ids = tokens is first
        if room > 0 and tokens is not None and tokens.dim() > 1 and len(tokens) == len(micro.ids or ()):
            heads = tokens.reshape(len(tokens), -1)[:room, :_HEAD_TOKENS]
            micro.heads = heads.long().tolist()
            micro.lengths = count_tokens(tokens.reshape(len(tokens), -1), mask)[:room]
            self._heads += len(micro.heads)
        if is_sampled:
            micro.mask = mask
            if labels is not None and mask is not None and labels.shape == mask.shape and labels.dim() > 1:
                micro.labels_are_mask = bool(torch.equal(labels.long(), mask.long()))

    def _digest(self, ids: list[int] | None, first: torch.Tensor, mask: torch.Tensor | None) -> list[str]:
        """Return digests of the rows; once many were seen, of those whose index says so, which every rank picks."""
        if ids is None or len(ids) != len(first) or self._steps.is_read:
            return digest_rows(first, mask)
        return [
            "" if _get_turn(item) else digest_rows(first[at : at + 1], None if mask is None else mask[at : at + 1])[0]
            for at, item in enumerate(ids)
        ]

    def _watch_loss(self, name: str) -> None:
        original, steps = getattr(torch.nn.functional, name), self._steps
        parameters = inspect.signature(original).parameters
        defaults = {key: parameter.default for key, parameter in parameters.items()}

        @functools.wraps(original)
        def observed(*arguments: Any, **named: Any) -> Any:
            output = original(*arguments, **named)
            if not is_dynamo_compiling() and steps.is_read and not is_compiling() and is_main_thread():
                given = defaults | dict(zip(parameters, arguments, strict=False)) | named
                self._times.charge(self._guard, self._see_loss, name, output, given)
            return output

        # TorchScript compiles what this returns, which is the loss as it was.
        observed.__prepare_scriptable__ = lambda: original  # type: ignore[attr-defined]
        setattr(torch.nn.functional, name, observed)

    def _see_loss(self, name: str, output: Any, given: dict[str, Any]) -> None:
        micro, target, is_of_classes = self._steps.open_micro, given["target"], name in _OF_CLASSES
        if micro is None or not isinstance(output, torch.Tensor) or not output.requires_grad:
            return
        micro.num_losses += 1
        if (
            get_transform() is not None
            or not self._steps.can_read(output)
            or any(given.get(weight) is not None for weight in _WEIGHTS)
            or (target.is_floating_point() if is_of_classes else target.shape != given["input"].shape)
        ):
            micro.is_weighted = True
            return
        micro.num_targets, micro.reduction = target.numel(), given["reduction"]
        micro.loss_of_model = float(output.detach()) if output.numel() == 1 else None
        if output.grad_fn is not None:
            self._last_loss = weakref.ref(output), output.grad_fn.name(), micro.loss_of_model
        is_learned = None
        if is_of_classes:
            kept, mask = target.detach().cpu(), micro.mask
            is_learned = kept != given["ignore_index"]
            micro.num_targets = int(is_learned.sum())
            micro.num_classes = given["input"].shape[1:2].numel()
            fed = next((item for item in reversed(self._steps.micros) if item.ids and not item.num_backwards), micro)
            if kept.dim() == 1 and len(kept) == len(fed.ids or ()):
                fed.classes = kept.tolist()
            if mask is not None and mask.dim() > 1 and mask.shape[1] > 1:
                # Whole, without the first place, and shifted by one with a place to spare, as transformers does.
                for cut in (mask, mask[:, 1:], torch.nn.functional.pad(mask, (0, 1), value=_IGNORED)[:, 1:]):
                    if kept.numel() == cut.numel() and torch.equal(kept.reshape(-1).long(), cut.reshape(-1).long()):
                        micro.labels_are_mask = True
        if output.grad_fn is not None:
            # The backward pass fills it, whichever micro-batch of several it has then been handed to. A hook on the
            # tensor itself would be pickled with it, and would be in the way of the script's own ones.
            weights = vars(micro).setdefault("weights", [])
            value = output.detach().clone() if micro.loss_of_model is None else micro.loss_of_model
            see = functools.partial(self._see_weight, weights, micro.num_targets, value, is_learned)
            hook = self._guard.wrap(see)
            output.grad_fn.register_prehook(untraced(hook) if is_compiler_used() else hook)

    def _see_weight(
        self, weights: list[Any], number: int, value: Any, is_learned: torch.Tensor | None, gradients: Any
    ) -> None:
        """Keep targets, weight and share of a loss in what is back-propagated, whatever else is added to that."""
        gradient = gradients[0]
        if not self._is_backward or type(gradient) is not torch.Tensor or not self._steps.can_read(gradient):
            return
        gradient = gradient.detach().cpu()
        learned = gradient[gradient != 0]
        # Of one that is no mean or sum yet: the targets that a mask leaves, if all weigh the same.
        if len(learned) and learned.min() == learned.max():
            if gradient.numel() > 1:
                number = len(learned) if is_learned is None else int((gradient != 0)[is_learned].sum())
                value = value.cpu()
            weights.append((number, float(learned[0]), float((gradient * value).sum())))

    def _read_loss(self, tensors: Any, gradients: Any = None, *_: Any) -> None:
        loss: Any = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        is_one = isinstance(loss, torch.Tensor) and loss.numel() == 1 and self._steps.can_read(loss)
        value = float(loss.detach()) if is_one else None
        of_loss, made_by, before = self._last_loss
        if is_one and of_loss() is loss and loss.grad_fn is not None and loss.grad_fn.name() == made_by:
            # What was summed over the ranks in its place, to be printed, is no other loss to autograd.
            value = before
        scale: Any = gradients if isinstance(gradients, torch.Tensor) else next(iter(gradients or ()), None)
        if value is not None and isinstance(scale, torch.Tensor) and scale.numel() == 1:
            value *= float(scale)
        self._steps.add_backward(value, self._lines.find())


def _name_wrapper(module: Any) -> str:
    """Return the kind of wrapper that a module is, by itself or by what it is made from; empty for none."""
    return next((kind.__name__ for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS), "")


def _is_beside(name: str) -> bool:
    return name.rpartition(".")[2] in (_MASK, "labels")


def read_random_states(device: torch.device) -> list[torch.Tensor]:
    """Return the states of the generators that a model on this device draws from; nothing here waits for the device."""
    states = [torch.default_generator.get_state()]
    # While a graph is captured nobody may ask.
    if device.type == "cuda" and not is_captured():
        states.append(torch.cuda.default_generators[device.index or 0].get_state())
    return states


def has_drawn_since(before: list[torch.Tensor], device: torch.device) -> bool:
    """Return whether a model on this device has drawn random numbers since these states were read."""
    return not all(map(torch.equal, before, read_random_states(device)))


def name_computed(module: Any, wrapper: Any) -> str:
    """Return the kind of module whose forward pass is a call of `module`, whatever it is wrapped in; empty if unknown.

    Only passes of one kind can be compared: around another module there may be the loss, and what is drawn for it.
    """
    plain = get_uncompiled(module)
    if plain is wrapper:
        plain = getattr(plain, "module", plain)
    kinds = [kind.__name__ for kind in type(get_uncompiled(plain)).__mro__]
    return "" if _TRAINED_BY_A_STEP_OF_ITS_OWN in kinds else kinds[0]


def find_precision(learner: Any, results: list[tuple[str, torch.Tensor]]) -> str:
    """Return what a model computes in: by autocast on the device of its inputs, else the type of a parameter."""
    device = results[0][1].device.type if results else "cpu"
    if torch.is_autocast_enabled(device):
        return f"autocast {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
    return "" if learner is None else str(learner.dtype).removeprefix("torch.")


def draws_at_random(module: torch.nn.Module) -> bool:
    """Return whether a module computes something else of a row every time, or with other rows beside it."""
    if not module.training:
        return False
    if isinstance(module, _BATCH_NORMS):
        return True
    results = [getattr(module, name, 0) for name in ("p", "dropout", "drop_prob", "attention_dropout")]
    return any(isinstance(result, float) and result > 0 for result in results)
