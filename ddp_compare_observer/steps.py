"""The steps of the script: an optimizer step, and the micro-batches that it learned from."""

import functools
import math
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ddp_compare_observer import timeline
from ddp_compare_observer.clocks import ScriptLines
from ddp_compare_observer.exchanged import count_collectives, read_traffic
from ddp_compare_observer.record import Guard, Line, Record, read_clock
from ddp_compare_observer.samples import digest_tensors

_NONE = SimpleNamespace(_shared_state=None)
_OFTEN_UNTIL = 4
_READ_UNTIL = 64
_MOST_UNUSUAL = 12
_MOST_DIGESTED = 1 << 14


@dataclass
class Micro:
    """One forward and backward; None, 0 or "" is for what is not known."""

    ids: list[int] | None = None
    loader: int | None = None
    module: int = 0
    wrapper: str = ""
    model: str = ""
    line: Line | None = None
    is_synchronised: bool | None = None
    precision: str = ""
    attention: str = ""
    num_samples: int = 0
    shape: list[int] = field(default_factory=list)
    rows: list[str] | None = None
    heads: list[list[int]] | None = None
    num_tokens: int | None = None
    has_mask: bool = False
    labels_are_mask: bool = False
    num_losses: int = 0
    is_weighted: bool = False
    num_targets: int | None = None
    reduction: str = ""
    loss_of_model: float | None = None
    loss: float | None = None
    num_backwards: int = 0
    mask: Any = None


