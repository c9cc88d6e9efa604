"""params.yaml: what is refused, in one line, before anything heavy is imported or written."""

import contextlib
import gzip
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML

from tasks.params import load_params
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ConfigurationError
from tests.conftest import PROJECT
from tests.extras import skip_without

GOOD = """\
name: test
description: A test.
model:
  source: builtin:tiny-qwen2
  name: tiny
dataset:
  source: builtin:docstrings
ranges: [0-100, 100-250]
heldout: 300-350
workload: causal_lm
train: {epochs: 2, global_batch_size: 16, micro_batch_size: 4, learning_rate: 5e-5, seq_len: 64}
cells:
  1proc: {strategy: single, world_size: 1}
  2proc: {strategy: ddp, world_size: 2}
"""


FILE = Path("params.yaml")
pytestmark = pytest.mark.usefixtures("folder")


def load(text, says=None, **how):
    """Read it from elsewhere, as what it names stands beside it; it has to be refused if something is to be said."""
    FILE.write_text(text)
    file = FILE.resolve()
    refused = pytest.raises(ConfigurationError, match=says) if says else contextlib.nullcontext()
    with contextlib.chdir("/"), refused:
        return load_params(file, **how)


@pytest.mark.parametrize("written", ["{a: b:c}", "[x:y]", "[b, :c]", "[a?b]", '["a?b"]'])
def test_what_dvc_reads_or_writes_otherwise_is_refused_whichever_reader_is_installed(written, monkeypatch):
    monkeypatch.setattr("ruamel.yaml.main.CParser", None)
    load(GOOD.replace("name: test", f"name: {written}", 1), "allowed: on a line of its own")


def test_dvc_writes_back_what_is_valid_as_the_same_params(project):
    for preset in [project / "params.yaml", *(project / "presets").glob("*.yaml")]:
        shutil.copy(preset, FILE)
        apply_overrides(FILE, ["train.epochs=7"])
        expected = read_strict_yaml(preset)
        expected["train"]["epochs"] = 7
        assert read_strict_yaml(FILE) == expected, preset
    blanks = "\\t, ".join(["word"] * 30)
    load(GOOD.replace("A test.", f'"{blanks}"'), "and lines of 80")
    apply_overrides(FILE, ["train.epochs=7"])
    assert YAML(typ="safe", pure=True).load(FILE)["description"] != blanks.replace("\\t", "\t")


def test_the_good_file_is_accepted_and_read_exactly():
    params = load(GOOD + "upload: {checkpoints: [tiny_100-250-epoch-2.pt]}\n")
    assert params.train.learning_rate == 5e-5
    assert [str(part) for part in params.ranges] == ["0-100", "100-250"]
    assert params.num_rows_needed == 350
    assert params.baseline == "1proc"
    assert (params.grad_accum_steps("1proc"), params.grad_accum_steps("2proc")) == (4, 2)
    assert params.checkpoint_names == [f"tiny_{part}-epoch-{epoch}.pt" for part in params.ranges for epoch in (1, 2)]


LORA = "seq_len: 64, adapter: {rank: 4, alpha: 8}"
CLASSES = GOOD.replace("causal_lm", "sequence_classification").replace("tiny-qwen2", "tiny-modernbert")
CLASSES = CLASSES.replace("builtin:docstrings", "builtin:docstrings\n  label: package")


@pytest.mark.parametrize(
    ("asked", "package", "old", "new"),
    [
        ("tracking.kind: got wandb", "wandb", "cells:", "tracking: {kind: [mlflow, wandb]}\ncells:"),
        ("launcher: got ray", "ray", "strategy: ddp, ", "strategy: ddp, launcher: ray, "),
        ("train.adapter: got lora", "peft", "seq_len: 64", LORA),
        ("strategy: got deepspeed", "deepspeed", "strategy: ddp, ", "strategy: deepspeed, "),
    ],
)
def test_an_extra_that_is_not_installed_is_refused(monkeypatch, asked, package, old, new):
    # As where it is not installed: nothing of that name is found.
    monkeypatch.setitem(sys.modules, package, None)
    load(GOOD.replace(old, new), f"{asked}, and the package {package} .*`make extras`")


