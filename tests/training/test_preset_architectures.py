"""No model class is unprovable: the best standing that updates of each preset's architecture can reach is "proven"."""

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.gates.checks import check_gates, compute_standings
from tests.conftest import PROJECT
from tests.extras import skip_without
from tests.images import make_image_slice
from tests.tasks.reporting.comparison import edit_segment, outputs_of, write_comparison
from tests.training.conftest import Toy
from tests.training.forked_ranks import ForkedRanks
from tests.training.replays import check, list_verdicts, train_checked

_TINY = {
    "bert_base": "bert, dropout", "bloomz_1b1": "bloom", "gpt2": "gpt2", "llama_1B": "llama", "opt_1.3B": "opt",
    "qwen2_0.5B": "tiny", "qwen3_1.7B": "qwen3", "tiny_qwen2": "tiny", "resnet18": "resnet18", "resnet50": "resnet18",
    # Built in at one size, of 86 million parameters.
    "vit_b_16": None,
}  # fmt: skip
"""`model.name` of a preset -> the same architecture in tests/training/models.py, with the preset's dropout."""
_IS_TOLD = ("precision", "optimizer", "packing", "augment", "activation_checkpointing")
_SGD = {"learning_rate": 0.01, "max_grad_norm": 5.0}


def _list_trainings() -> dict[str, dict[str, Any]]:
    """Return what ranks are told as the presets have it, once where several tell the same."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted((PROJECT / "presets").glob("*.yaml")):
        params = YAML(typ="safe").load(file)
        train, model = params["train"], _TINY[params["model"]["name"]]
        told = {"model": model, "workload": params["workload"]} | {key: train[key] for key in _IS_TOLD if key in train}
        # On a CPU images are refused in 16 bit.
        told |= {"precision": "fp32"} if params["workload"] == "image_classification" else {}
        told |= _SGD if train.get("optimizer") == "sgd" else {}
        told |= {"adapter": {"kind": "lora", "base": None, **train["adapter"]}} if "adapter" in train else {}
        if model and told not in found.values():
            found[file.stem] = told
    together = {"model": "resnet18, normed", "statistics_rows": 4}
    return found | {"resnet18, sync_batch": found["resnet18-2nodes"] | together}


_TRAININGS = _list_trainings()


@pytest.mark.slow
@pytest.mark.parametrize("name", _TRAININGS)
def test_a_training_as_a_preset_has_it_can_be_proven(name: str, ranks: ForkedRanks, toy: Toy, tmp_path: Path) -> None:
    told = _TRAININGS[name]
    if "adapter" in told:
        skip_without("peft")
    if told["workload"] == "image_classification":
        # Over fewer values, as of 16 x 16 pixels, a rounding becomes 30 times as much in each normalisation.
        told = {**told, "slices": [make_image_slice(tmp_path / "images", num_rows=22, size=64)]}
    updates = train_checked(ranks, check(toy.tell(world_size=2, **told), 1, 2, 3))
    params = write_comparison(tmp_path / "compared")
    edit_segment(tmp_path / "compared", "2proc", checked_updates=updates)
    gates = check_gates(outputs_of(tmp_path / "compared", params))
    assert len(updates) == 3
    assert compute_standings(gates, list(params["cells"]))["2proc"].state == "proven", list_verdicts(updates)
