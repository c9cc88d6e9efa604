"""Which changes of params.yaml are worth trying on a cell, and how they are written there."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from tasks.measuring.advice import _Trying, format_patch, list_knobs
from tasks.measuring.arms import Arm, Cell
from tasks.measuring.turns import TimedTurns
from tasks.params import Params
from tests.tasks.measuring.noisy_machine import NoisyMachine, Trouble
from tests.tasks.reporting.comparison import PARAMS
from training.strategies import Knob


def _params(*, options=None, **train):
    cells = {name: dict(cell) for name, cell in PARAMS["cells"].items()}
    cells["2proc"]["options"] = options or {}
    return Params.model_validate(PARAMS | {"train": PARAMS["train"] | train, "cells": cells})


def _keys(params, cell="2proc", **changes):
    asked = {"device": "cpu", "exchange": {"bucket_bytes": [4 * 2**20]}, "can": ["packing"], **changes}
    return [knob.key for knob in list_knobs(params, cell, **asked)]


def test_levers_are_tried_where_the_cell_and_its_model_make_them_possible():
    keys = _keys(_params())
    assert "options.gradient_hook" in keys
    assert "train.packing" in keys
    assert "train.packing" not in _keys(_params(), can=[])
    assert "train.packing" not in _keys(_params(packing=True))
    assert "options.gradient_hook" not in _keys(_params(options={"gradient_hook": "fp16"}))
    assert "options.gradient_hook" not in _keys(_params(exact=True))
    assert "options.bucket_view" in _keys(_params(options={"bucket_view": False}))
    assert "options.bucket_view" not in _keys(_params())
    assert not any(key.startswith("options.") for key in _keys(_params(), cell="1proc"))


def test_16_bit_and_compiled_layers_are_tried_on_gpus_only():
    both = {"train.compile", "train.precision"}
    assert not both & set(_keys(_params()))
    keys = _keys(_params(), device="cuda")
    assert (keys.count("train.precision"), keys.count("train.compile")) == (2, 1)
    assert "train.compile" not in _keys(_params(compile=True), device="cuda")
    assert "train.compile" in _keys(_params(packing=True, precision="bf16"), device="cuda")
    # The packs of a classifier are not compiled, and images refuse it.
    for workload, train in (("sequence_classification", {"packing": True}), ("image_classification", {})):
        other = _params(precision="bf16", **train).model_copy(update={"workload": workload})
        assert "train.compile" not in _keys(other, device="cuda")
    # GPUs before Ampere: packs run document by document, as all do in fp32.
    assert not both & set(_keys(_params(precision="fp16", packing=True), device="cuda", has_bf16=False))
    assert _keys(_params(), device="cuda", has_bf16=False).count("train.precision") == 1


@pytest.mark.parametrize("train", [{}, {"packing": True, "precision": "bf16"}], ids=str)
def test_every_change_is_written_so_that_params_yaml_takes_it(train):
    params = _params(options={"bucket_view": False}, **train)
    asked = {"device": "cuda", "exchange": {"bucket_bytes": [40 * 2**20, 2 * 2**20]}, "can": ["packing"]}
    for knob in list_knobs(params, "2proc", **asked):
        patch = yaml.safe_load(format_patch([knob], "2proc"))
        changes = patch.get("train", {})
        options = patch.get("cells", {}).get("2proc", {}).get("options", {"bucket_view": False})
        assert options["bucket_view"] is (knob.key == "options.bucket_view")
        changed = _params(options=options, **train | changes)
        for name, value in changes.items():
            assert getattr(changed.train, name) == value == knob.overrides[name]
        if "options" in knob.overrides:
            assert changed.cells["2proc"].options == knob.overrides["options"]


class _ChangedSteps:
    """Two ranks of a noisy machine, whose step is faster by what each change gains."""

    def __init__(self, machine, gains):
        self._machine, self._gains = machine, gains

    def run_turn(self, arms, order, timed_turns):
        ran = TimedTurns()
        # Every arm is in the place of the two ranks, the second of the machine's.
        for name in next(order):
            self._machine.run_turn([Arm(name="one", cell="one"), Arm(name=name, cell=name)], iter([[name]]), ran)
            block, gain = ran.blocks[name][-1], self._gains.get(name, 1.0)
            timed_turns.add(replace(block, seconds=block.seconds / gain, step_seconds=block.step_seconds / gain))


@pytest.mark.parametrize(
    ("trouble", "seconds", "error_rate", "gain", "num_seeds", "least", "most"),
    [
        # Of the default 12 s, of which the combination has its part, with two more changes to try.
        (Trouble(), 4.2, 0.05 / 4, 1.1, 60, 0.9, 1.0),
        # However often a change that does nothing is looked at: two standard errors above 5 %.
        (Trouble(wander=0.15, wander_seconds=0.05), 40.0, 0.05, 1.0, 200, 0.0, 0.08),
    ],
)
def test_a_change_that_helps_is_recommended_in_the_time_for_advice_and_one_that_does_nothing_is_not(
    trouble, seconds, error_rate, gain, num_seeds, least, most, monkeypatch
):
    cell = Cell(name="2proc", strategy="ddp", world_size=2, global_batch_size=4)
    knob, other = (Knob(key=key, change=key, overrides={key: 2}) for key in ("train.packing", "train.compile"))
    num_clear = 0
    for seed in range(num_seeds):
        machine = NoisyMachine(trouble, 1.5, seed)
        monkeypatch.setattr("tasks.measuring.advice.time", SimpleNamespace(perf_counter=lambda now=machine: now.now))
        bench = _ChangedSteps(machine, {f"2proc, {knob.change}": gain})
        comparison = SimpleNamespace(seed=seed, most_share=0.05)
        trying = _Trying(cell, comparison, bench, error_rate=error_rate)
        sets = [[knob], [other]] if gain > 1 else [[knob]]
        found = trying._time_sets(sets, deadline=machine.now + seconds)
        num_clear += found[0].verdict != "no clear gain"
        assert gain == 1 or found[0].verdict != "slower"
    assert least <= num_clear / num_seeds <= most
