"""The built-in base model for images: torchvision's ResNet18 with group normalisation and random weights."""

import logging
from collections.abc import Sequence
from pathlib import Path

from training.process.files import write_json

_log = logging.getLogger(__name__)

MODEL_TYPE = "resnet18"
NUM_GROUPS = 32
_SEED = 20_151_210


def write_resnet18(folder: Path, class_names: Sequence[str]) -> None:
    """Fill `folder` with config.json and fp32 safetensors weights for these classes.

    The same number of classes and versions of torch and torchvision give the same bytes. The caller's random state is
    left as it was.
    """
    import torch
    from safetensors.torch import save_model

    from training.workloads.image_classification import build_network

    config = {"model_type": MODEL_TYPE, "norm": "group", "num_groups": NUM_GROUPS, "class_names": list(class_names)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = build_network(config)
    write_json(folder / "config.json", config)
    save_model(network, str(folder / "model.safetensors"))
    # safetensors lets only the owner read what it writes.
    (folder / "model.safetensors").chmod(0o644)
    _log.info("resnet18: %d classes, random weights", len(class_names))