@pytest.mark.parametrize(
    ("name", "content", "is_short"),
    [
        ("rows.parquet", b"", True),
        ("rows.jsonl", b'{"text": "a}{b"}\n' * 320, True),
        ("rows.csv", b"text\r\n" + b"a\r\n" * 320, True),
        ("rows.txt", b"a\r" * 319 + b"a", True),
        ("rows.txt", b"\n" * 350, False),
        # Blank lines are no rows.
        ("rows.jsonl", b"\n\n" + b'{"text": "a"}\n' * 350, False),
        ("rows.jsonl", b'\n{"text": "a"}\n' * 320, True),
        # What lines do not tell.
        ("rows.json", b"[" + b"{}," * 349 + b"{}]", False),
        ("rows.json", b'{"version": 1,\n"data": [{}]}', False),
        ("rows.jsonl", b'{"text": "a"}' * 350, False),
        ("rows.jsonl", gzip.compress(b"{}\n" * 350, mtime=0), False),
    ],
)
def test_a_local_file_with_too_few_rows_is_refused_with_its_number_of_rows(name, content, is_short):
    Path(name).write_bytes(content)
    if not content:
        pq.write_table(pa.table({"text": ["a"] * 320}), name)
    says = f"heldout: row 350 is beyond the 320 rows of {name}"
    load(GOOD.replace("builtin:docstrings", f"path:{name}"), says if is_short else None)


@pytest.mark.parametrize(
    ("config", "is_short"),
    [
        ('{"max_position_embeddings": 32}', True),
        ('{"n_embd": 8, "n_positions": 32}', True),
        # Of a T5, whose positions have no end.
        ('{"d_model": 8, "n_positions": 32}', False),
        ("7", False),
        ('{"a":' * 100_000, False),
    ],
)
def test_a_local_model_with_too_few_positions_is_refused_whatever_else_its_config_says(config, is_short):
    Path("model").mkdir()
    Path("model/config.json").write_text(config)
    says = "train.seq_len: 64, and model.source path:model has positions for 32"
    load(GOOD.replace("builtin:tiny-qwen2", "path:model"), says if is_short else None)


def test_several_machines_are_a_cluster_of_ray(project):
    skip_without("ray")
    preset = project / "presets" / "resnet18-2nodes.yaml"
    assert load_params(preset, looks_at_data=False).cells["2nodes"].ranks_per_node == 1
    for was, instead, says in (
        ("launcher: ray, ", "", "num_nodes: got 2 with launcher torchrun; allowed: launcher ray"),
        ("address: auto", "address: local", r"ray.address: got local with cells.2nodes.num_nodes=2; allowed: auto or"),
        ("address: auto", "address: nowhere", "ray.address: "),
        ("world_size: 2, launcher", "world_size: 3, launcher", "num_nodes: got 2 with world_size 3"),
    ):
        load(preset.read_text().replace(was, instead), says, looks_at_data=False)


@pytest.mark.parametrize("preset", sorted((PROJECT / "presets").glob("*.yaml")), ids=lambda preset: preset.stem)
def test_every_preset_is_valid(preset):
    text = preset.read_text()
    for word, package in (("launcher: ray", "ray"), ("adapter:", "peft")):
        if word in text:
            skip_without(package)
    assert load_params(preset, looks_at_data=False).name == preset.stem


IMAGES = GOOD.replace("builtin:docstrings", "builtin:digits\n  image_size: 16").replace(
    "causal_lm", "image_classification"
)
IMAGES = IMAGES.replace("builtin:tiny-qwen2", "builtin:resnet18").replace(", seq_len: 64", "")
