"""The steps of the script: an optimizer step, and the micro-batches that it learned from."""

import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ddp_audit.observer import timeline
from ddp_audit.observer.clocks import ScriptLines
from ddp_audit.observer.record import Guard, Line, Record
from ddp_audit.observer.samples import digest_tensors, get_elements
from ddp_audit.observer.torch_private import (
    count_collectives,
    count_sharded_dimensions,
    has_hooks,
    is_compiler_used,
    list_kept_buffers,
    untraced,
)
from ddp_audit.process.flight_recorder import read_recorded

_OFTEN_UNTIL = 4
_READ_UNTIL = 64
_MOST_UNUSUAL = 12
_MOST_DIGESTED = 1 << 14
_STATISTICS = "running_"
"""How the buffers of normalisation begin, by which no training mode computes."""
_NO_NUMBER = (lambda: None), 0
_KEPT_SECONDS = 0.5
"""Steps are written together, after so long; longer ones one by one."""


class Micro(SimpleNamespace):
    """One forward and backward. An object holds what is known of it, which is what is written."""

    num_losses = num_backwards = 0

    def __getattr__(self, name: str) -> Any:
        """Return None: it is not known."""


class Steps:
    """Counts optimizer steps and writes a line for each."""

    def __init__(
        self, record: Record, guard: Guard, times: timeline.Timeline, place: timeline.Place, lines: ScriptLines
    ) -> None:
        self._record, self._guard, self._times, self._place, self._lines = record, guard, times, place, lines
        self.number = 0
        """Steps that are over."""
        self._is_sampled = self._is_read = True
        self.is_lost = False
        """Whether a backward came that belongs to no call of a model that is watched."""
        self.micros: list[Any] = []
        self.on_first: Any = lambda _parameters: None
        self.on_learned: Any = lambda: None
        self.on_lost = self.on_flush = self.on_learned
        self.stated: dict[str, Any] = {}
        """What the script itself says of the step that is under way."""
        self._kept: list[dict[str, Any]] = []
        self._flushed_at = 0.0
        self._depth = self._num_inside = self._num_collectives = self._num_unusual = 0
        self._counts: dict[str, int] = {}
        self._clips: list[dict[str, Any]] = []
        self._left: dict[str, Any] | None = None
        self._seen: dict[str, Any] = {}
        self._is_changed_early = self._is_stale = self._do_take_turns = False
        self._num_cleared = 0
        self._of_gradient: dict[str, Any] = {}
        self._start: dict[str, Any] | None = None
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        """Every one that made a step, in that order: two that take turns would be sampled at one's steps alone."""
        self._numbers: dict[int, tuple[Callable[[], Any], int]] = {}
        """The same by their `id`, which takes a step less time to find."""
        self.models: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        """Those that were called: an optimizer that is none of torch's may train them, too, or they learn without."""
        self._hooks: list[tuple[Any, Any, Any]] = []
        """Of optimizers: the handle of each, what a compiler does not trace, and what costs less without one."""
        self._wrapper: Any = None
        self._backward_line: Line | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether the step that is under way is looked at closely: the first few, then every power of two."""
        return self._is_sampled and not is_captured()

    @property
    def is_read(self) -> bool:
        """Whether numbers of the step that is under way are read: of the first 64, too."""
        return self._is_read and not is_captured()

    def can_read(self, tensor: torch.Tensor) -> bool:
        """Return whether numbers of this step are read: on a GPU, which has to be waited for, of sampled ones alone."""
        return self.is_sampled or (self.is_read and tensor.device.type == "cpu")

    @property
    def open_micro(self) -> Any:
        """The micro-batch that went forward last and not yet backward."""
        return self.micros[-1] if self.micros and not self.micros[-1].num_backwards else None

    def watch(self) -> None:
        """From now on optimizers and clipping are watched."""
        for register, see in (
            (register_optimizer_step_pre_hook, self._guard.wrap(self._begin)),
            (register_optimizer_step_post_hook, self._guard.wrap(self._end)),
        ):
            # A compiler would trace them, where it compiles the optimizer's step.
            hook = untraced(see)
            self._hooks.append((register(hook), hook, see))
        for name in ("clip_grad_norm_", "clip_grads_with_norm_"):
            observed = self._make_observed_clip(getattr(torch.nn.utils, name))
            for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
                setattr(owner, name, observed)

    def add(self, micro: Micro, module: Any) -> None:
        """A model was called, with gradients to come."""
        if not self.micros:
            if self.number == 0:
                rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
                self._place.open(self._record.claim(rank))
            self._place.position = (self.number + 1) << 32
        self.micros.append(micro)
        self._num_inside += self._depth > 0
        self._wrapper = module
        if self.is_sampled:
            self.models.setdefault(module)

    def add_backward(self, loss: float | None = None, line: Line | None = None) -> None:
        """A loss is about to be back-propagated."""
        waiting = [micro for micro in self.micros if not micro.num_backwards]
        self._backward_line = line or self._backward_line
        if not self.micros:
            self.is_lost = True
            self.on_lost()
            self.micros.append(Micro(num_backwards=1, loss=loss, line=line))
        elif not waiting:
            self.micros[-1].num_backwards += 1
        else:
            joined = waiting[0] if len(waiting) == 1 else _join(waiting)
            joined.num_backwards = 1
            if loss is not None:
                joined.loss = loss
            if len(waiting) > 1:
                self.micros = [micro for micro in self.micros if micro.num_backwards]

    def see_gradient(self, *, is_after: bool) -> None:
        """A backward pass begins or is over: what it leaves is what the optimizer finds, unless the script changes it.

        The next one adds to that, or begins anew: whoever has changed it did not see all of the gradient. The first one
        of a step finds nothing, unless what the optimizer found last is still there.
        """
        if self.is_sampled and self._optimizers and not self._do_take_turns:
            before, self._seen = self._seen, digest_gradients(self._list_all_parameters())
            now = self._seen
            if is_after:
                # What it adds nothing to is a copy that the script makes of a gradient, such as one in 32 bits.
                self._left = now if now.get("is_zero") or now["digests"] != before.get("digests") else None
            elif not now["digests"] or now.get("is_zero"):
                self._num_cleared += self._left is not None
                self._left, self._is_stale = None, False
            elif self._left:
                self._is_changed_early |= not _is_same_or_unscaled(self._left, now)
            elif not self._depth:  # within the step, as for a closure, it was looked at when that began
                self._is_stale = now["digests"] == self._of_gradient["gradient"]["digests"]

    def _judge_gradient(self, optimizer: Any) -> None:
        """Keep what is known of the gradient that the optimizer has found; begin with the next one.

        Of all optimizers together, where the first one begins every step: the others then use what one backward left.

        `is_gradient_kept`: whether it is what the last backward left; None where that was not looked at.
        `left`: some elements of what that left.
        `is_gradient_changed_early`: whether something changes it before all of it is summed up over the ranks.
        `is_gradient_stale`: whether it begins with that of the step before; `num_cleared`: how often it began anew.
        """
        parameters = _list_parameters(optimizer) if self._do_take_turns else self._list_all_parameters()
        gradient = digest_gradients(parameters)
        self._of_gradient = {
            "gradient": gradient,
            "is_gradient_kept": self._left and _is_same_or_unscaled(self._left, gradient),
            "left": self._left and self._left["head"],
            "is_gradient_changed_early": self._is_changed_early or has_hooks(parameters, self._wrapper),
            "is_gradient_stale": self._left and self._is_stale,
            "num_cleared": self._num_cleared,
        }
        self._left, self._is_changed_early, self._is_stale, self._num_cleared = None, False, False, 0

    def _begin(self, optimizer: Any, *_: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        if self.is_read and optimizer not in self._optimizers:
            number = self._optimizers[optimizer] = len(self._optimizers)
            self._numbers[id(optimizer)] = weakref.ref(optimizer), number
            self._times.charge(self.on_first, _list_parameters(optimizer))
        if not self.is_sampled:
            self._times.enter(timeline.OPTIMIZER)
            return
        self._times.enter(timeline.OBSERVER)
        self._start = digest_tensors(self._list_all_parameters(self.models))
        if self.micros:  # else it is a second one of the same step, or is given a closure
            self._judge_gradient(optimizer)
        self._times.switch(timeline.OPTIMIZER)

    def _end(self, optimizer: Any, *_: Any) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        if self.micros:
            self._times.switch(timeline.OBSERVER)
            self._keep(optimizer)
        self._times.leave()

    def _keep(self, optimizer: Any) -> None:
        """Keep what the step was: between its kernels a line of Python costs ten times what it costs elsewhere."""
        counts = count_collectives()
        num_collectives = sum(counts.values()) - sum(self._counts.values()) if counts else 0
        of, known = self._numbers.get(id(optimizer), _NO_NUMBER)
        number = known if of() is optimizer else None
        self._do_take_turns |= number != 0
        rates: list[Any] = []
        for group in optimizer.param_groups[:16]:
            rate = group.get("lr")
            # What cannot change is read when it is written.
            rates.append(_read_number(rate) if isinstance(rate, torch.Tensor) else rate)
        fields: dict[str, Any] = {
            "step": self.number + 1,
            "lr": rates,
            "micros": self.micros,
            "optimizer_number": number,
            "num_collectives": num_collectives,
        }
        if self.stated:
            fields["told"], self.stated = self.stated, {}
        if self._clips:
            fields["clips"], self._clips = self._clips, []
        if self._num_inside:
            # The optimizer was given a closure, and asked it for gradients: as LBFGS does, and Lightning.
            fields["num_inside"] = self._num_inside
        # A step that exchanges more than the one before may be where models are averaged.
        is_unusual = num_collectives != self._num_collectives and self._num_unusual < _MOST_UNUSUAL
        self._num_unusual += is_unusual
        if self.is_sampled or (is_unusual and not is_captured()):
            fields["traffic"] = read_traffic(self._counts, counts) if counts else {}
        if self.is_sampled:
            if self._num_inside:
                self._judge_gradient(optimizer)
            weights = digest_tensors(self._list_all_parameters(self.models))
            buffers = self._digest_buffers(_list_parameters(optimizer))
            fields |= {"start": self._start, "weights": weights, "buffers": buffers, **self._of_gradient}
            if self.number == 0:
                fields |= self._describe_first(optimizer, _list_parameters(optimizer))
            else:
                for handle, *hooks in self._hooks:
                    handle.hooks_dict_ref()[handle.id] = hooks[not is_compiler_used()]
        fields["seconds"] = mark = self._times.mark()
        self._kept.append(fields)
        if self.is_sampled or mark[0] - self._flushed_at >= _KEPT_SECONDS:
            self._flushed_at = mark[0]
            self.flush()
        if self.is_lost or not self.number:
            self.on_learned()
        self._num_collectives, self._counts, self.micros = num_collectives, counts, []
        self._num_inside, self.is_lost = 0, False
        self.number += 1
        self._is_sampled = self.number < _OFTEN_UNTIL or (self.number + 1) & self.number == 0
        self._is_read = self._is_sampled or self.number < _READ_UNTIL

    def _describe_first(self, optimizer: Any, parameters: list[torch.Tensor]) -> dict[str, Any]:
        state = getattr(getattr(sys.modules.get("accelerate.state"), "PartialState", None), "_shared_state", {})
        is_spread = dist.is_available() and dist.is_initialized()
        held = {id(item): item for model in list(self.models) for item in (*parameters, *model.parameters())}
        # Parameters without elements yet have no shape.
        known = [item for item in held.values() if not is_lazy(item)]
        return {
            "optimizer": type(optimizer).__name__,
            # Of a wrapper around one they are not known.
            "optimizer_options": hasattr(torch.optim, type(optimizer).__name__) and read_options(optimizer),
            "num_parameters": sum(item.numel() for item in parameters),
            "num_held": sum(item.numel() for item in known),
            "num_sharded_dimensions": max(map(count_sharded_dimensions, known), default=0),
            "parameter_bytes": sum(item.numel() * item.element_size() for item in parameters),
            "trainable_bytes": sum(item.numel() * item.element_size() for item in parameters if item.requires_grad),
            "device": parameters[0].device.type if parameters else "",
            "seed": torch.initial_seed(),
            "accelerate": str(getattr(state.get("distributed_type"), "value", "")),
            "num_threads": torch.get_num_threads(),
            "torch_settings": {
                "compiler in use": is_compiler_used(),
                "detect_anomaly": torch.is_anomaly_enabled(),
                "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
                "float32_matmul_precision": torch.get_float32_matmul_precision(),
                "cudnn.deterministic": torch.backends.cudnn.deterministic,
                "cudnn.benchmark": torch.backends.cudnn.benchmark,
            },
            "backend": str(dist.get_backend()) if is_spread else "",
            "world_size": dist.get_world_size() if is_spread else 1,
            "step_line": self._lines.find(),
            "backward_line": self._backward_line,
        }

    def flush(self) -> None:
        """Write the steps that were kept."""
        kept, self._kept = self._kept, []
        self._times.count()
        for fields in kept:
            fields["lr"] = [_read_number(value) for value in fields["lr"]]
            fields["micros"] = [{**vars(micro), "mask": micro.mask is not None} for micro in fields["micros"]]
            fields["seconds"] = self._times.take(fields["seconds"][1])
        if kept:
            self._record.write_all("step", kept)
        self.on_flush()

    def _list_all_parameters(self, models: Iterable[Any] = ()) -> list[torch.Tensor]:
        results = [parameter for optimizer in list(self._optimizers) for parameter in _list_parameters(optimizer)]
        device = results[0].device if results else None
        of_models = (parameter for model in list(models) for parameter in model.parameters())
        # What has no elements yet has no device, or no shape.
        results += [item for item in of_models if item.requires_grad and item.device == device and not is_lazy(item)]
        return list({id(result): result for result in results}.values())[:_MOST_DIGESTED]

    def _digest_buffers(self, parameters: list[torch.Tensor]) -> dict[str, str]:
        """Return name -> digest of what models save beside parameters, where these are: of numbers with a fraction."""
        held = {
            f"{type(model).__name__}.{name}": buffer
            for model in list(self.models)
            for name, buffer in list_kept_buffers(model).items()
        }
        known = {
            name: buffer for name, buffer in held.items()
            if buffer.is_floating_point() and not is_lazy(buffer)
            and buffer.device in {item.device for item in parameters[:1]}
            and not name.rpartition(".")[2].startswith(_STATISTICS)
        }  # fmt: skip
        return dict(zip(known, digest_tensors(list(known.values()))["digests"], strict=False))

    def _make_observed_clip(self, original: Any) -> Any:
        @functools.wraps(original)
        def clip(parameters: Any, *arguments: Any, **named: Any) -> Any:
            norm = original(parameters, *arguments, **named)
            if self.is_read:
                # clip_grads_with_norm_(parameters, max_norm, total_norm) is told the norm, and returns nothing.
                given = dict(zip(("max_norm", "total_norm"), arguments, strict=False)) | named
                self._guard(self._see_clip, given.get("total_norm") if norm is None else norm, given.get("max_norm"))
            return norm

        return clip

    def _see_clip(self, norm: Any, limit: Any) -> None:
        if isinstance(norm, torch.Tensor):
            if not self.can_read(norm):
                return
            norm = float((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).detach())
        limit = _read_number(limit)
        # Without a limit it is a norm that somebody looks at, perhaps of one rank's part.
        if isinstance(norm, float) and math.isfinite(norm) and limit != math.inf:
            self._clips.append({"norm": norm, "limit": limit, "line": self._lines.find()})


def is_captured() -> bool:
    """Return whether a CUDA graph is being captured: whoever reads a number of the device meanwhile breaks it."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _join(waiting: list[Any]) -> Any:
    """Return what one backward belongs to, of several calls of models before it: the last one that was fed rows."""
    last = waiting[-1]
    fed = next((micro for micro in reversed(waiting) if micro.loader is not None), last)
    known = [item.is_synchronised for item in waiting if item.is_synchronised is not None]
    fed.is_synchronised, fed.num_losses = max(known, default=None), sum(item.num_losses for item in waiting)
    if fed is not last:
        names = "is_weighted", "num_targets", "reduction", "loss_of_model", "weights", "labels_are_mask", "num_classes"
        for name in names:
            setattr(fed, name, getattr(last, name))
    return fed


