"""`python -m tasks.data.sources.converted FOLDER INTO`: a model whose weights are pickles becomes one with safetensors.

Done once, by hand, on files that are here already: nothing of a pickle is run, and whatever is more than tensors is
refused. Numbers and their types stay as they are.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.process.failure import DataError, exit_with_one_line
from tasks.services.model_files import SMALL_FILES
from training.process.failure import BadCheckpointError
from training.process.files import digest_file

_PICKLE, _INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def convert_weights(folder: Path, into: Path) -> str:
    """Fill the new folder `into` with the model's small files and model.safetensors; return the sha256 of that.

    Raises DataError, and leaves no folder, if a file is not there or is more than a list of tensors.
    """
    import torch
    from safetensors.torch import save_file

    if into.exists():
        raise DataError(f"{into}: is there already; allowed: a new folder")
    weights: dict[str, Any] = {}
    for file in _list_pickles(folder):
        from training.model.weights import load_tensors

        try:
            found = load_tensors(file)
        except BadCheckpointError as error:
            raise DataError(str(error)) from None
        if others := [str(name) for name, value in found.items() if not isinstance(value, torch.Tensor)]:
            raise DataError(f"{file}: {others[0][:80]!r} is no tensor; allowed: weights and nothing else")
        weights |= found
    partial = into.with_name(f"{into.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in SMALL_FILES:
        if (small := folder / name).is_file() and not name.startswith("model."):
            shutil.copyfile(small, partial / name)
    # A tensor of its own each: safetensors holds none that share their memory, as tied embeddings do.
    tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in weights.items()}
    save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
    partial.rename(into)
    return digest_file(into / "model.safetensors")


def _list_pickles(folder: Path) -> Iterator[Path]:
    """Yield the files with weights: one, or those that an index names."""
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: has no config.json; allowed: a transformers model folder")
    names = [_PICKLE]
    if (index := folder / _INDEX).is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise DataError(f"{index}: is no index of weights; download the model anew") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
            raise DataError(f"{folder}: has no file {str(name)[:80]!r}; download all of the model")
        yield folder / name


def _main() -> None:
    parser = argparse.ArgumentParser(prog="tasks.data.sources.converted", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("into", type=Path)
    arguments = parser.parse_args()
    digest = convert_weights(arguments.folder, arguments.into)
    told = f"{arguments.into}: model.safetensors, sha256 {digest}; use it as model.source: path:{arguments.into}"
    sys.stdout.write(f"{told}\n")


if __name__ == "__main__":
    exit_with_one_line(_main, name="converted")
