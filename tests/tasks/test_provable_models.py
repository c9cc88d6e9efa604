"""Every preset's model, tiny, is proven in its own settings: updates checked as users have them, real timed blocks.

Gates that judge seconds are left out: what they say here is about this machine.
"""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tasks.gates.checks import compute_standings
from tasks.records.gate import QUIET_TURNS
from tasks.reporting.results import Results
from tests.museum.museum import ABOUT_SECONDS, compare
from tests.museum.project import CELLS, Size, change_params, make_project
from tests.museum.stage_process import run_elsewhere
from tests.museum.workloads import VOCAB_SIZE
from tests.tiny import with_manifest, write_tiny_model
from training.process.files import write_json

pytestmark = pytest.mark.slow

_TOLD = YAML(typ="safe", pure=True).load(Path(__file__).with_name("provable_models.yaml"))
_MODELS, _SIZES = _TOLD["models"], _TOLD["sizes"]
_NORMALISED_TOGETHER = {"model.norm": "sync_batch", "cells.1proc.micro_batch_size": 4}


def _write_model(folder, kind, more):
    """Put a model of this kind, with random weights, in the place of the one that is there."""
    if kind in ("resnet18", "vit"):
        from safetensors.torch import save_model

        from tests.images import CLASS_NAMES
        from training.workloads.image_classification import build_network

        config = {"model_type": kind, "class_names": CLASS_NAMES, **_SIZES[kind], **more}
        network = build_network(config)
        write_json(folder / "config.json", config)
        save_model(network, str(folder / "model.safetensors"))
        with_manifest(folder, num_parameters=sum(part.numel() for part in network.parameters()), model_type=kind)
    else:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

        made = AutoModelForSequenceClassification if kind == "bert" else AutoModelForCausalLM
        sizes = {**_SIZES[kind], "vocab_size": VOCAB_SIZE, "max_position_embeddings": 128, "pad_token_id": 3}
        write_tiny_model(folder, lambda: made.from_config(AutoConfig.for_model(kind, **sizes)))


@pytest.mark.parametrize(
    ("preset", "changes"), [*((name, {}) for name in _MODELS), ("resnet18-imagefolder", _NORMALISED_TOGETHER)]
)
def test_a_presets_model_is_proven(preset, changes, tmp_path, project):
    told = YAML(typ="safe", pure=True).load(project / "presets" / f"{preset}.yaml")
    is_of_images = told["workload"] == "image_classification"
    train = told["train"] | _TOLD["train"] | ({"precision": "fp32"} if is_of_images else {"seq_len": 64})
    size = Size(num_rows=(29, 13), workload=told["workload"], train=train, measure=_TOLD["measure"])
    run_elsewhere(make_project, tmp_path, project, size)
    norm = {"norm": "sync_batch"} if changes else {}
    run_elsewhere(_write_model, tmp_path / "data/base_model", _MODELS[preset], norm)
    spread = next(cell for cell in told["cells"].values() if cell["world_size"] > 1)
    change_params(
        tmp_path, {f"cells.2proc.{key}": spread[key] for key in ("strategy", "options") if key in spread} | changes
    )
    outcome = compare(tmp_path)
    assert outcome.results is not None, outcome.says
    gates = [
        one for one in Results.model_validate(outcome.results).gates if one.name not in (*ABOUT_SECONDS, QUIET_TURNS)
    ]
    standings = compute_standings(gates, CELLS)
    assert {cell: (one.state, one.gates, one.reason) for cell, one in standings.items()} == dict.fromkeys(
        CELLS, ("proven", [], None)
    )