def _list_parameters(optimizer: Any) -> list[torch.Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]][:_MOST_DIGESTED]


def _read_number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else None
    return float(value) if isinstance(value, int | float) else None


def read_traffic(before: dict[str, int], now: dict[str, int]) -> dict[str, list[int]] | None:
    """Return kind -> [number, bytes given] of the collectives between two counts; None where not all are told."""
    wanted = [(name, number) for name in now for number in range(before.get(name, 0) + 1, now[name] + 1)]
    recorded = read_recorded(str(dist.get_backend())) if wanted else {}
    results: dict[str, list[int]] = {}
    for at in wanted:
        kind, num_bytes = recorded.get(at, ("", None))
        if num_bytes is None:
            return None
        number, total = results.get(kind, (0, 0))
        results[kind] = [number + 1, total + num_bytes]
    return results


def digest_gradients(parameters: list[torch.Tensor]) -> dict[str, Any]:
    """Return the digest of those that there are."""
    gradients: list[Any] = [parameter.grad for parameter in parameters if parameter.grad is not None]
    tensors = digest_tensors(gradients)
    if gradients and tensors["l2"] == 0:
        # Of most tensors some elements alone were looked at.
        tensors["is_zero"] = not any(bool(get_elements(part).any()) for part in gradients)
    return tensors


def _is_same_or_unscaled(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether a gradient is what it was, or a power of two of it, as where a loss was scaled for fp16."""
    if before["digests"] == after["digests"]:
        return True
    if not all(item["l2"] > 0 and math.isfinite(item["l2"]) for item in (before, after)):
        return False
    scale: float = after["l2"] / before["l2"]
    power = 2.0 ** round(math.log2(scale))
    return math.isclose(scale, power, rel_tol=1e-9) and after["head"] == [item * power for item in before["head"]]


def read_options(optimizer: Any) -> dict[str, list[Any]]:
    """Return option -> its values, of the groups of parameters in their order, each once."""
    results = {}
    for name in optimizer.defaults:
        values = [group.get(name) for group in optimizer.param_groups]
        parts = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
        if all(part is None or isinstance(part, int | float) for part in parts):
            results[name] = list(dict.fromkeys(values))
    return results
