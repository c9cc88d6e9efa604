"""Image classification, one image at a time, with a loss written out."""

import itertools
import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from training.data.augmentation import Augmentation
from training.data.batches import MicroBatch

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def read_rows(
    folder: Path, rows: Iterable[int], *, seq_len: int, augmentation: Augmentation | None = None
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield pixels, (3, size, size) from 0 to 255, and class of these rows of a slice, for compute_rows_loss.

    What is drawn for each comes from `augmentation`; what is made of it is done a second time here.
    """
    images, labels, row_ids = (
        np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("images", "labels", "row_ids")
    )
    for row in rows:
        image = np.array(images[row])
        if augmentation is not None:
            size = image.shape[-1]
            ((is_mirrored, down, right),) = augmentation.sample_transforms([int(row_ids[row])], size=size)
            framed = np.pad(np.flip(image, 2) if is_mirrored else image, ((0, 0), (size, size), (size, size)))
            image = framed[:, size - down : 2 * size - down, size - right : 2 * size - right].copy()
        yield image, int(labels[row])


def compute_rows_loss(
    model: Any, rows: Iterable[tuple[np.ndarray, int]], *, statistics_rows: int = 0
) -> tuple[float, int]:
    """Return the sum of -log p(class | image) in nats, and the number of images.

    The model runs in fp32, on so many rows together as batch normalisation is over, and else not in training; the
    logarithm and the sum are fp64.
    """
    loss_sum, num_images, left = 0.0, 0, iter(rows)
    device = next(model.parameters()).device
    with torch.inference_mode():
        while part := list(itertools.islice(left, statistics_rows or 1)):
            images = torch.from_numpy(np.stack([image for image, _ in part])).to(device)
            for logits, (_, label) in zip(model(_normalise_channels(images)).double(), part, strict=True):
                loss_sum += float(logits.logsumexp(0) - logits[label])
            num_images += len(part)
    return loss_sum, num_images


class BatchNorm(torch.nn.BatchNorm2d):
    """Batch normalisation of one process, which has the rows of all ranks (update.py keeps what it saw).

    Its values are rounded as those of the ranks, since the gradient of a ReLU jumps where rounding decides; its
    gradient is that of the formula, written out.
    """

    rows_per_rank: int = 0
    """How many rows come one after another from one rank; 0: all are one process's."""
    num_ranks: int = 1
    """How many ranks have them."""
    begins_with_last: bool = False
    """Whether the first rows are the last rank's."""
    multiplies_out: bool = False
    """Whether the formula is rows x scale + shift: the same gradient, rounded otherwise."""
    seen: tuple[torch.Tensor, torch.Tensor]
    """Of the last forward in training: mean and unbiased variance, (num_channels,)."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the rows normalised by their own mean and variance; in an evaluation by the running ones."""
        if not self.training:
            return super().forward(images)
        rows, num_values = images.float(), images.numel() // images.shape[1]
        mean, variance = self._merge(rows)
        self.seen = mean.detach(), variance.detach() * (num_values / max(num_values - 1, 1))
        is_alone = not self.rows_per_rank and num_values > 1
        values = torch.nn.functional.batch_norm(
            images.detach(),
            None if is_alone else mean.detach(),
            None if is_alone else variance.detach(),
            self.weight.detach(),
            self.bias.detach(),
            training=is_alone,
            eps=self.eps,
        )
        shape = (-1, 1, 1)
        scale = (self.weight / (variance + self.eps).sqrt()).view(shape)
        formula = (rows - mean.view(shape)) * scale + self.bias.view(shape)
        if self.multiplies_out:
            formula = rows * scale + (self.bias.view(shape) - mean.view(shape) * scale)
        return (values + (formula - formula.detach())).to(images.dtype)

    def _merge(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and variance of all rows, from those of each rank's."""
        parts = rows.split(self.rows_per_rank or len(rows))
        results = [torch.var_mean(part, (0, 2, 3), correction=0) for part in parts]
        numbers = [float(part.numel() // part.shape[1]) for part in parts]
        # Ranks without a row.
        missing = self.num_ranks - len(parts)
        results += [(torch.zeros_like(results[0][0]),) * 2] * missing
        numbers += [0.0] * missing
        if self.begins_with_last:
            results, numbers = results[::-1], numbers[::-1]
        variances, means = (torch.stack(kind) for kind in zip(*results, strict=True))
        shares = torch.tensor([number / sum(numbers) for number in numbers], device=rows.device)[:, None]
        mean = (means * shares).sum(0)
        return mean, ((variances + (means - mean).square()) * shares).sum(0)


def deal_rows(model: Any, *, rows_per_rank: int, num_ranks: int) -> None:
    """Have the model compute as so many ranks do that have so many rows each at once, rank after rank."""
    for part in model.modules():
        if isinstance(part, BatchNorm):
            part.rows_per_rank, part.num_ranks = rows_per_rank, num_ranks
        elif isinstance(part, torch.nn.Conv2d | torch.nn.Linear):
            part.forward = partial(_run_in_parts, part.forward, rows_per_rank)  # type: ignore[method-assign]


def _run_in_parts(run: Any, num_rows: int, rows: torch.Tensor) -> torch.Tensor:
    return torch.cat([run(part) for part in rows.split(num_rows)])


def load_model(model_dir: Path, *, device: str, is_packed: bool = False) -> Any:
    """Return the base model in fp32, ready to be trained."""
    from torchvision.models import VisionTransformer
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    torch.backends.cudnn.allow_tf32 = False
    config = json.loads((model_dir / "config.json").read_bytes())
    num_classes, model = len(config["class_names"]), None
    if config["model_type"] == "vit":
        sizes = ("image_size", "patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim")
        model = VisionTransformer(*(config[name] for name in sizes), num_classes=num_classes)
    else:
        block, depths = {"resnet18": (BasicBlock, [2, 2, 2, 2]), "resnet50": (Bottleneck, [3, 4, 6, 3])}[
            config["model_type"]
        ]
        norm: Any = BatchNorm
        if config["norm"] == "group":
            norm = partial(torch.nn.GroupNorm, config["num_groups"])
        model = ResNet(block, depths, num_classes=num_classes, norm_layer=norm)
    model.load_state_dict(load_file(model_dir / "model.safetensors"), strict=True)
    return model.to(device).train()


def loss_sum(model: Any, micro_batch: MicroBatch, *, chunk_rows: int) -> torch.Tensor:
    """Return the summed loss (nats) over a micro-batch's labels; -100 is no label."""
    for part in model.modules():
        if isinstance(part, BatchNorm):
            # Micro-batches are dealt to and fro.
            part.begins_with_last = bool(micro_batch.place and micro_batch.place % 2)
    logits = model(_normalise_channels(micro_batch.input_ids)).float()
    # Looked for on the host: how many there are is a shape.
    has_label = (micro_batch.labels.cpu() >= 0).nonzero().flatten().to(logits.device)
    labels = micro_batch.labels[has_label]
    log_probabilities = logits[has_label].log_softmax(1)
    return -log_probabilities[torch.arange(len(labels), device=labels.device), labels].sum()


def _normalise_channels(images: torch.Tensor) -> torch.Tensor:
    """Return bytes as numbers around 0, channel by channel."""
    # Plain numbers: on CUDA a division by a tensor is rounded otherwise.
    channels = [(images[:, index].float() / 255 - _MEAN[index]) / _STD[index] for index in range(3)]
    return torch.stack(channels, dim=1)
