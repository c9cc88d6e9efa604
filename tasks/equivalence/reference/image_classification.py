"""Image classification, one image at a time, with a loss written out."""

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


def compute_rows_loss(model_dir: Path, rows: Iterable[tuple[np.ndarray, int]], *, device: str) -> tuple[float, int]:
    """Return the sum of -log p(class | image) in nats, and the number of images.

    The model runs in fp32; the logarithm and the sum are fp64.
    """
    model = load_model(model_dir, device=device).eval()
    loss_sum, num_images = 0.0, 0
    with torch.inference_mode():
        for image, label in rows:
            logits = model(_normalise_channels(torch.from_numpy(image)[None].to(device)))[0].double()
            loss_sum += float(logits.logsumexp(0) - logits[label])
            num_images += 1
    return loss_sum, num_images


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
        norm = partial(torch.nn.GroupNorm, config["num_groups"])
        model = ResNet(block, depths, num_classes=num_classes, norm_layer=norm)
    model.load_state_dict(load_file(model_dir / "model.safetensors"), strict=True)
    return model.to(device).train()


def loss_sum(model: Any, micro_batch: MicroBatch, *, chunk_rows: int) -> torch.Tensor:
    """Return the summed loss (nats) over a micro-batch's labels; -100 is no label."""
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
