"""Image classification: torchvision's ResNets with group or batch normalisation, and its vision transformer.

Batch normalisation is over the rows that all ranks have at once (training/model/sync_norm.py). Over those of each rank
alone, what is saved and evaluated would depend on the number of ranks, and is refused (docs/decisions.md,
"Batch normalisation is over the rows of all ranks").
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.config import SegmentConfig, TrainingConfig
from training.data.augmentation import Augmentation
from training.data.batches import IGNORED_LABEL, MicroBatch, Rows, make_weightless, opened_arrays
from training.model.sync_norm import SyncBatchNorm, list_statistics
from training.model.weights import load_weights
from training.process.failure import BadCheckpointError, UnfitModelError


@dataclass(frozen=True)
class ImageRows:
    """The rows of one range, memory-mapped: nothing is read before it is used."""

    images: np.ndarray
    """(num_rows, 3, size, size) uint8."""
    labels: np.ndarray
    """(num_rows,) int64: the class of each row, by its place among the sorted names of all classes."""
    row_ids: np.ndarray
    """(num_rows,) int64: position of each row in the data set."""
    augmentation: Augmentation | None = None
    """What is done to the images; None: nothing, as in every evaluation."""

    def __len__(self) -> int:
        return len(self.row_ids)

    def lengths(self, seq_len: int) -> np.ndarray:
        """Return the same for every row, since all are as large: (num_rows,) int64; `seq_len` has no meaning here.

        It is how many patches of 8 x 8 pixels an image has, so that a batch of many images is as large as of tokens.
        """
        return np.full(len(self), max(1, self.images[0].size // (3 * 64)), dtype=np.int64)

    def num_tokens(self, seq_len: int) -> np.ndarray:
        """Return 1 for every row, which is an image: (num_rows,) int64."""
        return np.ones(len(self), dtype=np.int64)

    def num_targets(self, seq_len: int) -> np.ndarray:
        """Return 1 for every row, which has one label: (num_rows,) int64."""
        return np.ones(len(self), dtype=np.int64)

    def collate(self, rows: Sequence[int], *, seq_len: int, is_packed: bool = False) -> MicroBatch:
        """Return the rows as one micro-batch."""
        chosen = list(rows)
        images, row_ids = np.array(self.images[chosen]), np.array(self.row_ids[chosen])
        if self.augmentation is not None:
            images = self.augmentation.apply(images, row_ids.tolist())
        ones = np.ones(len(chosen), dtype=np.int64)
        return MicroBatch(
            input_ids=torch.from_numpy(images),
            labels=torch.from_numpy(np.array(self.labels[chosen])),
            label_places=torch.arange(len(chosen)),
            row_ids=row_ids,
            sample_num_tokens=ones,
            sample_num_targets=ones,
            num_padding_tokens=0,
        )

    def make_dummy_micro_batch(self, seq_len: int) -> MicroBatch:
        """Return one black image that weighs nothing."""
        return make_blank_micro_batch(self.images.shape[-1])


UNIT = "image"
HAS_LABELS = True
HAS_PROMPTS = False
TOP = 5

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the channels (red, green, blue; 0 to 1) of photographs: what every image is normalised with."""
_DUMMY_SIZE = 32
_GROUPS = (1, 2, 4, 8, 16, 32, 64)
_MOST = {
    "image_size": 1024, "patch_size": 64, "num_layers": 64, "num_heads": 64, "hidden_dim": 4096, "mlp_dim": 16_384,
}  # fmt: skip
"""Sizes of a vision transformer: larger ones in a file would take all memory before anything else is noticed."""


def augment_rows(rows: Rows, config: TrainingConfig, segment: SegmentConfig) -> Rows:
    """Return the rows as the segment trains on them."""
    if config.augment == "none":
        return rows
    assert isinstance(rows, ImageRows), "rows of another workload"
    return dataclasses.replace(
        rows, augmentation=Augmentation(kind=config.augment, seed=config.seed, epoch=segment.epoch)
    )


def make_dummy_micro_batch(seq_len: int) -> MicroBatch:
    """Return one small black image that weighs nothing."""
    return make_blank_micro_batch(_DUMMY_SIZE)


def build_network(config: dict[str, Any]) -> nn.Module:
    """Return the network that a model folder's config.json describes, with random weights.

    Raises BadCheckpointError if it describes none that is known here.
    """
    # Here, not above: only those who train on images have to have it.
    from torchvision.models import VisionTransformer, resnet18, resnet50

    kind, classes = config.get("model_type"), config.get("class_names")
    sizes: dict[str, Any] = {name: config.get(name) for name in _MOST}
    num_classes = len(classes) if isinstance(classes, list) else 0
    network: nn.Module
    if num_classes > 1 and kind in ("resnet18", "resnet50"):
        norm: Callable[..., nn.Module] | None = SyncBatchNorm if config.get("norm") == "sync_batch" else None
        if config.get("norm") == "group" and config.get("num_groups") in _GROUPS:
            norm = partial(nn.GroupNorm, config["num_groups"])
        if norm is not None:
            build = resnet18 if kind == "resnet18" else resnet50
            network = build(weights=None, num_classes=num_classes, norm_layer=norm)
            return network
    elif (
        num_classes > 1
        and kind == "vit"
        and all(type(size) is int and 1 <= size <= _MOST[name] for name, size in sizes.items())
        and sizes["image_size"] % sizes["patch_size"] == 0 == sizes["hidden_dim"] % sizes["num_heads"]
    ):
        network = VisionTransformer(**sizes, num_classes=num_classes)
        return network
    raise BadCheckpointError(
        f"config.json: got {str(config)[:200]}; allowed: model_type resnet18 or resnet50, norm sync_batch, or group "
        f"and a power of 2 up to 64 as num_groups, or model_type vit with {', '.join(_MOST)} that divide; and names "
        "of classes"
    )


