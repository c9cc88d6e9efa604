"""Base models for images as folders of config.json and safetensors weights, checked and kept once."""

import importlib.metadata
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.data.builtin import image_networks
from tasks.data.builtin.image_networks import CONFIGS, NORMS, SEED
from tasks.params.choices import join_choices
from tasks.params.sources import BUILTIN_IMAGE_MODELS, ModelParams
from tasks.process.failure import ConfigurationError, DataError
from tasks.records.sources import BaseModelManifest
from tasks.store.kept import fill_folder, is_kept
from training.process.failure import BadCheckpointError
from training.process.files import digest_file, digest_json, write_json

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor


_HEAD = ("fc.weight", "fc.bias")
_PREFIX = "module."
"""Before every name in what a model wrapped in DataParallel or DistributedDataParallel has saved."""


_log = logging.getLogger(__name__)

STORE = Path(".work/download/models")
_FILES = ("config.json", "model.safetensors")
_NAMES = {
    "resnet18": "ResNet18",
    "resnet50": "ResNet50",
    "vit": "vision transformer",
}
_NORMS = {
    "group": " with group in place of batch normalisation",
    "sync_batch": " with batch normalisation over the rows of all ranks",
}
_MAX_CONFIG_BYTES = 10 * 2**20
_SIDE = 32


def store_image_model(model: ModelParams, *, class_names: Sequence[str], image_size: int | None = None) -> Path:
    """Return a folder with the model's two files and its manifest.json; made only if it is not stored whole yet.

    `image_size`: pixels of a side, for a model that is built for one size of images.

    Raises ConfigurationError for a model of something else than images, DataError if it does not tell these classes
    apart or cannot be loaded.
    """
    if model.kind == "hub" or (model.kind == "builtin" and model.location not in BUILTIN_IMAGE_MODELS):
        raise ConfigurationError(
            f"params.yaml: model.source: got {model.source!r} for images; allowed: "
            f"{join_choices('builtin:', BUILTIN_IMAGE_MODELS)}, path: and a folder with its config.json and "
            "model.safetensors, or path: and a file of a ResNet's weights"
        )
    identity = _make_identity(model, class_names, image_size)
    folder = STORE / digest_json(identity)[:32]
    if is_kept(folder):
        _log.info("%s: reused the model in %s", model.source, folder)
        return folder
    head = ""
    with fill_folder(folder) as new:
        if model.kind == "builtin":
            patch = image_networks.CONFIGS[model.location].get("patch_size")
            if patch is not None and (image_size is None or image_size % patch):
                raise ConfigurationError(
                    f"params.yaml: dataset.image_size: got {image_size} for {model.source}; allowed: a "
                    f"multiple of {patch}"
                )
            image_networks.write_image_network(new, model.location, class_names, image_size=image_size, norm=model.norm)
        elif Path(model.location).is_file():
            head = f" with {write_pretrained_network(model, new, class_names)}"
        else:
            _copy(Path(model.location), new, model.source)
        config, num_parameters = _check_model(new, class_names, image_size, model=model)
        model_type = config["model_type"]
        files = {name: digest_file(new / name) for name in _FILES}
        weights = "random weights (built-in)" if model.kind == "builtin" else Path(model.location).resolve().name + head
        network = _NAMES[model_type] + _NORMS.get(str(config.get("norm")), "")
        label = f"{network}, {num_parameters / 1e6:,.1f} M parameters, {weights}"
        BaseModelManifest(
            source=model.source,
            kind=model.kind,
            revision=None,
            commit=None,
            label=label,
            num_parameters=num_parameters,
            model_type=model_type,
            class_names=list(class_names),
            is_random_weights=model.kind == "builtin",
            digest=digest_json(files),
            files=files,
        ).write(new)
    _log.info("%s: %s, stored in %s", model.source, label, folder)
    return folder


def _make_identity(model: ModelParams, class_names: Sequence[str], image_size: int | None) -> dict[str, Any]:
    if model.kind == "builtin":
        return {
            "source": model.source,
            "class_names": list(class_names),
            "image_size": image_size,
            "norm": model.norm,
            "versions": {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "safetensors")},
            "code": digest_file(Path(image_networks.__file__)),
        }
    folder = Path(model.location)
    if folder.is_file():
        return {
            "source": model.source,
            "class_names": list(class_names),
            "norm": model.norm,
            "file": digest_file(folder),
            "versions": {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "safetensors")},
            "code": [digest_file(Path(image_networks.__file__)), digest_file(Path(__file__))],
        }
    files = {name: digest_file(folder / name) for name in _FILES if (folder / name).is_file()}
    return {"source": model.source, "class_names": list(class_names), "norm": model.norm, "files": files}


def _copy(folder: Path, target: Path, source: str) -> None:
    for name in _FILES:
        if not (folder / name).is_file():
            raise DataError(f"model.source {source}: {name} is missing; allowed: a folder with {' and '.join(_FILES)}")
        if name == "config.json" and (folder / name).stat().st_size > _MAX_CONFIG_BYTES:
            raise DataError(f"model.source {source}: {name} is larger than {_MAX_CONFIG_BYTES:,} bytes")
        # Copies, not links: DVC makes its outputs read-only, and the user's own files must stay as they are.
        shutil.copyfile(folder / name, target / name)


def _check_model(
    folder: Path, class_names: Sequence[str], image_size: int | None, *, model: ModelParams
) -> tuple[dict[str, Any], int]:
    """Return what config.json says of the network and the number of its parameters, having loaded it."""
    # torch takes seconds to import
    import torch

    from training.workloads.image_classification import ImageRows, load_model, loss_sum

    try:
        network, source = load_model(folder), model.source
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        got = config["class_names"]
    except BadCheckpointError as error:
        raise DataError(f"model.source {model.source}: {error}") from None
    if config.get("norm", "group") != (model.norm or "group"):
        raise DataError(
            f"model.norm: got {model.norm}, and config.json of {source} says {config.get('norm')}; allowed: the same"
        )
    if got != list(class_names):
        raise DataError(
            f"model.source {source}: it tells {str(got)[:100]} apart, and the data has {str(list(class_names))[:100]}; "
            "allowed: a model of the data's classes"
        )
    if config["model_type"] == "vit" and config["image_size"] != image_size:
        raise DataError(
            f"model.source {source}: it is for images of {config['image_size']} pixels a side, and "
            f"dataset.image_size is {image_size}; allowed: the same"
        )
    images = np.random.default_rng(0).integers(256, size=(2, 3, *[image_size or _SIDE] * 2), dtype=np.uint8)
    batch = ImageRows(images=images, labels=np.arange(2), row_ids=np.arange(2)).collate(range(2), seq_len=0)
    loss, parts = loss_sum(network.eval(), batch), [*network.parameters()]
    if not all(one.isfinite().all() for one in (loss, *torch.autograd.grad(loss, parts))):
        raise DataError(
            f"model.source {source}: two images have a loss or gradients that are not finite; allowed: finite"
        )
    return config, sum(part.numel() for part in parts)


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
