"""Which changes of params.yaml are worth trying on a cell, and how they are written there."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from tasks.measuring.advice import _Trying, format_patch, list_knobs
from tasks.measuring.arms import Cell
from tasks.params import Params
from tests.tasks.measuring.noisy_machine import NoisyMachine, make_trouble
from tests.tasks.reporting.comparison import PARAMS
from training.strategies import Knob

PACKED, GPU, OLD_GPU = {"packing": True, "precision": "bf16"}, {"device": "cuda"}, {"device": "cuda", "has_bf16": False}


def _params(*, workload="causal_lm", options=None, **train):
    two = PARAMS["cells"]["2proc"] | {"options": options or {}}
    asked = PARAMS | {"train": PARAMS["train"] | train, "cells": PARAMS["cells"] | {"2proc": two}}
    return Params.model_validate(asked).model_copy(update={"workload": workload})


def _list_knobs(params, cell="2proc", **changes):
    asked = {"device": "cpu", "exchange": {"bucket_bytes": [40 * 2**20, 2 * 2**20]}, "can": ["packing"], **changes}
    return list_knobs(params, cell, **asked)


@pytest.mark.parametrize(
    ("params", "asked", "tried", "not_tried"),
    [
        ({}, {}, "options.gradient_hook train.packing", "options.bucket_view train.compile train.precision"),
        ({}, {"cell": "1proc"}, "train.packing", "options.gradient_hook options.bucket_mib"),
        ({}, {"can": []}, "", "train.packing"),
        ({"packing": True}, {}, "", "train.packing"),
        ({"options": {"gradient_hook": "fp16"}}, {}, "", "options.gradient_hook"),
        ({"options": {"bucket_view": False}}, {}, "options.bucket_view", ""),
        ({"exact": True}, {}, "", "options.gradient_hook"),
        # 16 bit and compiled layers on GPUs alone.
        ({}, GPU, "train.precision train.compile", ""),
        ({"compile": True}, GPU, "", "train.compile"),
        (PACKED, GPU, "train.compile", "train.precision"),
        # The packs of a classifier are not compiled, and images refuse it.
        (PACKED | {"workload": "sequence_classification"}, GPU, "", "train.compile"),
        ({"workload": "image_classification", "precision": "bf16"}, GPU, "", "train.compile"),
        # GPUs before Ampere: packs run document by document, as all do in fp32.
        ({"packing": True, "precision": "fp16"}, OLD_GPU, "", "train.compile train.precision"),
    ],
)
def test_levers_are_tried_where_the_cell_its_model_and_the_device_make_them_possible(params, asked, tried, not_tried):
    keys = {knob.key for knob in _list_knobs(_params(**params), **asked)}
    assert keys >= {*tried.split()}
    assert keys.isdisjoint(not_tried.split())


@pytest.mark.parametrize(("asked", "precisions"), [(GPU, ["bf16", "fp16"]), (OLD_GPU, ["fp16"])])
def test_a_precision_is_tried_that_the_gpu_computes_in(asked, precisions):
    knobs = _list_knobs(_params(), **asked)
    assert [knob.overrides["precision"] for knob in knobs if knob.key == "train.precision"] == precisions


@pytest.mark.parametrize("train", [{}, PACKED], ids=str)
def test_every_change_is_written_so_that_params_yaml_takes_it(train):
    params = {"options": {"bucket_view": False}, **train}
    for knob in _list_knobs(_params(**params), **GPU):
        _params(**params | knob.overrides)
        options = knob.overrides.get("options")
        patch = {"cells": {"2proc": {"options": options}}} if options else {"train": knob.overrides}
        assert yaml.safe_load(format_patch([knob], "2proc")) == patch


class _ChangedSteps(NoisyMachine):
    """Every arm is that of two ranks, its step faster by what its change gains."""

    gain = 1.0

    def _run_block(self, name, _):
        block, gain = super()._run_block(name, 1), self.gain if name.endswith("packing") else 1.0
        return replace(block, seconds=block.seconds / gain, step_seconds=block.step_seconds / gain)


@pytest.mark.parametrize(
    ("trouble", "seconds", "error_rate", "gain", "num_seeds", "least", "most"),
    [
        # Of the default 12 s, of which the combination has its part, with two more changes to try.
        (make_trouble(), 4.2, 0.05 / 4, 1.1, 60, 0.9, 1.0),
        # However often a change that does nothing is looked at: two standard errors above 5 %.
        (make_trouble(wander=0.15, wander_seconds=0.05), 40.0, 0.05, 1.0, 100, 0.0, 0.09),
    ],
)
def test_a_change_that_helps_is_recommended_in_the_time_for_advice_and_one_that_does_nothing_is_not(
    trouble, seconds, error_rate, gain, num_seeds, least, most, monkeypatch
):
    cell = Cell(name="2proc", strategy="ddp", world_size=2, global_batch_size=4)
    knobs = [[Knob(key=key, change=key, overrides={key: 2})] for key in ("train.packing", "train.compile")]
    num_clear = 0
    for seed in range(num_seeds):
        machine = _ChangedSteps(trouble, seed)
        machine.gain = gain
        monkeypatch.setattr("tasks.measuring.advice.time", SimpleNamespace(perf_counter=lambda now=machine: now.now))
        comparison = SimpleNamespace(seed=seed, most_share=0.05)
        trying = _Trying(cell, comparison, machine, error_rate=error_rate)
        found = trying._time_sets(knobs if gain > 1 else knobs[:1], deadline=machine.now + seconds)
        num_clear += found[0].verdict != "no clear gain"
        assert gain == 1 or found[0].verdict != "slower"
    assert least <= num_clear / num_seeds <= most
