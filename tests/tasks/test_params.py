"""params.yaml: what is refused, in one line, before anything heavy is imported or written."""

import re
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML

from tasks.params import Params, load_params
from tasks.params.sources import ModelParams, require_model_for
from tasks.params.strict_yaml import read_strict_yaml
from tasks.process.failure import ConfigurationError
from tests.conftest import PROJECT
from tests.extras import skip_without
from tests.ray_cluster import needs_ray

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

# What is changed in GOOD, and what the one line must name.
BAD = {
    "unknown key": ("epochs: 2", "epoch: 2", ["train.epoch", "did you mean epochs?"]),
    "unknown top-level key": ("workload:", "wrkload:", ["wrkload", "did you mean workload?"]),
    "missing key": ("seq_len: 64", "seed: 1", ["train.seq_len", "missing"]),
    "quoted number": ("5e-5", '"5e-5"', ["train.learning_rate", "'5e-5'"]),
    "bool as int": ("epochs: 2", "epochs: true", ["train.epochs", "True"]),
    "on is a word": ("epochs: 2", "epochs: on", ["train.epochs", "'on'"]),
    "fraction for a count": ("world_size: 2", "world_size: 1.5", ["cells.2proc.world_size", "1.5"]),
    "octal": ("epochs: 2", "epochs: 010", ["010", "leading zeros"]),
    "sexagesimal": ("epochs: 2", "epochs: 1:30", ["line 11", "1:30 within brackets", "a line of its own"]),
    "zero micro-batch": ("micro_batch_size: 4", "micro_batch_size: 0", ["train.micro_batch_size", "0"]),
    "another word for auto": ("micro_batch_size: 4", "micro_batch_size: AUTO", ["a number from 1 on, or auto"]),
    "batch does not divide": ("batch_size: 16", "batch_size: 12", ["train.global_batch_size", "12", "use 8 or 16"]),
    "learning rate nan": ("5e-5", ".nan", ["train.learning_rate", "nan"]),
    "unknown precision": ("seq_len: 64", "seq_len: 64, precision: fp8", ["train.precision", "fp8", "bf16"]),
    "reversed range": ("0-100,", "100-0,", ["ranges.0", "100-0"]),
    "range of words": ("0-100,", "all,", ["ranges.0", "'all'"]),
    "overlapping ranges": ("100-250", "99-250", ["ranges", "99-250 overlaps 0-100"]),
    "too large range": ("300-350", "300-35000", ["35000", "6000"]),
    "held-out rows in a range": ("300-350", "200-350", ["heldout", "overlaps", "100-250"]),
    "unknown workload": ("causal_lm", "casual_lm", ["workload", "did you mean causal_lm?"]),
    "workload from elsewhere": ("causal_lm", "tests.emulator.workload", ["workload", "allowed: causal_lm"]),
    "unknown strategy": ("strategy: ddp", "strategy: dpd", ["cells.2proc.strategy", "did you mean ddp?"]),
    "strategy from elsewhere": ("strategy: ddp", "strategy: ../ddp", ["cells.2proc.strategy", "allowed: ddp, deep"]),
    "unknown launcher": ("strategy: ddp,", "strategy: ddp, launcher: slurm,", ["cells.2proc.launcher", "torchrun"]),
    "single on two ranks": ("strategy: ddp, ", "strategy: single, ", ["cells.2proc.world_size", "single"]),
    "replicas that do not share out": (
        "ddp, world_size: 2", "pipeline, world_size: 2, options: {replicas: 4}", ["cells.2proc.options.replicas", "4"]
    ),
    "a look at held-out rows in stages": (
        "epochs: 2, global_batch_size: 16, micro_batch_size: 4, learning_rate: 5e-5, seq_len: 64}\n"
        "cells:\n  1proc: {strategy: single, world_size: 1}\n  2proc: {strategy: ddp",
        "epochs: 2, global_batch_size: 16, micro_batch_size: 4, learning_rate: 5e-5, seq_len: 64, "
        "eval_every_steps: 5}\ncells:\n  1proc: {strategy: single, world_size: 1}\n  2proc: {strategy: pipeline",
        ["train.eval_every_steps", "got 5 with cells.2proc.strategy pipeline", "allowed: 0"],
    ),
    "batch normalisation of texts": ("name: tiny", "name: tiny\n  norm: sync_batch", ["model.norm", "a ResNet"]),
    "cells not a mapping": ("2proc: {strategy: ddp, world_size: 2}", "2proc: ddp", ["cells.2proc", "'ddp'"]),
    "cell name with a slash": ("2proc:", "a/b:", ["cells", "a/b"]),
    "cell name of the base model": ("2proc:", "base:", ["cells", "'base'", "base model"]),
    "cell name that dvc would split": ("2proc:", "2.proc:", ["cells", "'2.proc'", "letters, digits, '_' and '-'"]),
    "no cells": (GOOD[GOOD.index("  1proc") :], "", ["cells"]),
    "unknown built-in model": ("builtin:tiny-qwen2", "builtin:gpt5", ["model.source", "gpt5", "tiny-qwen2"]),
    "unknown kind of source": ("builtin:docstrings", "s3:bucket", ["dataset.source", "s3:bucket"]),
    "Hub id that climbs": ("builtin:docstrings", "hub:a/../b\n  revision: main", ["dataset.source", "a/../b"]),
    "Hub id without a revision": ("builtin:docstrings", "hub:a/b", ["dataset.revision"]),
    "revision that climbs": ("builtin:docstrings", "hub:a/b\n  revision: ../x", ["dataset.revision", "../x"]),
    "revision of a built-in": ("builtin:docstrings", "builtin:docstrings\n  revision: main", ["dataset.revision"]),
    "missing file": ("builtin:docstrings", "path:nowhere.parquet", ["dataset.source", "nowhere.parquet"]),
    "file of another kind": ("builtin:docstrings", "path:data.xlsx", ["dataset.source", ".parquet, .jsonl"]),
    "missing model folder": ("builtin:tiny-qwen2", "path:nowhere", ["model.source", "nowhere/config.json"]),
    "name with a newline": ("name: test", 'name: "a\\nb"', ["name"]),
    "empty description": ("A test.", '""', ["description"]),
    "upload to nowhere": ("cells:", "upload: {repo_id: a//b}\ncells:", ["upload.repo_id", "a//b"]),
    "price without a day": ("cells:", "cost: {price_per_gpu_hour: 2.5}\ncells:", ["cost.price_date", "2026-11-21"]),
    "price of an unquoted day": ("cells:", "cost: {price_date: 2026-11-21}\ncells:", ["cost.price_date", "quotes"]),
    "checkpoints by a word": ("cells:", "upload: {checkpoints: none}\ncells:", ["upload.checkpoints", "last, all"]),
    "checkpoint that is never made": (
        "cells:",
        "upload: {checkpoints: [tiny_0-100-epoch-3.pt]}\ncells:",
        ["upload.checkpoints", "tiny_0-100-epoch-2.pt"],
    ),
    "weights that are published and not kept": (
        "64}\n", "64, keep: last}\nupload: {revisions: per_epoch}\n", ["train.keep: got last", "epochs or all"],
    ),
    "duplicate key": ("name: test\n", "name: test\nname: again\n", ["duplicate key", "name"]),
    "tag": ("name: test", "name: !!python/object:os.system test", ["tag"]),
    "tab": ("  1proc:", "\t1proc:", ["line 13"]),
    "colon that only some readers take": ("name: test", "name: {a: b:c}", ["line 1"]),
}  # fmt: skip

