"""The smallest real model and slices that training can be tested with; no tokenizer, no network."""

import json

import numpy as np

from tests.emulator import WORKLOAD
from tests.emulator.device import EmulatedDevice, write_device
from training.model.weights import without_deepspeed
from training.process.files import digest_file, digest_json, write_json


def make_tiny_model(folder, *, vocab_size=128, hidden_size=64, num_layers=2, seed=0, dropout=0.0, tied=True):
    """Write a Qwen2-architecture model with seeded random weights in the layout of data/base_model; return it."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=hidden_size * 2,
        max_position_embeddings=512,
        attention_dropout=dropout,
        tie_word_embeddings=tied,
    )
    return write_tiny_model(folder, lambda: Qwen2ForCausalLM(config), seed=seed)


def make_tiny_classifier(folder, *, dropout=0.0):
    """Write a BERT classifier with seeded random weights in the layout of data/base_model; return the folder."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        num_labels=3, pad_token_id=3,
    )  # fmt: skip
    return write_tiny_model(folder, lambda: BertForSequenceClassification(config))


def write_tiny_model(folder, make, *, seed=0):
    """Write a model of transformers, made with weights of this seed, in the layout of data/base_model."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
    with without_deepspeed():
        model.save_pretrained(folder)
    num_parameters = sum(part.numel() for part in model.parameters())
    return with_manifest(folder, num_parameters=num_parameters, model_type=model.config.model_type)


_ROWS = {
    "causal_lm": {}, WORKLOAD: {}, "sequence_classification": {"num_classes": 3},
    "instruction": {"min_len": 2, "longest_prompt": 40},
}  # fmt: skip
_SIZES = ({"num_rows": 45}, {"num_rows": 27, "first_row": 45})


def make_rows(workload, root, **more):
    """Write two slices of text, of 45 and 27 rows, for a workload of this name; return their folders.

    A workload that is not known here fails the tests that run over all of them.
    """
    assert workload in _ROWS, f"no tiny slices for the workload {workload}"
    more = {**_ROWS[workload], **more}
    return [make_slice(root / f"slice_{seed}", seed=seed, **size, **more) for seed, size in enumerate(_SIZES)]


def make_tiny_workload(workload, root):
    """Write the smallest base model and such slices, of texts or of images; return both."""
    if workload == "image_classification":
        from tests.images import make_image_model, make_image_slice

        images = [make_image_slice(root / f"slice_{index}", **size) for index, size in enumerate(_SIZES)]
        return make_image_model(root / "model"), images
    slices = make_rows(workload, root)
    if workload == WORKLOAD:
        return write_device(root / "model", EmulatedDevice(forward_ms=0.1)), slices
    make = make_tiny_classifier if workload == "sequence_classification" else make_tiny_model
    return make(root / "model"), slices


_MANIFEST = """{
  "source": "tests", "kind": "builtin", "revision": null, "commit": null, "label": "random weights for tests",
  "is_random_weights": true
}"""


def with_manifest(folder, *, num_parameters, model_type):
    """Describe the files of a model folder in its manifest.json; return the folder."""
    paths = (path for path in sorted(folder.iterdir()) if path.name != "manifest.json")
    files = {path.name: digest_file(path) for path in paths}
    write_json(
        folder / "manifest.json",
        json.loads(_MANIFEST)
        | {"num_parameters": num_parameters, "model_type": model_type, "digest": digest_json(files), "files": files},
    )
    return folder


def make_slice(
    folder, *, num_rows=40, vocab_size=128, min_len=1, max_len=40, first_row=0, seed=0, num_classes=0, longest_prompt=0
):
    """Write rows of random tokens and ragged lengths in the layout of data/slices/<start>-<end>; return the folder.

    Tokens follow one another by a fixed rule with some noise, so that there is something to learn. Token
    `vocab_size - 1` ends every row and stands nowhere else. With classes, that of a row follows from its first token.
    With prompts, each row, of two tokens or more, begins with one of any length up to the longest.
    """
    random = np.random.default_rng(seed)
    lengths = random.integers(min_len, max_len + 1, size=num_rows)
    rows = []
    for length in lengths:
        tokens = np.cumsum(random.choice([1, 1, 1, 5], size=length)) % (vocab_size - 1)
        tokens[-1] = vocab_size - 1
        rows.append(tokens)
    labels = [int(row[0]) % num_classes for row in rows] if num_classes else None
    prompts = [int(random.integers(1, min(len(row), longest_prompt + 1))) for row in rows] if longest_prompt else None
    return write_slice(folder, rows, first_row=first_row, labels=labels, prompts=prompts)


def write_slice(folder, rows, *, first_row=0, labels=None, prompts=None):
    """Write these rows of tokens, and the class or the length of the prompt of each, as a slice; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets = np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64)
    arrays = {
        "tokens": np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]),
        "offsets": offsets,
        "row_ids": np.arange(first_row, first_row + len(rows), dtype=np.int64),
    }
    if labels is not None:
        arrays["labels"] = np.array(labels, dtype=np.int64)
    if prompts is not None:
        arrays["prompts"] = np.array(prompts, dtype=np.int64)
    return write_arrays(folder, arrays, num_tokens=int(offsets[-1]))