def load_model(model_dir: Path, *, checkpoint: Path | None = None) -> nn.Module:
    """Return the model of a folder in fp32 on the CPU, or with the weights of a checkpoint file.

    Raises BadCheckpointError if the folder or the checkpoint is not loadable or is not one of this model.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_model as load_safetensors

    # What fp32 means elsewhere here; by default convolutions, other than products, would be rounded to 10 bits on CUDA.
    torch.backends.cudnn.allow_tf32 = False
    try:
        model = build_network(json.loads((model_dir / "config.json").read_bytes()))
        if checkpoint is None:
            load_safetensors(model, model_dir / "model.safetensors", strict=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, BadCheckpointError):
            raise
        raise BadCheckpointError(f"{model_dir}: not loadable: {' '.join(str(error).split())[:300]}") from None
    if checkpoint is not None:
        load_weights(model, checkpoint)
    return model


def outline_model(model_dir: Path) -> nn.Module:
    """Return the model that a folder's config.json describes, as `load_model` gives it but for its numbers."""
    torch.backends.cudnn.allow_tf32 = False
    return build_network(json.loads((model_dir / "config.json").read_bytes()))


def can_pack(model: nn.Module, config: TrainingConfig) -> bool:
    """Return False: an image is no sequence."""
    return False


def prepare(model: nn.Module, config: TrainingConfig) -> None:
    """Raise UnfitModelError for what images cannot be trained with."""
    rows = config.statistics_rows
    if list_statistics(model) and rows != config.micro_batch_size * config.world_size:
        raise UnfitModelError(
            f"norm: sync_batch over {rows} rows with micro_batch_size {config.micro_batch_size} x {config.world_size} "
            "ranks; use micro-batches of which all ranks have so many rows at once"
        )
    if config.device == "cpu" and config.precision != "fp32":
        # Gradients of layers with few pixels then hold what was in memory before; and see pytorch issue 163347.
        raise UnfitModelError(
            f"precision: {config.precision} on CPU, where torch's convolutions in 16 bit are wrong on small images; "
            "use precision: fp32, or a GPU"
        )


def has_dropout(model: nn.Module) -> bool:
    """Return False: these networks draw nothing; what is done to an image is the same wherever it is trained on."""
    return False


def loss_sum(
    model: nn.Module,
    micro_batch: MicroBatch,
    *,
    scale: Tensor | None = None,
    chunk_rows: int = 1,
) -> Tensor:
    """Return the summed cross-entropy (nats) of the micro-batch's labels: () float32."""
    images, labels = micro_batch.input_ids, micro_batch.labels
    wanted, size = getattr(model, "image_size", None), images.shape[-1]
    if wanted is not None and wanted > size == _DUMMY_SIZE and len(images) == 1:
        # The black image that weighs nothing, as large as a vision transformer wants it.
        images = F.pad(images, (0, wanted - size, 0, wanted - size))
    if not micro_batch.num_samples and list_statistics(model):
        # A black image would be in the statistics of the other ranks' rows; an empty batch is not.
        images, labels = images[:0], labels[:0]
    logits = model(_normalise(images)).float()
    return F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum")


def metrics(model: nn.Module, micro_batch: MicroBatch) -> dict[str, Tensor]:
    """Return the sums over the rows of the loss, of right first guesses, and of labels among the first five."""
    logits = model(_normalise(micro_batch.input_ids)).float()
    labels = micro_batch.labels
    guesses = logits.topk(min(TOP, logits.shape[1]), dim=1).indices
    is_right = guesses == labels[:, None]
    return {
        "loss": F.cross_entropy(logits, labels, ignore_index=IGNORED_LABEL, reduction="sum"),
        "correct": is_right[:, 0].sum(),
        "correct_top5": is_right.any(dim=1).sum(),
    }


def _normalise(images: Tensor) -> Tensor:
    """Return uint8 images as float32, each channel with about mean 0 and deviation 1; on the images' device."""
    channels = zip(images.unbind(1), _MEAN, _STD, strict=True)
    # With plain numbers: a tensor of them would have to be copied to the device, for which the host would wait.
    return torch.stack([(channel / 255 - mean) / std for channel, mean, std in channels], dim=1)


def make_blank_micro_batch(size: int) -> MicroBatch:
    """Return a black image of so many pixels a side, whose label is ignored and which is no sample."""
    images = torch.zeros((1, 3, size, size), dtype=torch.uint8)
    return make_weightless(images, torch.full((1,), IGNORED_LABEL))


def open_images(folder: Path) -> ImageRows:
    """Return the rows of a folder with images.npy, labels.npy and row_ids.npy.

    Raises ValueError if the three do not belong together, BadCheckpointError if one is no plain array.
    """
    images, labels, row_ids = opened_arrays(folder, "images", "labels", "row_ids")
    if len(row_ids) == 0:
        raise ValueError(f"{folder}: got 0 rows; allowed: at least 1")
    if images.ndim != 4 or images.dtype != np.uint8 or not len(images) == len(labels) == len(row_ids):
        raise ValueError(
            f"{folder}: {images.dtype} images {images.shape}, {len(labels)} labels and {len(row_ids)} row ids do not "
            "belong together; the slice stage makes them anew"
        )
    return ImageRows(images=images, labels=labels, row_ids=row_ids)


open_slice = open_images
