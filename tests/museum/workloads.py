"""What a scratch project trains, workload by workload: its rows, and what params.yaml says of them."""

import json

from ruamel.yaml import YAML

from tests.images import make_image_slice
from tests.tiny import make_slice
from training.process.files import digest_file, digest_json, write_json

VOCAB_SIZE = 256
_NUM_CLASSES = 3

PARAMS = YAML(typ="safe", pure=True).load("""
causal_lm:
  model: {source: "builtin:tiny-qwen2", name: tiny}
  dataset: {source: "builtin:docstrings"}
  train: {seq_len: 64}
instruction:
  model: {source: "builtin:tiny-qwen2", name: tiny}
  dataset: {source: "builtin:instructions", template: dolly}
  train: {seq_len: 64}
sequence_classification:
  model: {source: "builtin:tiny-modernbert", name: tiny}
  dataset: {source: "builtin:docstrings", label: package}
  train: {seq_len: 64}
# As chaotic as trainings come: ReLU and the largest of a window jump, and SGD makes more of it at this rate.
image_classification:
  model: {source: "builtin:resnet18", name: tiny}
  dataset: {source: "builtin:digits", image_size: 16}
  train: {optimizer: sgd, momentum: 0.9, learning_rate: 1.0e-2, max_grad_norm: 5.0}
""")
"""Workload -> the sections of params.yaml that depend on it."""


def write_rows(workload, folder, *, num_rows, first_row, min_len, seed):
    """Write a slice."""
    if workload == "image_classification":
        size = PARAMS[workload]["dataset"]["image_size"]
        make_image_slice(folder, num_rows=num_rows, size=size, first_row=first_row)
        return
    # Prompts are shorter than any seq_len of the museum: the stage `slice` leaves out a row whose prompt is not.
    make_slice(
        folder, num_rows=num_rows, vocab_size=VOCAB_SIZE, min_len=min_len, max_len=64, first_row=first_row, seed=seed,
        longest_prompt=16 if workload == "instruction" else 0,
        num_classes=_NUM_CLASSES if workload == "sequence_classification" else 0,
    )  # fmt: skip


def write_tokenizer(folder):
    """Write a tokenizer whose token i is the word `wi`, and enter it into the folder's manifest."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{index}": index for index in range(VOCAB_SIZE)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"]["tokenizer.json"] = digest_file(folder / "tokenizer.json")
    write_json(folder / "manifest.json", {**manifest, "digest": digest_json(manifest["files"])})
