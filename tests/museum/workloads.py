"""What a scratch project trains, workload by workload: base model, rows, and what params.yaml says of them."""

import json

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.images import make_image_model, make_image_slice
from tests.tiny import make_slice, make_tiny_classifier, make_tiny_model, with_manifest
from training.process.files import digest_file, digest_json, write_json

VOCAB_SIZE = 256
_IMAGE_SIZE = 16
_NUM_CLASSES = 3

PARAMS = {
    "causal_lm": {
        "model": {"source": "builtin:tiny-qwen2", "name": "tiny"},
        "dataset": {"source": "builtin:docstrings"},
        "train": {"seq_len": 64},
    },
    "instruction": {
        "model": {"source": "builtin:tiny-qwen2", "name": "tiny"},
        "dataset": {"source": "builtin:instructions", "template": "dolly"},
        "train": {"seq_len": 64},
    },
    "sequence_classification": {
        "model": {"source": "builtin:tiny-modernbert", "name": "tiny"},
        "dataset": {"source": "builtin:docstrings", "label": "package"},
        "train": {"seq_len": 64},
    },
    # As chaotic as trainings come: ReLU and the largest of a window jump, and SGD makes more of it at this rate.
    "image_classification": {
        "model": {"source": "builtin:resnet18", "name": "tiny"},
        "dataset": {"source": "builtin:digits", "image_size": _IMAGE_SIZE},
        "train": {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 1e-2, "max_grad_norm": 5.0},
    },
}
"""Workload -> the sections of params.yaml that depend on it."""


def write_model(workload, folder, *, seed):
    """Write a base model of random weights."""
    if workload in ("causal_lm", "instruction"):
        make_tiny_model(folder, vocab_size=VOCAB_SIZE, hidden_size=128, seed=seed)
    elif workload == "sequence_classification":
        make_tiny_classifier(folder, vocab_size=VOCAB_SIZE, num_classes=_NUM_CLASSES, seed=seed)
    else:
        _write_resnet(folder, seed=seed)


def write_rows(workload, folder, *, num_rows, first_row, min_len, seed):
    """Write a slice."""
    if workload == "image_classification":
        make_image_slice(folder, num_rows=num_rows, size=_IMAGE_SIZE, first_row=first_row)
        return
    # Shorter than any seq_len of the museum: the stage `slice` leaves out a row whose prompt is not.
    longest_prompt = 16 if workload == "instruction" else 0
    make_slice(
        folder, num_rows=num_rows, vocab_size=VOCAB_SIZE, min_len=max(min_len, 2) if longest_prompt else min_len,
        max_len=64, first_row=first_row, seed=seed, longest_prompt=longest_prompt,
        num_classes=_NUM_CLASSES if workload == "sequence_classification" else 0,
    )  # fmt: skip


def _write_resnet(folder, *, seed):
    """Write the built-in network with weights of this seed: each its own, moved by a tenth of how far they spread."""
    make_image_model(folder)
    weights, chance = load_file(folder / "model.safetensors"), np.random.default_rng(seed)
    moved = {
        name: (one + 0.1 * one.std() * chance.standard_normal(one.shape)).astype(one.dtype)
        for name, one in sorted(weights.items())
    }
    save_file(moved, folder / "model.safetensors")
    with_manifest(folder, num_parameters=11_181_642, model_type="resnet18")


def write_tokenizer(folder):
    """Write a tokenizer whose token i is the word `wi`, and enter it into the folder's manifest."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCAB_SIZE)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"]["tokenizer.json"] = digest_file(folder / "tokenizer.json")
    write_json(folder / "manifest.json", {**manifest, "digest": digest_json(manifest["files"])})
