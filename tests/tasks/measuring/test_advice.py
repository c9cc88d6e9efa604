"""Which changes of params.yaml are worth trying on a cell, and how they are written there."""

from typing import Any

import yaml

from tasks.measuring.advice import list_knobs
from tasks.params import Params
from tests.tasks.reporting.comparison import PARAMS

_CAN = ["packing", "early_tied_head"]


def _params(*, options: dict[str, Any] | None = None, **train: Any) -> Params:
    cells = {name: dict(cell) for name, cell in PARAMS["cells"].items()}
    cells["2proc"]["options"] = options or {}
    return Params.model_validate(PARAMS | {"train": PARAMS["train"] | train, "cells": cells})


def _keys(params: Params, cell: str = "2proc", **changes: Any) -> list[str]:
    asked: dict[str, Any] = {
        "device": "cpu",
        "exchange": {"bucket_bytes": [4 * 2**20]},
        "can": ["packing", "early_tied_head"],
        **changes,
    }
    return [knob.key for knob in list_knobs(params, cell, **asked)]


def test_levers_are_tried_where_the_cell_and_its_model_make_them_possible() -> None:
    keys = _keys(_params())
    assert keys.count("options.exchange") == 2, "in bf16, and the head early: only one of them can be taken"
    assert "train.packing" in keys
    assert "train.packing" not in _keys(_params(), can=["early_tied_head"])
    assert "train.packing" not in _keys(_params(packing=True))
    assert _keys(_params(), can=[]).count("options.exchange") == 1
    assert "options.exchange" not in _keys(_params(options={"gradient_hook": "fp16"}))
    assert "options.exchange" not in _keys(_params(exact=True))
    assert "options.bucket_view" in _keys(_params(options={"bucket_view": False}))
    assert "options.bucket_view" not in _keys(_params())
    assert not any(key.startswith("options.") for key in _keys(_params(), cell="1proc"))


def test_16_bit_and_compiled_layers_are_tried_on_gpus_only() -> None:
    assert not {"train.compile", "train.precision"} & set(_keys(_params()))
    keys = _keys(_params(), device="cuda")
    assert keys.count("train.precision") == 2
    assert keys.count("train.compile") == 1
    assert "train.compile" not in _keys(_params(compile=True), device="cuda")
    images = _params().model_copy(update={"workload": "image_classification"})
    assert "train.compile" not in _keys(images, device="cuda"), "it refuses compiled layers"


def test_gpus_before_ampere_are_not_advised_what_they_do_slowly() -> None:
    def list_changes(**changes: Any) -> list[str]:
        knobs = list_knobs(_params(**changes), "2proc", device="cuda", exchange={}, has_bf16=False)
        return [knob.change for knob in knobs]

    assert "fp16 in forward and backward" in list_changes()
    assert "bf16 in forward and backward" not in list_changes()
    assert "layers compiled" in list_changes(precision="fp16")
    # Their packs run document by document, as all do in fp32.
    assert "layers compiled" not in list_changes(precision="fp16", packing=True)
    assert "train.compile" not in _keys(_params(packing=True), device="cuda")
    assert "train.compile" in _keys(_params(packing=True, precision="bf16"), device="cuda")


def test_every_change_is_written_so_that_params_yaml_takes_it() -> None:
    params = _params(options={"bucket_view": False})
    asked: dict[str, Any] = {
        "device": "cuda",
        "exchange": {"bucket_bytes": [40 * 2**20, 2 * 2**20]},
        "can": ["packing", "early_tied_head"],
    }
    for knob in list_knobs(params, "2proc", **asked):
        patch = yaml.safe_load(knob.patch("2proc"))
        train = patch.get("train", {})
        options = patch.get("cells", {}).get("2proc", {}).get("options", {"bucket_view": False})
        assert options["bucket_view"] is (knob.key == "options.bucket_view")
        changed = _params(options=options, **train)
        for name, value in train.items():
            assert getattr(changed.train, name) == value == knob.overrides[name]
        if "options" in knob.overrides:
            assert changed.cells["2proc"].options == knob.overrides["options"]
