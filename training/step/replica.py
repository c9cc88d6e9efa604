"""A step on one rank: forward, backward and the optimizer, of a model that each rank has whole."""

import contextlib
import ctypes
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.config import TrainingConfig
from training.data.batches import MicroBatch
from training.model.adapter import Adapter, adapt
from training.model.attention_kernels import DTYPES, choose_attention_kernels
from training.model.layers import recompute_layers
from training.model.sync_norm import keep_statistics
from training.model.weights import has_numbers
from training.process.heartbeat import StepSection
from training.step.optimizer import build_optimizer, get_local_rows, group_parameters, list_moments
from training.workloads import Workload

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""glibc's names (malloc.h): free bytes at the end of the heap above which it shrinks; bytes from which on a piece is no
part of the heap."""
_NEVER = 2**31 - 1
_LARGEST_IN_HEAP = 32 * 2**20
"""The largest that every glibc takes. Larger pieces are few, and would leave large holes."""


def prepare_model(model: nn.Module, workload: Workload, config: TrainingConfig, device: torch.device) -> Adapter | None:
    """Make of the base model, which is on the CPU, the one that is trained; return its adapter, if it has one."""
    choose_attention_kernels(device)
    if device.type == "cpu" and has_numbers(model):
        keep_freed_memory()
    workload.prepare(model, config)
    adapter = adapt(model, config, device=device)
    if config.activation_checkpointing == "layers":
        recompute_layers(model)
    return adapter


class Replica:
    """Gradients are added up by `forward_backward`, one micro-batch at a time, and applied by `optimizer_step`.

    Weights, gradients and optimizer state are fp32 whatever the precision of forward and backward. No step waits for
    the device.
    """

    def __init__(
        self,
        model: nn.Module,
        workload: Workload,
        config: TrainingConfig,
        device: torch.device,
        *,
        adapter: Adapter | None = None,
        updated: Collection[nn.Parameter] | None = None,
    ) -> None:
        """`model`: prepared, and where its weights are to be; `updated`: which of its parameters this rank updates, all
        of them unless somebody else updates the others.
        """
        self.module = model.train()
        self.adapter = adapter
        self.device = device
        self._workload = workload
        self._chunk_rows = config.loss_chunk_rows
        self._has_dropout = workload.has_dropout(model)
        self._max_grad_norm = config.max_grad_norm
        self._dtype = DTYPES[config.precision]
        self._keeps_casts = config.activation_checkpointing == "none"
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        """What is trained."""
        if config.exact and device.type == "cuda":
            # Without it some kernels, such as the backward of attention, add in whatever order their threads come.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        own = set(self.parameters if updated is None else updated)
        self.optimizer = build_optimizer(
            [
                {"params": [part for part in group if part in own], "weight_decay": weight_decay}
                for weight_decay, group in group_parameters(self.parameters, config)
            ],
            config,
        )
        """What turns a gradient into an update."""
        self.clip: Callable[[Sequence[nn.Parameter]], Tensor] = self._clip_whole
        """Scales the gradient down by the norm of the whole, and returns that; a rank with a part has another."""
        self.moments = list_moments(config)
        """What the optimizer keeps of every parameter."""
        self._scaler = torch.amp.GradScaler(device.type, enabled=config.precision == "fp16")
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._is_compiled, self._is_warm = config.compile, False
        self._accumulates = config.global_batch_size > config.micro_batch_size * config.world_size
        self._seq_len = config.seq_len
        self.on_section: Callable[[StepSection], None] = lambda _: None
        """Told what comes next: forward, backward, update."""

    def may_overflow(self) -> bool:
        """Return whether a step with a non-finite gradient is a normal event: under fp16, until scaling cannot help.

        Waits for the device under fp16.
        """
        return self._scaler.is_enabled() and self._scaler.get_scale() >= 1.0

    def generate_warm_up_steps(
        self, micro_batch: MicroBatch, *, begins_alone: bool = False
    ) -> Iterator[list[MicroBatch]]:
        """Yield the micro-batches of each step to run before a real one, with its gradient to be forgotten after it.

        That is the micro-batch; the first time twice, with all in memory that a real step finds there: the moments and,
        where a step has several micro-batches, the gradient of another. `begins_alone`: it runs alone before that.
        """
        with keep_statistics(self.module):
            if self._is_warm:
                yield [micro_batch]
                return
            self._is_warm = True
            # Freed when the last step has run: the optimizer takes the same memory in its first step.
            moments = [
                torch.empty_like(part)
                for group in self.optimizer.param_groups
                for part in group["params"]
                for _ in self.moments
                if not self.optimizer.state.get(part)
            ]
            if begins_alone or self._is_compiled or not self._accumulates:
                yield [micro_batch]
            if self._is_compiled:
                # A single sequence is compiled for by itself; a dummy is one.
                yield [self._workload.make_dummy_micro_batch(self._seq_len).to(self.device)]
            yield [micro_batch] * (2 if self._accumulates else 1)
            moments.clear()

    @contextlib.contextmanager
    def keep_casts(self) -> Iterator[None]:
        """Have autocast keep its 16-bit copies of the weights, while inside, instead of for one forward.

        For the micro-batches of one step: no weight may change inside. Not where layers are run again in the backward:
        who asks for that has no room for copies that wait.
        """
        if not self._keeps_casts:
            yield
            return
        torch.autocast_increment_nesting()
        try:
            yield
        finally:
            torch.autocast_decrement_nesting()
            torch.clear_autocast_cache()

    def forward_backward(self, model: nn.Module, micro_batch: MicroBatch, *, weight: float) -> None:
        """Run forward and backward; `model` is the module itself or a wrapper around it.

        The gradient of (sum of the micro-batch's losses) x `weight` is added to the parameters'.
        """
        self.on_section(StepSection.FORWARD)
        loss_sum = self.forward(model, micro_batch, weight=weight)
        self.on_section(StepSection.BACKWARD)
        self._scaler.scale(loss_sum * weight).backward()
        self.count_loss(loss_sum)

    def forward(self, model: nn.Module, micro_batch: MicroBatch, *, weight: float = 1.0) -> Tensor:
        """Return the micro-batch's sum of losses, () float32: `weight`: what its backward is given."""
        if self._has_dropout and self.module.training:
            torch.manual_seed(micro_batch.dropout_seed)
        scale = self._scaler.scale(torch.full((), weight, device=self.device))
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            return self._workload.loss_sum(model, micro_batch, scale=scale, chunk_rows=self._chunk_rows)

    def count_loss(self, loss_sum: Tensor) -> None:
        """Add what `forward` gave to this rank's sum of losses."""
        self._loss_sum += loss_sum.detach()

    @contextlib.contextmanager
    def evaluate(self) -> Iterator[None]:
        """Have the model run as when it is used, without dropout and as it was written, while inside."""
        self.module.eval()
        try:
            with torch.compiler.set_stance("force_eager"):
                yield
        finally:
            self.module.train()

    def optimizer_step(self, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Clip and apply the gradient, and forget it; return this rank's sum of losses and the gradient's L2 norm.

        A gradient that is not finite changes no parameter and no optimizer state: the fused kernel skips it on the
        device, without telling the host.
        """
        self.on_section(StepSection.UPDATE)
        self._scaler.unscale_(self.optimizer)
        grad_norm = self.clip(self.parameters)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if not self._scaler.is_enabled():
            # What GradScaler.step sets under fp16, for the same purpose.
            self.optimizer.found_inf = (~grad_norm.isfinite()).float()  # type: ignore[attr-defined]
        self._scaler.step(self.optimizer)
        self._scaler.update()
        loss_sum = self.reset()
        # Of weights that stay on the host it is there.
        return loss_sum, grad_norm.to(self.device)

    def _clip_whole(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Scale the gradient down to the largest norm allowed; return the norm that it had."""
        return nn.utils.clip_grad_norm_(parameters, self._max_grad_norm, foreach=True)

    def take_gradient(self) -> list[Tensor]:
        """Return what was added up and drop it here, parameter by parameter; raises ValueError if one has none."""
        gradient = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if len(gradient) < len(self.parameters):
            unused = [name for name, part in self.module.named_parameters() if part.requires_grad and part.grad is None]
            raise ValueError(f"the loss does not depend on {', '.join(unused[:5])}; allowed: parameters that are used")
        self.zero_grad()
        return gradient

    def put_gradient(self, gradient: Sequence[Tensor]) -> None:
        """Have `optimizer_step` apply this gradient, parameter by parameter."""
        for parameter, part in zip(self.parameters, gradient, strict=True):
            parameter.grad = part

    def reset(self) -> Tensor:
        """Drop what was added up; return the sum of its losses."""
        self.zero_grad()
        loss_sum, self._loss_sum = self._loss_sum, torch.zeros_like(self._loss_sum)
        return loss_sum

    def zero_grad(self) -> None:
        """Drop the gradient, but not the losses."""
        for parameter in self.parameters:
            parameter.grad = None

    def has_finite_gradient(self) -> bool:
        """Return whether all of what was added up is finite."""
        gradients = (part.grad for part in self.module.parameters() if part.grad is not None)
        return all(bool(gradient.isfinite().all()) for gradient in gradients)

    def collect_others(self) -> dict[str, Tensor]:
        """Return what the next update depends on beside parameters and moments, and all ranks have."""
        factors = {} if self.adapter is None else self.adapter.factors()
        return {**factors, "loss scale": torch.tensor(self._scaler.get_scale())}

    def state_of_all(self) -> dict[str, Any]:
        """Return what of the state of a snapshot all ranks have."""
        state = {"scaler": self._scaler.state_dict(), "rng": torch.get_rng_state()}
        if self.adapter is not None:
            state["adapter"] = {name: part.cpu() for name, part in self.adapter.factors().items()}
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up this rank's part of a state; raises ValueError if optimizer or loss scale are then others."""
        self.optimizer.load_state_dict(state["optimizer"])
        for moments in self.optimizer.state.values():
            # On the CPU torch takes over the tensors that it is given, which may lie in a mapped file.
            for name, value in moments.items():
                moments[name] = value.clone() if isinstance(value, Tensor) and value.device.type == "cpu" else value
        self._scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])
        restored = self.optimizer.state_dict()["state"]
        for index, kept in state["optimizer"]["state"].items():
            for name, saved in kept.items():
                value = restored.get(index, {}).get(name)
                mine, its = (
                    get_local_rows(item).cpu() if isinstance(item, Tensor) else item for item in (value, saved)
                )
                if not (torch.equal(mine, its) if isinstance(mine, Tensor) else mine == its):
                    raise ValueError(f"{name} of parameter {index} is not what was saved after it was restored")
        if self._scaler.state_dict() != state["scaler"]:
            raise ValueError(f"the loss scale is {self._scaler.state_dict()} after {state['scaler']} was restored")


def keep_freed_memory() -> bool:
    """Have this process keep what it frees for what it allocates next; return whether it does.

    False, and nothing is changed, where the environment says how memory is to be had, and without glibc.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    return change is not None and all(
        change(name, value) == 1 for name, value in ((_MMAP_THRESHOLD, _LARGEST_IN_HEAP), (_TRIM_THRESHOLD, _NEVER))
    )
