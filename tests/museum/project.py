"""Scratch projects: the sources of this checkout, a tiny model and a few rows, and the stages run on them."""

import compileall
import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from tests.museum.stage_process import StageProcess
from tests.museum.workloads import PARAMS, VOCAB_SIZE, write_rows, write_tokenizer
from tests.tiny import make_tiny_model
from tests.workspace import set_values
from training.process.files import write_json

CELLS = ("1proc", "2proc")
SOURCES = ("ddp_audit", "tasks", "training")
_LAUNCHER = Path(__file__).with_name("forked.py")


class Size(NamedTuple):
    """How much is trained, and on what."""

    num_rows: tuple[int, int] = (45, 29)
    """Rows of the two ranges; neither a multiple of the global batch."""
    train: Any = ()
    """A mapping: changes to the section `train` of params.yaml."""
    workload: str = "causal_lm"
    """What is trained: one of tests/museum/workloads.py; who asks for another one writes its model, too."""
    measure: Any = ()
    """A mapping: changes to the section `measure`."""


def make_project(folder, checkout, size):
    """Fill `folder` with what stands before training: sources, model, rows, manifests, params.yaml."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    for name in SOURCES:
        # What is compiled already holds for the copy; what is being written is not there for long.
        shutil.copytree(checkout / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))
        compileall.compile_dir(folder / name, quiet=1)
    shutil.copy(checkout / "dvc.yaml", folder)
    shutil.copy(_LAUNCHER, folder / "tasks" / "ranks" / "launchers" / "forked.py")
    data = folder / "data"
    for seed, name in enumerate(("base_model", "other_model"), start=1):
        make_tiny_model(data / name, vocab_size=VOCAB_SIZE, hidden_size=128, seed=seed)
        write_tokenizer(data / name)
    ranges = _write_slices(data, size)
    raw = {"source": "builtin:docstrings", "kind": "builtin", "revision": None, "commit": None, "split": None}
    raw |= {"text_column": "text", "num_rows": sum(size.num_rows) + 1, "digest": "0" * 64, "label": "no text"}
    write_json(data / "raw" / "manifest.json", raw)
    write_json(data / "fingerprint" / "machine.json", _machine())
    write_json(data / "fingerprint" / "trial.json", {"trial": None})
    write_json(folder / "params.yaml", _params(ranges, size))  # JSON is YAML


def copy_project(project, folder):
    """Return an independent copy: sources are copied, finished work is linked."""
    folder.mkdir(parents=True)
    for name in (*SOURCES, "dvc.yaml", "params.yaml"):
        subprocess.run(["cp", "-a", project / name, folder / name], check=True)
    for name in ("data", ".work"):
        if (project / name).exists():
            subprocess.run(["cp", "-al", project / name, folder / name], check=True)
    return folder


def change_params(project, changes):
    """Set values in params.yaml; a key names its place with dots."""
    params = json.loads((project / "params.yaml").read_bytes())
    set_values(params, changes)
    write_json(project / "params.yaml", params)


def patch_project(project, *keys):
    """Have the processes that run in the project patched: `MODULE:KEY` of tests/mutants/patching.py."""
    (project / "patches").write_text("\n".join(keys), encoding="utf-8")


def start_stage(project, stage, cell):
    """Start a stage, of this cell if it is one of each."""
    return StageProcess(project, stage, *list_arguments(project, stage, cell))


def list_arguments(project, stage, cell):
    """Return the stage's arguments as dvc.yaml has them."""
    entry = YAML(typ="safe", pure=True).load(project / "dvc.yaml")["stages"][stage]
    command = entry.get("do", entry)["cmd"]
    python, option, module, *arguments = shlex.split(command.replace("${key}", cell))
    assert (python, option, module) == ("python", "-m", f"tasks.{stage}")
    # No snapshot: what an exhibit changes between two stages, it changes on purpose.
    at = arguments.index("--inputs")
    return arguments[:at] + arguments[at + 2 :]


def _write_slices(data, size):
    """Write both ranges, the held-out rows and their manifest; return the three names."""
    first, names, facts = 0, [], {}
    # One long row is held out: the stage `evaluate` also continues rows, which takes most of its time.
    for index, (num_rows, min_len) in enumerate([(size.num_rows[0], 2), (size.num_rows[1], 2), (1, 64)]):
        name = f"{first}-{first + num_rows}"
        folder = data / "slices" / name
        write_rows(size.workload, folder, num_rows=num_rows, first_row=first, min_len=min_len, seed=10 + index)
        manifest = json.loads((folder / "manifest.json").read_bytes())
        facts[name] = {key: manifest[key] for key in ("range", "digest", "num_rows", "num_tokens")}
        names.append(name)
        first += num_rows
    write_json(
        data / "slices" / "manifest.json",
        {"tokenizer_digest": "0" * 64, "vocab_size": VOCAB_SIZE, "eos_token_id": VOCAB_SIZE - 1}
        | {"workload": size.workload, "slices": facts, "heldout": names[-1]},
    )
    return names


def _machine():
    from tasks.machine.facts import collect_machine_facts

    # The museum is about processes on the CPU, also where there is a GPU.
    return collect_machine_facts().model_copy(update={"gpus": [], "num_gpus": 0}).model_dump(mode="json")


_PARAMS = """
name: museum
description: A comparison that may have a defect.
train: {epochs: 1, global_batch_size: 8, micro_batch_size: 2, learning_rate: 2.0e-3, warmup_steps: 2,
  weight_decay: 0.01, max_grad_norm: 1.0, seed: 1}
# The gates are what is looked at here; speeds of whole trainings are enough for them.
measure: {speed: false}
cells:
  1proc: {strategy: single, world_size: 1, launcher: forked}
  2proc: {strategy: ddp, world_size: 2, launcher: forked}
"""


def _params(names, size):
    params, own = YAML(typ="safe", pure=True).load(_PARAMS), PARAMS[size.workload]
    params["train"] |= own["train"] | dict(size.train)
    params["measure"] |= dict(size.measure)
    names = {"ranges": names[:-1], "heldout": names[-1]}
    return params | names | {"workload": size.workload, "model": own["model"], "dataset": own["dataset"]}
