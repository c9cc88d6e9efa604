"""Base models for images as folders of config.json and safetensors weights, checked and kept once."""

import importlib.metadata
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.data.sources.models import STORE, check_files, write_manifest
from tasks.params.sources import BUILTIN_IMAGE_MODELS, ModelParams
from tasks.process.failure import ConfigurationError, DataError
from tasks.store.kept import fill_folder, is_kept
from training.process.failure import BadCheckpointError
from training.process.files import digest_file, digest_json, write_json

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor


NUM_GROUPS = 32
CONFIGS: dict[str, dict[str, Any]] = {
    "resnet18": {"model_type": "resnet18"},
    "resnet50": {"model_type": "resnet50"},
    "vit-b-16": {
        "model_type": "vit", "patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072,
    },
}  # fmt: skip
"""Name in params.yaml -> what config.json says of it, beside the classes; a vit is built for one size of images."""
_SEED = 20_151_210
"""Of what is drawn: random weights, and the head of pretrained ones."""
_HEAD = ("fc.weight", "fc.bias")
_PREFIX = "module."
"""Before every name in what a model wrapped in DataParallel or DistributedDataParallel has saved."""


_log = logging.getLogger(__name__)

_FILES = ("config.json", "model.safetensors")
_NAMES = {"resnet18": "ResNet18", "resnet50": "ResNet50", "vit": "vision transformer"}
_NORMS = {
    "group": " with group in place of batch normalisation",
    "sync_batch": " with batch normalisation over the rows of all ranks",
}
_SIDE = 32


def store_image_model(model: ModelParams, *, class_names: Sequence[str], image_size: int | None = None) -> Path:
    """Return a folder with the model's two files and its manifest.json; made only if it is not stored whole yet.

    `image_size`: pixels of a side, for a model that is built for one size of images.

    Raises ConfigurationError for a model of something else than images, DataError if it does not tell these classes
    apart or cannot be loaded.
    """
    if model.kind == "hub" or (model.kind == "builtin" and model.location not in BUILTIN_IMAGE_MODELS):
        allowed = ", ".join(f"builtin:{name}" for name in BUILTIN_IMAGE_MODELS)
        raise ConfigurationError(
            f"params.yaml: model.source: got {model.source!r} for images; allowed: {allowed}, path: and a folder with "
            "its config.json and model.safetensors, or path: and a file of a ResNet's weights"
        )
    identity = _make_identity(model, class_names, image_size)
    folder = STORE / digest_json(identity)[:32]
    if is_kept(folder):
        _log.info("%s: reused the model in %s", model.source, folder)
        return folder
    with fill_folder(folder) as new:
        weights = Path(model.location).resolve().name
        if model.kind == "builtin":
            patch = CONFIGS[model.location].get("patch_size", 1)
            if (image_size or 1) % patch:
                raise ConfigurationError(
                    f"params.yaml: dataset.image_size: got {image_size} for {model.source}; allowed: a multiple of "
                    f"{patch}"
                )
            write_image_network(new, model.location, class_names, image_size=image_size, norm=model.norm)
            weights = "random weights (built-in)"
        elif Path(model.location).is_file():
            weights += f" with {write_pretrained_network(model, new, class_names)}"
        else:
            for name in _FILES:
                check_files([file := Path(model.location, name)], f"model.source {model.source}")
                # Copies, not links: DVC makes its outputs read-only, and the user's own files must stay as they are.
                shutil.copyfile(file, new / name)
        config, num_parameters = _check_model(new, class_names, image_size, model=model)
        network = _NAMES[config["model_type"]] + _NORMS.get(str(config.get("norm")), "")
        label = f"{network}, {num_parameters / 1e6:,.1f} M parameters, {weights}"
        write_manifest(
            new, model, commit=None, label=label, num_parameters=num_parameters, model_type=config["model_type"],
            class_names=list(class_names),
        )  # fmt: skip
    _log.info("%s: %s, stored in %s", model.source, label, folder)
    return folder


def _make_identity(model: ModelParams, class_names: Sequence[str], image_size: int | None) -> dict[str, Any]:
    """Return everything that the folder depends on."""
    place = Path(model.location)
    files = [place] if place.is_file() else [place / name for name in _FILES]
    return {
        "source": model.source,
        "class_names": list(class_names),
        "image_size": image_size,
        "norm": model.norm,
        "files": {file.name: digest_file(file) for file in files if file.is_file()},
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "torchvision", "safetensors")},
        "code": digest_file(Path(__file__)),
    }


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
    if not all(item.isfinite().all() for item in (loss, *torch.autograd.grad(loss, parts))):
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
    from training.model.weights import list_differences

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
        config = make_config(name, class_names, norm=norm)
        config["class_names"] = config.pop("class_names")  # last in the file, by whose bytes the model is known
        network = _draw_network(config)
        own = network.state_dict()
        # What counts batches changes nothing, and older files do not have it.
        results = {key: part for key, part in own.items() if key.endswith(".num_batches_tracked")} | tensors
        keeps_head = all(key in results and results[key].shape == own[key].shape for key in _HEAD)
        if not keeps_head:
            results |= {key: own[key] for key in _HEAD}
        differences = list_differences(results, own)
        if not differences:
            network.load_state_dict(results, strict=True)
            _save(folder, config, network)
            return "its own head" if keeps_head else f"a new head for {len(class_names)} classes"
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


def make_config(
    name: str, class_names: Sequence[str], *, image_size: int | None = None, norm: str | None = None
) -> dict[str, Any]:
    """Return the content of config.json of the network `name` for these classes."""
    config = {**CONFIGS[name], "class_names": list(class_names)}
    if config["model_type"] == "vit":
        return config | {"image_size": image_size}
    return config | {"norm": norm or "group"} | ({} if norm == "sync_batch" else {"num_groups": NUM_GROUPS})


def write_image_network(
    folder: Path, name: str, class_names: Sequence[str], *, image_size: int | None = None, norm: str | None = None
) -> None:
    """Fill `folder` with config.json and fp32 safetensors weights of the network `name` for these classes.

    The same classes, size of images (pixels of a side) and versions of torch and torchvision give the same bytes. The
    caller's random state is left as it was.
    """
    config = make_config(name, class_names, image_size=image_size, norm=norm)
    _save(folder, config, _draw_network(config))


def _draw_network(config: dict[str, Any]) -> Any:
    """Return the network with random weights, the same at every call; the caller's random state is left as it was."""
    import torch

    from training.workloads.image_classification import build_network

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return build_network(config)


def _save(folder: Path, config: dict[str, Any], network: Any) -> None:
    """Write config.json and model.safetensors."""
    from safetensors.torch import save_model

    write_json(folder / "config.json", config)
    save_model(network, str(folder / "model.safetensors"))
    # safetensors lets only the owner read what it writes.
    (folder / "model.safetensors").chmod(0o644)
