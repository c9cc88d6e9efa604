"""The built-in base models for images: torchvision's networks with random weights."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.process.files import write_json

_log = logging.getLogger(__name__)

NUM_GROUPS = 32
NORMS: dict[str, dict[str, Any]] = {
    "group": {"norm": "group", "num_groups": NUM_GROUPS},
    "sync_batch": {"norm": "sync_batch"},
}
"""model.norm in params.yaml -> what config.json says of it, of a ResNet."""
CONFIGS: dict[str, dict[str, Any]] = {
    "resnet18": {"model_type": "resnet18"},
    "resnet50": {"model_type": "resnet50"},
    "vit-b-16": {
        "model_type": "vit", "patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072,
    },
}  # fmt: skip
"""Name in params.yaml -> what config.json says of it, beside the classes; a vit is built for one size of images."""
SEED = 20_151_210
"""Of what is drawn: random weights, and the head of pretrained ones."""


def make_config(
    name: str, class_names: Sequence[str], *, image_size: int | None = None, norm: str | None = None
) -> dict[str, Any]:
    """Return the content of config.json of the network `name` for these classes."""
    config = {**CONFIGS[name], "class_names": list(class_names)}
    of_kind = {"image_size": image_size} if config["model_type"] == "vit" else NORMS[norm or "group"]
    return config | of_kind


def write_image_network(
    folder: Path, name: str, class_names: Sequence[str], *, image_size: int | None = None, norm: str | None = None
) -> None:
    """Fill `folder` with config.json and fp32 safetensors weights of the network `name` for these classes.

    The same classes, size of images (pixels of a side) and versions of torch and torchvision give the same bytes. The
    caller's random state is left as it was.
    """
    import torch
    from safetensors.torch import save_model

    from training.workloads.image_classification import build_network

    config = make_config(name, class_names, image_size=image_size, norm=norm)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = build_network(config)
    write_json(folder / "config.json", config)
    save_model(network, str(folder / "model.safetensors"))
    # safetensors lets only the owner read what it writes.
    (folder / "model.safetensors").chmod(0o644)
    _log.info("%s: %d classes, random weights", name, len(class_names))
