"""An emulated device: a real small model, real gradients and a real DDP, whose layers, link and loader sleep.

For what the numbers of a comparison cannot show on a machine without GPUs: 1 to 8 ranks on two cores scale as the
described devices would, and the truth is known. What is described, and how: training/emulated_device.py. Nothing here
depends on what the samples hold: a micro-batch takes its time, be it long or short.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from training.config import SegmentConfig, TrainingConfig
from training.data import IGNORED_LABEL, MicroBatch, dummy_micro_batch, open_slice
from training.emulated_device import read_device
from training.emulated_rank import EmulatedLink, EmulatedRank
from training.rows import Rows
from training.weights import load_weights

__all__ = [
    "HAS_LABELS", "UNIT", "augmented", "can_pack", "dummy_micro_batch", "has_dropout", "load_model", "loss_sum",
    "metrics", "open_slice", "prepare", "tied_weight",
]  # fmt: skip

UNIT = "token"
HAS_LABELS = False

_NUM_TARGETS = 97


class EmulatedModel(nn.Module):
    """Predicts a number for every token: the sum of what each layer has learned for it."""

    def __init__(self, model_dir: Path) -> None:
        super().__init__()
        self.device = read_device(model_dir)
        self.rank = EmulatedRank(self.device)
        self.link = EmulatedLink(self.rank)
        generator = torch.Generator().manual_seed(self.device.seed)
        self.layers = nn.ParameterList(
            torch.randn(self.device.parameters_per_layer, generator=generator) / self.device.num_layers
            for _ in range(self.device.num_layers)
        )

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the predictions for tokens of any shape: the same shape, float32."""
        self.rank.begin_forward()
        places = input_ids.flatten() % self.device.parameters_per_layer
        predicted = torch.zeros(places.shape, device=places.device)
        for index, weight in enumerate(self.layers):
            is_last = index == self.device.num_layers - 1
            predicted = _Layer.apply(predicted, weight, places, self.rank, is_last)
        return predicted.view(input_ids.shape)


class _Layer(torch.autograd.Function):
    """predicted + weight[places], in as long as the device takes."""

    @staticmethod
    def forward(
        ctx: Any, predicted: Tensor, weight: Tensor, places: Tensor, rank: EmulatedRank, is_last: bool
    ) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rank, ctx.is_last, ctx.size = rank, is_last, len(weight)
        after = predicted + weight[places]
        rank.run_layer(rank.device.forward_ms)
        return after

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (places,) = gradients, ctx.saved_tensors
        if ctx.is_last:
            ctx.rank.begin_backward()
        of_weight = gradient.new_zeros(ctx.size).index_add_(0, places, gradient)
        ctx.rank.run_layer(ctx.rank.device.backward_ms)
        return gradient, of_weight, None, None, None


def load_model(model_dir: Path, *, checkpoint: Path | None = None) -> EmulatedModel:
    """Return the model of a folder that write_device wrote, or with the weights of a checkpoint file.

    Raises ValueError if config.json does not describe a device, BadCheckpointError if the checkpoint is not one of it.
    """
    model = EmulatedModel(model_dir)
    if checkpoint is not None:
        load_weights(model, checkpoint)
    return model


def has_dropout(model: nn.Module) -> bool:
    """Return False: nothing that a step computes is drawn, only how long it takes."""
    return False


def loss_sum(
    model: nn.Module,
    micro_batch: MicroBatch,
    *,
    scale: Tensor | None = None,
    chunk_rows: int = 1,
    head_weight: Tensor | None = None,
) -> Tensor:
    """Return half the squared error, summed over the micro-batch's label tokens: () float32.

    What is to be predicted is a number from 0 to 1 for the token that follows.
    """
    labels = micro_batch.labels
    errors = model(micro_batch.input_ids) - (labels % _NUM_TARGETS) / _NUM_TARGETS
    return (errors.square() * (labels != IGNORED_LABEL)).sum() / 2


def emulated_device(model: nn.Module) -> EmulatedRank:
    """Return the model's device on this rank, for what is not the model's: loading and copying a micro-batch."""
    return _emulated(model).rank


def bucket_mib(model: nn.Module, asked: float | None) -> float:
    """Return the size of a real bucket (MiB) that stands for one of the asked size on the device (None: 25 MiB)."""
    return _emulated(model).device.real_bucket_mib(asked)


def before_update(model: nn.Module) -> Callable[..., None]:
    """Return what an optimizer is to call before each of its steps: it takes the time of the update."""
    rank = _emulated(model).rank
    return lambda *_: rank.update()


def gradient_hook(
    model: nn.Module, *, communicates: bool = True
) -> Callable[[object, dist.GradBucket], Future[Tensor]]:
    """Return a communication hook of DDP, to be registered with the group of the gradients as its state.

    Without communication every rank keeps its own gradient at once; what the wrapper itself costs is paid either way.
    """
    emulated = _emulated(model)

    def exchange(group: object, bucket: dist.GradBucket) -> Future[Tensor]:
        emulated.rank.run_wrapper()
        if communicates:
            return emulated.link.average(bucket.buffer(), group)
        kept: Future[Tensor] = Future()
        kept.set_result(bucket.buffer())
        return kept

    return exchange


def _emulated(model: nn.Module) -> EmulatedModel:
    assert isinstance(model, EmulatedModel), f"{type(model).__name__} is not the model of this workload"
    return model


def augmented(rows: Rows, config: TrainingConfig, segment: SegmentConfig) -> Rows:
    """Return the rows as they are."""
    return rows


def metrics(model: nn.Module, micro_batch: MicroBatch) -> dict[str, Tensor]:
    """Return the loss and nothing else."""
    return {"loss": loss_sum(model, micro_batch)}


def prepare(model: nn.Module, config: TrainingConfig) -> None:
    """Leave the model as it is."""


def can_pack(model: nn.Module, config: TrainingConfig) -> bool:
    """Return False: a micro-batch takes its time however its rows stand in it."""
    return False


def tied_weight(model: nn.Module) -> nn.Parameter | None:
    """Return None: there is no embedding."""
    return None