def write_arrays(folder, arrays, *, num_tokens):
    """Write a slice of these arrays, with its manifest; return the folder."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    files = {f"{name}.npy": digest_file(folder / f"{name}.npy") for name in sorted(arrays)}
    first_row, num_rows = int(arrays["row_ids"][0]), len(arrays["row_ids"])
    about = {"range": f"{first_row}-{first_row + num_rows}", "num_rows": num_rows, "num_tokens": num_tokens}
    write_json(folder / "manifest.json", {**about, "digest": digest_json(files), "files": files})
    return folder


_CONFIG = """{
  "cell": "1proc", "strategy": "single", "world_size": 1, "workload": "causal_lm", "device": "cpu",
  "options": {}, "oversubscribe": false, "model_name": "tiny", "global_batch_size": 8, "micro_batch_size": 2,
  "optimizer": "adamw", "momentum": 0.9, "learning_rate": 0.002, "adam_beta1": 0.9, "adam_beta2": 0.999,
  "schedule": "linear", "schedule_floor": 0.0, "decay_steps": 0, "warmup_steps": 2, "weight_decay": 0.01,
  "max_grad_norm": 1.0, "precision": "fp32", "seq_len": 32, "augment": "none", "packing": false,
  "loss_chunk_rows": 2048, "activation_checkpointing": "none", "adapter": null, "compile": false, "seed": 1,
  "exact": false, "threads_per_rank": 1, "log_every_steps": 1, "checkpoint_every_steps": 0, "keep": "all",
  "eval_every_steps": 0, "heldout_dir": "", "heldout_digest": "", "statistics_rows": 0
}"""


def make_config(work_dir, model_dir, slices, *, epochs=1, **changes):
    """Return the JSON that a training process is told, for slices trained in this order; `changes` replace values.

    The fingerprints depend on what a segment's content depends on, and on the segment before, as in the real stage.
    """
    config = {**json.loads(_CONFIG), "model_dir": str(model_dir), "work_dir": str(work_dir), **changes}
    not_content = {"work_dir", "log_every_steps", "checkpoint_every_steps", "keep"}
    not_content |= {"eval_every_steps", "heldout_dir", "heldout_digest"}
    content = {key: value for key, value in config.items() if key not in not_content}
    segments = []
    previous = ""
    for folder in slices:
        facts = json.loads((folder / "manifest.json").read_bytes())
        for epoch in range(1, epochs + 1):
            previous = digest_json([content, facts["digest"], facts["range"], epoch, previous])
            segments.append(
                {"range": facts["range"], "epoch": epoch, "slice_dir": str(folder), "fingerprint": previous}
                | {"schedule_begin": 0, "schedule_total": 0}
            )
    return {**config, "segments": segments}


def batches_in_order(source, *, batch_size, seq_len):
    """Yield every row of a slice once, in its order, in micro-batches; the last one may be smaller."""
    for start in range(0, len(source), batch_size):
        yield source.collate(range(start, min(start + batch_size, len(source))), seq_len=seq_len)