WHOLE_FILES = {
    "empty file": (b"", "top level"),
    "list at the top": (b"- a\n- b\n", "top level"),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD.encode(), "byte order mark"),
    "not UTF-8": (b"name: \xff\xfe\n", "UTF-8"),
    "ten megabytes": (b"#" * 10_000_000, "bytes"),
    "deep nesting": (b"[" * 20_000, "nested"),
    "alias bomb": (b"a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n", "aliases"),
    "null bytes": (b"name: a\0b\n", "YAML"),
}


@pytest.mark.parametrize(
    "written",
    ["{a: b:c}", "[x:y]", "{a: {b: c:}}", "[b, :c]", "[a?b]", '{source: "builtin:x"}', "{'a:b': c}", '["a?b"]'],
)
def test_what_dvc_reads_or_writes_otherwise_is_refused_whichever_reader_is_installed(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ruamel.yaml.main.CParser", None)
    file = tmp_path / "params.yaml"
    file.write_text(GOOD.replace("name: test", f"name: {written}", 1))
    with pytest.raises(ConfigurationError, match="allowed: on a line of its own"):
        load_params(file)


def test_dvc_writes_back_what_is_valid_as_the_same_params(project: Path, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    for preset in [project / "params.yaml", *(project / "presets").glob("*.yaml")]:
        shutil.copy(preset, file)
        apply_overrides(file, ["train.epochs=7"])
        expected = read_strict_yaml(preset)
        expected["train"]["epochs"] = 7
        assert read_strict_yaml(file) == expected, preset
    blanks = "\\t, ".join(["word"] * 30)
    file.write_text(GOOD.replace("A test.", f'"{blanks}"'))
    with pytest.raises(ConfigurationError, match="and lines of 80"):
        load_params(file)
    apply_overrides(file, ["train.epochs=7"])
    assert YAML(typ="safe", pure=True).load(file)["description"] != blanks.replace("\\t", "\t")


def test_the_good_file_is_accepted_and_read_exactly(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(GOOD + "upload: {checkpoints: [tiny_100-250-epoch-2.pt]}\n")
    params = load_params(file)
    assert params.train.learning_rate == 5e-5
    assert [str(part) for part in params.ranges] == ["0-100", "100-250"]
    assert params.num_rows_needed == 350
    assert params.baseline == "1proc"
    assert (params.grad_accum_steps("1proc"), params.grad_accum_steps("2proc")) == (4, 2)
    assert params.checkpoint_names == [f"tiny_{part}-epoch-{epoch}.pt" for part in params.ranges for epoch in (1, 2)]


def test_what_has_a_default_may_be_left_out_and_means_its_defaults(tmp_path: Path) -> None:
    (left_out := tmp_path / "left-out.yaml").write_text(GOOD.replace("description: A test.\n", ""))
    (empty := tmp_path / "empty.yaml").write_text(
        left_out.read_text() + "measure: {}\nquality: {}\ncost: {}\ntracking: {}\nupload: {}\n"
    )
    assert load_params(left_out) == load_params(empty)


def test_several_trackers_are_a_list_and_none_is_no_tracker(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    for written, kinds in (("mlflow", ["mlflow"]), ("[mlflow]", ["mlflow"]), ("none", []), ("[none]", [])):
        file.write_text(GOOD + f"tracking: {{kind: {written}}}\n")
        assert load_params(file).tracking.kinds == kinds


LORA = "seq_len: 64, adapter: {rank: 4, alpha: 8}"
BAD_ADAPTERS = {
    "no target": ("rank: 4", "rank: 4, targets: []", ["train.adapter.targets", "at least one"]),
    "a name in place of names": ("rank: 4", "rank: 4, targets: q_proj", ["targets: got 'q_proj'; allowed: all-linear"]),
    "no mapping": ("{rank: 4, alpha: 8}", "lora", ["train.adapter", "with the keys kind, rank, alpha, targets, base"]),
    "a target twice": ("rank: 4", "rank: 4, targets: [q_proj, q_proj]", ["train.adapter.targets", "different"]),
    "another rounding": ("rank: 4", "rank: 4, base: fp4", ["train.adapter.base", "fp4", "nf4"]),
    "compiled 4 bits": ("adapter: {", "compile: true, adapter: {base: nf4, ", ["train.compile: got true", "base nf4"]),
    "sharded weights": ("strategy: ddp", "strategy: fsdp2", ["cells.2proc.strategy fsdp2", "ddp or single or zero1"]),
    "a head of its own": (
        "workload: causal_lm", "workload: sequence_classification", ["workload sequence_class", "causal_lm or inst"],
    ),
}  # fmt: skip


def test_an_adapter_has_defaults(tmp_path: Path) -> None:
    skip_without("peft")
    (file := tmp_path / "params.yaml").write_text(GOOD.replace("seq_len: 64", LORA))
    adapter = load_params(file).train.adapter
    assert adapter is not None
    assert adapter.model_dump() == {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": "all-linear", "base": None}


@pytest.mark.parametrize(
    ("asked", "package", "old", "new"),
    [
        ("tracking.kind: got wandb", "wandb", "cells:", "tracking: {kind: [mlflow, wandb]}\ncells:"),
        ("tracking.kind: got tensorboard", "tensorboard", "cells:", "tracking: {kind: [mlflow, tensorboard]}\ncells:"),
        ("launcher: got ray", "ray", "strategy: ddp, ", "strategy: ddp, launcher: ray, "),
        ("train.adapter: got lora", "peft", "seq_len: 64", LORA),
        ("train.adapter.base: got nf4", "bitsandbytes", "seq_len: 64", LORA.replace("{", "{base: nf4, ")),
        ("strategy: got deepspeed", "deepspeed", "strategy: ddp, ", "strategy: deepspeed, "),
    ],
)
def test_an_extra_that_is_not_installed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, package: str, old: str, new: str
) -> None:
    if package == "bitsandbytes":
        skip_without("peft")
    (file := tmp_path / "params.yaml").write_text(GOOD.replace(old, new))
    # As where it is not installed: nothing of that name is found.
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=f"{asked}, and the package {package} .*`make extras`"):
        load_params(file)


def test_a_local_file_with_too_few_rows_is_refused_with_its_number_of_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"] * 320}), tmp_path / "rows.parquet")
    file = tmp_path / "params.yaml"
    file.write_text(GOOD.replace("builtin:docstrings", "path:rows.parquet"))
    with pytest.raises(ConfigurationError, match=r"heldout: row 350 is beyond the 320 rows of rows\.parquet"):
        load_params(file)


@needs_ray
def test_several_machines_are_a_cluster_of_ray(project: Path, tmp_path: Path) -> None:
    preset = project / "presets" / "resnet18-2nodes.yaml"
    assert load_params(preset, looks_at_data=False).cells["2nodes"].ranks_per_node == 1
    for was, instead, says in (
        ("launcher: ray, ", "", "num_nodes: got 2 with launcher torchrun; allowed: launcher ray"),
        ("address: auto", "address: local", r"ray.address: got local with cells.2nodes.num_nodes=2; allowed: auto or"),
        ("address: auto", "address: nowhere", "ray.address: "),
        (
            "world_size: 2, launcher",
            "world_size: 3, launcher",
            "num_nodes: got 2 with world_size 3",
        ),
    ):
        (file := tmp_path / "params.yaml").write_text(preset.read_text().replace(was, instead))
        with pytest.raises(ConfigurationError, match=says):
            load_params(file, looks_at_data=False)


@pytest.mark.parametrize("preset", sorted((PROJECT / "presets").glob("*.yaml")), ids=lambda preset: preset.stem)
def test_every_preset_is_valid(preset: Path) -> None:
    text = preset.read_text()
    for word, package in (("launcher: ray", "ray"), ("adapter:", "peft")):
        if word in text:
            skip_without(package)
    assert load_params(preset, looks_at_data=False).name == preset.stem


@pytest.mark.parametrize(
    ("source", "workload", "why"),
    [
        ("builtin:tiny-qwen2", "causal_lm", "weights: got random for builtin:tiny-qwen2"),
        ("hub:me/mine", "sequence_classification", "model.weights: got random with workload sequence_classification"),
    ],
)
def test_random_weights_are_refused_where_there_is_nothing_to_draw(source: str, workload: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        require_model_for(
            workload,
            ModelParams(
                source=source, revision="main" if source.startswith("hub") else None, name="x", weights="random"
            ),
        )


@pytest.mark.parametrize("name", ["resnet18-imagefolder", "resnet18-2nodes", "resnet50-imagefolder", "vit-imagefolder"])
def test_a_preset_of_images_is_valid_and_asks_for_its_folder(name: str, project: Path) -> None:
    if name == "resnet18-2nodes":
        skip_without("ray")
    preset = project / "presets" / f"{name}.yaml"
    assert Params.model_validate(read_strict_yaml(preset)).name == name
    with pytest.raises(
        ConfigurationError, match=r"dataset\.source: got 'imagenette2-320' .*; allowed: a folder of class"
    ):
        load_params(preset)


IMAGES = GOOD.replace("builtin:docstrings", "builtin:digits\n  image_size: 16").replace(
    "causal_lm", "image_classification"
)
IMAGES = IMAGES.replace("builtin:tiny-qwen2", "builtin:resnet18").replace(", seq_len: 64", "")
BAD_IMAGES = {
    "no size": ("\n  image_size: 16", "", ["dataset.image_size", "null", "such as 32"]),
    "stages of an image classifier": ("strategy: ddp", "strategy: pipeline", ["cells.2proc.strategy", "pipeline"]),
    "batch normalisation of each rank": (
        "name: tiny",
        "name: tiny\n  norm: batch",
        ["model.norm", "got batch", "each rank's own rows", "sync_batch"],
    ),
    "texts for images": ("builtin:digits", "builtin:docstrings", ["dataset.image_size", "16", "for texts"]),
    "images for texts": ("image_classification", "causal_lm", ["workload", "image_size 16", "texts"]),
    "a model of texts": ("builtin:resnet18", "builtin:tiny-qwen2", ["model.source", "tiny-qwen2", "builtin:resnet18"]),
    "packing": ("epochs: 2", "epochs: 2, packing: true", ["train.packing", "true"]),
    "a decay of no steps": ("epochs: 2", "epochs: 2, schedule: wsd", ["train", "decay_steps: got 0", "at least 1"]),
    "unknown augmentation": ("epochs: 2", "epochs: 2, augment: cutmix", ["train.augment", "cutmix", "flip_shift"]),
    "a label column": ("image_size: 16", "image_size: 16\n  label: package", ["dataset.label", "package", "folder"]),
    "more rows than digits": ("300-350", "1700-1800", ["ranges", "1800", "1797"]),
}


def test_images_are_accepted_without_a_length_of_sequences_and_texts_are_not(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(IMAGES)
    assert load_params(file).dataset.holds_images
    file.write_text(GOOD.replace(", seq_len: 64", ", augment: flip, seq_len: 64"))
    with pytest.raises(ConfigurationError, match=r"train\.augment: got flip; allowed: none"):
        load_params(file)


CLASSES = {
    "builtin:docstrings": "builtin:docstrings\n  label: package",
    "builtin:tiny-qwen2": "builtin:tiny-modernbert",
}
"""What a comparison of classifiers has of its own."""


@pytest.mark.parametrize(
    ("good", "case"),
    [(GOOD, case) for case in BAD.items()]
    + [(GOOD.replace("seq_len: 64", LORA), case) for case in BAD_ADAPTERS.items()]
    + [(IMAGES, case) for case in BAD_IMAGES.items()],
    ids=[*BAD, *BAD_ADAPTERS, *BAD_IMAGES],
)
def test_a_bad_value_is_refused_with_key_value_and_what_is_allowed(
    good: str, case: tuple[str, tuple[str, str, list[str]]], tmp_path: Path
) -> None:
    old, new, named = case[1]
    if case[0] in BAD_ADAPTERS:
        skip_without("peft")
    assert old in good
    bad = good.replace(old, new, 1)
    for text, other in CLASSES.items() if "sequence_class" in new else ():
        bad = bad.replace(text, other)
    (file := tmp_path / "params.yaml").write_text(bad)
    with pytest.raises(ConfigurationError) as caught:
        load_params(file)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 600
    for part in named:
        assert part in line


@pytest.mark.parametrize(
    ("train", "is_accepted"),
    [
        ("packing: true", True),
        ("compile: true", True),
        ("packing: true, compile: true", False),
    ],
)
def test_packs_of_texts_that_are_classified_are_not_compiled(train: str, is_accepted: bool, tmp_path: Path) -> None:
    text = GOOD.replace("causal_lm", "sequence_classification").replace("tiny-qwen2", "tiny-modernbert")
    text = text.replace("builtin:docstrings", "builtin:docstrings\n  label: package")
    (tmp_path / "params.yaml").write_text(text.replace("epochs: 2", f"epochs: 2, {train}"))
    if is_accepted:
        load_params(tmp_path / "params.yaml")
        return
    with pytest.raises(ConfigurationError, match=r"train\.packing, train\.compile: got .*; allowed: one of them true"):
        load_params(tmp_path / "params.yaml")


def test_every_number_of_the_schema_has_a_least_and_a_largest_value() -> None:
    schema = Params.model_json_schema()
    unbounded = {
        f"{section}.{key}"
        for section, facts in schema["$defs"].items()
        for key, part in facts["properties"].items()
        for one in (part, *part.get("anyOf", ()))
        if one.get("type") in ("integer", "number")
        and len({name.lower()[-7:] for name in one} & {"minimum", "maximum"}) < 2
    }
    assert unbounded == {"QualityParams.target_loss", "RowRange.start", "RowRange.end", "TrainParams.max_grad_norm"}


def test_the_default_comparison_is_the_embedded_preset(project: Path) -> None:
    assert (project / "params.yaml").read_bytes() == (project / "presets" / "embedded.yaml").read_bytes()