class Steps:
    """Counts optimizer steps and writes a line for each."""

    def __init__(
        self, record: Record, guard: Guard, times: timeline.Timeline, place: timeline.Place, lines: ScriptLines
    ) -> None:
        self._record, self._guard, self._times, self._place, self._lines = record, guard, times, place, lines
        self.number = 0
        """Steps that are over."""
        self.is_lost = False
        """Whether a backward came that belongs to no call of a model that is watched."""
        self.micros: list[Micro] = []
        self.on_first: Any = lambda _parameters: None
        self.on_step: Any = lambda: None
        self.on_lost: Any = lambda: None
        self.take_device_seconds: Any = dict
        self.told: dict[str, Any] = {}
        """What the script itself says of the step that is under way."""
        self._depth = self._num_inside = 0
        self._counts: dict[str, int] = {}
        self._num_collectives = self._num_unusual = 0
        self._clips: list[dict[str, Any]] = []
        self._gradient: dict[str, Any] | None = None
        self._start: dict[str, Any] | None = None
        self._wrapper: Any = None
        self._backward_line: Line | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether the step that is under way is looked at closely: the first few, then every power of two."""
        step = self.number + 1
        return step <= _OFTEN_UNTIL or step & (step - 1) == 0

    def can_read(self, tensor: torch.Tensor) -> bool:
        """Return whether numbers of this step are read: on a GPU, which has to be waited for, of sampled ones alone."""
        return self.is_sampled or (tensor.device.type == "cpu" and self.number < _READ_UNTIL)

    @property
    def open_micro(self) -> Micro | None:
        """The micro-batch that went forward last and not yet backward."""
        return self.micros[-1] if self.micros and not self.micros[-1].num_backwards else None

    def watch(self) -> None:
        """From now on optimizers and clipping are watched."""
        register_optimizer_step_pre_hook(lambda optimizer, *_: self._guard(self._begin, optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self._guard(self._end, optimizer))
        self._watch_clipping()

    def add(self, micro: Micro, module: Any) -> None:
        """A model was called, with gradients to come."""
        if not self.micros:
            self._place.begin(self.number + 1)
        self.micros.append(micro)
        self._num_inside += self._depth > 0
        self._wrapper = module

    def add_backward(self, loss: float | None, line: Line | None) -> None:
        """A loss is about to be back-propagated."""
        waiting = [micro for micro in self.micros if not micro.num_backwards]
        self._backward_line = line
        if not waiting:
            if not self.micros:
                self.is_lost = True
                self.on_lost()
                self.micros.append(Micro(num_backwards=1, loss=loss, line=line))
            else:
                self.micros[-1].num_backwards += 1
            return
        joined = _join(waiting)
        joined.num_backwards, joined.loss = 1, loss
        self.micros = [micro for micro in self.micros if micro.num_backwards]

    def _begin(self, optimizer: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._times.enter(timeline.OBSERVER)
        if self.number == 0 and self._start is None:
            parameters = _list_parameters(optimizer)
            self._start = digest_tensors(parameters)
            self.on_first(parameters)
        if self.is_sampled:
            parameters = _list_parameters(optimizer)
            self._gradient = _digest_gradients(parameters)
        self._times.leave()
        self._times.enter(timeline.OPTIMIZER)

    def _end(self, optimizer: Any) -> None:
        self._depth -= 1
        if self._depth > 0:
            return
        self._times.leave()
        if not self.micros:
            # A second optimizer of the same step.
            return
        self._times.enter(timeline.OBSERVER)
        self._write(optimizer)
        self._times.leave()

    def _write(self, optimizer: Any) -> None:
        is_sampled = self.is_sampled
        counts = count_collectives()
        fields: dict[str, Any] = {
            "step": self.number + 1,
            "at": read_clock(),
            "lr": [_read_number(group.get("lr")) for group in optimizer.param_groups][:16],
            "micros": [_describe(micro) for micro in self.micros],
            "num_collectives": sum(counts.values()) - sum(self._counts.get(name, 0) for name in counts),
        }
        if self.told:
            fields["told"] = self.told
        if self._clips:
            fields["clips"] = self._clips
        if self._num_inside:
            # The optimizer was given a closure, and asked it for gradients: as LBFGS does, and Lightning.
            fields["num_inside"] = self._num_inside
        # A step that exchanges more than the one before may be where models are averaged.
        is_unusual = fields["num_collectives"] != self._num_collectives and self._num_unusual < _MOST_UNUSUAL
        self._num_unusual += is_unusual
        self._num_collectives = fields["num_collectives"]
        if is_unusual and not is_sampled:
            fields["traffic"] = read_traffic(self._counts, counts)
        if is_sampled:
            parameters = _list_parameters(optimizer)
            fields |= {
                "weights": digest_tensors(parameters),
                "gradient": _digest_gradients(parameters) if self._num_inside else self._gradient,
                "traffic": read_traffic(self._counts, counts) if counts else {},
                "ddp": _read_ddp_times(self._wrapper),
            }
        if self.number == 0:
            fields |= self._describe_setting(optimizer)
        if device_seconds := self.take_device_seconds():
            fields["device_seconds"] = device_seconds
        self.number += 1
        self._times.leave()
        fields["seconds"] = self._times.take()
        self._times.enter(timeline.OBSERVER)
        self._record.write("step", **fields)
        self._counts, self._clips, self._gradient, self.micros, self.is_lost = counts, [], None, [], False
        self.told, self._num_inside = {}, 0
        self.on_step()

    def _describe_setting(self, optimizer: Any) -> dict[str, Any]:
        parameters = _list_parameters(optimizer)
        return {
            "start": self._start,
            "optimizer": type(optimizer).__name__,
            "optimizer_options": {
                key: value for key, value in optimizer.defaults.items() if isinstance(value, int | float | bool)
            },
            "num_parameters": sum(one.numel() for one in parameters),
            "parameter_bytes": sum(one.numel() * one.element_size() for one in parameters),
            "device": parameters[0].device.type if parameters else "",
            "seed": torch.initial_seed(),
            "uses_accelerate": bool(
                getattr(sys.modules.get("accelerate.state"), "AcceleratorState", _NONE)._shared_state
            ),
            "num_threads": torch.get_num_threads(),
            "backend": str(dist.get_backend()) if dist.is_available() and dist.is_initialized() else "",
            "world_size": dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1,
            "step_line": self._lines.find(),
            "backward_line": self._backward_line,
        }

    def _watch_clipping(self) -> None:
        for name in ("clip_grad_norm_", "clip_grads_with_norm_"):
            original = getattr(torch.nn.utils, name, None)
            if original is not None:
                setattr(torch.nn.utils, name, self._make_observed_clip(original))

    def _make_observed_clip(self, original: Any) -> Any:
        @functools.wraps(original)
        def clip(parameters: Any, *arguments: Any, **named: Any) -> Any:
            norm = original(parameters, *arguments, **named)
            # clip_grads_with_norm_(parameters, max_norm, total_norm) is told the norm, and returns nothing.
            told = norm if norm is not None else named.get("total_norm", arguments[1] if len(arguments) > 1 else None)
            limit = named.get("max_norm", arguments[0] if arguments else None)
            self._guard(self._see_clip, told, limit)
            return norm

        return clip

    def _see_clip(self, norm: Any, limit: Any) -> None:
        if isinstance(norm, torch.Tensor):
            if not self.can_read(norm):
                return
            norm = float((norm.full_tensor() if hasattr(norm, "full_tensor") else norm).detach())
        limit = _read_number(limit)
        if isinstance(norm, float) and math.isfinite(norm):
            self._clips.append({"norm": norm, "limit": limit, "line": self._lines.find()})


def _join(waiting: list[Micro]) -> Micro:
    """Return what one backward belongs to, of several calls of models before it: the last one that was fed rows."""
    last = waiting[-1]
    fed = next((micro for micro in reversed(waiting) if micro.loader is not None), last)
    fed.is_synchronised = max((one.is_synchronised for one in waiting if one.is_synchronised is not None), default=None)
    if fed is not last:
        for name in ("num_losses", "is_weighted", "num_targets", "reduction", "loss_of_model", "labels_are_mask"):
            setattr(fed, name, getattr(last, name))
    return fed


def _describe(micro: Micro) -> dict[str, Any]:
    """Return what is known of a micro-batch."""
    micro.has_mask, micro.mask = micro.mask is not None, None
    found = {
        key: value
        for key, value in vars(micro).items()
        if value is not None and value is not False and value != "" and value != []
    }
    if micro.line is not None:
        found["line"] = micro.line
    return found


def _list_parameters(optimizer: Any) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]][:_MOST_DIGESTED]


def _digest_gradients(parameters: list[torch.Tensor]) -> dict[str, Any]:
    return digest_tensors([one.grad for one in parameters if one.grad is not None])


def _read_number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else None
    return float(value) if isinstance(value, int | float) else None


def _read_ddp_times(module: Any) -> dict[str, int] | None:
    """Return DDP's own clock of its backward and exchange, nanoseconds on average; None where there is no DDP."""
    if not hasattr(module, "_get_ddp_logging_data"):
        return None
    data = module._get_ddp_logging_data()
    names = ("avg_backward_comm_time", "avg_backward_compute_time", "avg_backward_compute_comm_overlap_time")
    return {name: int(data[name]) for name in names if name in data}
