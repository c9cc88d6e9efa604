"""Pretrained weights of torchvision's ResNets in a file, made into a model folder with a head for the data."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.data.builtin.image_networks import CONFIGS, NORMS, SEED
from tasks.params.sources import ModelParams
from tasks.process.failure import DataError
from training.process.failure import BadCheckpointError
from training.process.files import write_json

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

_log = logging.getLogger(__name__)

_HEAD = ("fc.weight", "fc.bias")
_PREFIX = "module."
"""Before every name in what a model wrapped in DataParallel or DistributedDataParallel has saved."""


def write_pretrained_network(model: ModelParams, folder: Path, class_names: Sequence[str]) -> str:
    """Fill `folder` with config.json and model.safetensors of the file's network; return what its head is, in words.

    A state dict, by itself or under `state_dict`, as torch saves it (loaded as tensors alone) or as safetensors. Its
    own head is kept where it tells as many classes apart as the data has; else one is drawn, the same in every run.
    Raises DataError for a file of anything else, and for another normalisation than model.norm says.
    """
    import torch
    from safetensors.torch import save_model

    from training.model.weights import list_differences
    from training.workloads.image_classification import build_network

    tensors, norm = _read(model), model.norm or "group"
    has_statistics = any(name.endswith(".running_mean") for name in tensors)
    if has_statistics != (norm == "sync_batch"):
        what, allowed = ("", "sync_batch") if has_statistics else ("no ", "group")
        raise DataError(
            f"model.norm: got {model.norm}, and {model.location} has {what}running statistics of batch normalisation; "
            f"allowed: {allowed}"
        )
    differences: list[str] = []
    for name in ("resnet18", "resnet50"):
        config = {**CONFIGS[name], **NORMS[norm], "class_names": list(class_names)}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            network = build_network(config)
        own = network.state_dict()
        # What counts batches changes nothing, and older files do not have it.
        found = {key: part for key, part in own.items() if key.endswith(".num_batches_tracked")} | tensors
        keeps_head = all(key in found and found[key].shape == own[key].shape for key in _HEAD)
        if not keeps_head:
            found |= {key: own[key] for key in _HEAD}
        differences = list_differences(found, own)
        if not differences:
            network.load_state_dict(found, strict=True)
            write_json(folder / "config.json", config)
            save_model(network, str(folder / "model.safetensors"))
            (folder / "model.safetensors").chmod(0o644)
            head = "its own head" if keeps_head else f"a new head for {len(class_names)} classes"
            _log.info("%s: a %s, with %s", model.source, name, head)
            return head
    raise DataError(
        f"model.source {model.source}: weights of neither resnet18 nor resnet50 of torchvision ({differences[0]}); "
        "allowed: a state dict of one of them"
    )


def _read(model: ModelParams) -> "dict[str, Tensor]":
    """Return the tensors of the file by name, fp32 where they are floats; raises DataError if there are none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from training.model.weights import load_tensors

    file = Path(model.location)
    try:
        held: dict[str, Any] = load_file(file) if file.suffix == ".safetensors" else load_tensors(file)
    except (BadCheckpointError, SafetensorError, OSError, ValueError) as error:
        raise DataError(
            f"model.source {model.source}: {' '.join(str(error).split())[:300]}; allowed: a state dict as torch.save "
            "writes it since torch 1.6, or safetensors"
        ) from None
    inner = held.get("state_dict")
    named: dict[str, Any] = dict(inner) if isinstance(inner, Mapping) else held
    return {
        str(name).removeprefix(_PREFIX): part.float() if part.is_floating_point() else part
        for name, part in named.items()
        if hasattr(part, "is_floating_point")
    }
