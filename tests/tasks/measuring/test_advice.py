"""Which changes of params.yaml are worth trying on a cell, and how they are written there."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tasks.measuring.advice import _describe_break_even, _Trying, format_patch, list_knobs
from tasks.measuring.arms import Arm, Cell
from tasks.measuring.turns import TimedTurns
from tasks.params import Params
from tests.tasks.measuring.noisy_machine import TROUBLES, NoisyMachine, Trouble
from tests.tasks.reporting.comparison import PARAMS
from training.strategies import Knob


def _params(*, options: dict[str, Any] | None = None, **train: Any) -> Params:
    cells = {name: dict(cell) for name, cell in PARAMS["cells"].items()}
    cells["2proc"]["options"] = options or {}
    return Params.model_validate(PARAMS | {"train": PARAMS["train"] | train, "cells": cells})


def _keys(params: Params, cell: str = "2proc", **changes: Any) -> list[str]:
    asked: dict[str, Any] = {
        "device": "cpu",
        "exchange": {"bucket_bytes": [4 * 2**20]},
        "can": ["packing"],
        **changes,
    }
    return [knob.key for knob in list_knobs(params, cell, **asked)]


def test_levers_are_tried_where_the_cell_and_its_model_make_them_possible() -> None:
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


def test_16_bit_and_compiled_layers_are_tried_on_gpus_only() -> None:
    assert not {"train.compile", "train.precision"} & set(_keys(_params()))
    keys = _keys(_params(), device="cuda")
    assert keys.count("train.precision") == 2
    assert keys.count("train.compile") == 1
    assert "train.compile" not in _keys(_params(compile=True), device="cuda")
    for packing in (False, True):
        assert "train.compile" in _keys(_params(packing=packing, precision="bf16"), device="cuda")
    classifier = _params(packing=True, precision="bf16").model_copy(update={"workload": "sequence_classification"})
    assert "train.compile" not in _keys(classifier, device="cuda"), "its packs are not compiled"
    # GPUs before Ampere: packs run document by document, as all do in fp32.
    old = _keys(_params(precision="fp16", packing=True), device="cuda", has_bf16=False)
    assert not {"train.compile", "train.precision"} & set(old)
    assert _keys(_params(), device="cuda", has_bf16=False).count("train.precision") == 1
    images = _params().model_copy(update={"workload": "image_classification"})
    assert "train.compile" not in _keys(images, device="cuda"), "it refuses compiled layers"


@pytest.mark.parametrize("train", [{}, {"packing": True, "precision": "bf16"}], ids=str)
def test_every_change_is_written_so_that_params_yaml_takes_it(train: dict[str, Any]) -> None:
    params = _params(options={"bucket_view": False}, **train)
    asked: dict[str, Any] = {
        "device": "cuda",
        "exchange": {"bucket_bytes": [40 * 2**20, 2 * 2**20]},
        "can": ["packing"],
    }
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

    def __init__(self, machine: NoisyMachine, gains: Mapping[str, float]) -> None:
        self._machine, self._gains = machine, gains

    def run_turn(self, arms: Sequence[Arm], order: Iterator[list[str]], timed_turns: TimedTurns) -> None:
        ran = TimedTurns()
        # Every arm is in the place of the two ranks, the second of the machine's.
        for name in next(order):
            self._machine.run_turn([Arm(name="one", cell="one"), Arm(name=name, cell=name)], iter([[name]]), ran)
            block, gain = ran.blocks[name][-1], self._gains.get(name, 1.0)
            timed_turns.add(replace(block, seconds=block.seconds / gain, step_seconds=block.step_seconds / gain))


@pytest.mark.parametrize(("gain", "least", "most"), [(1.0, 0.0, 0.05), (1.1, 0.9, 1.0)])
def test_on_a_quiet_machine_the_time_for_advice_is_enough_to_see_what_is_worth_it(
    gain: float, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(name="2proc", strategy="ddp", world_size=2, global_batch_size=4)
    knobs = [Knob(key=key, change=key, overrides={key: 2}) for key in ("train.micro_batch_size", "train.packing")]
    found, wrong = [], 0
    for seed in range(60):
        machine = NoisyMachine(TROUBLES["none"], 1.5, seed)
        monkeypatch.setattr("tasks.measuring.advice.time", SimpleNamespace(perf_counter=lambda now=machine: now.now))
        bench: Any = _ChangedSteps(machine, {f"2proc, {knobs[0].change}": gain})
        comparison: Any = SimpleNamespace(seed=seed, most_share=0.05)
        # As of the default 12 s, of which the combination has its part, with two more changes to try.
        trying = _Trying(cell, comparison, bench, error_rate=0.05 / 4)
        better, same = trying._time_sets([[knob] for knob in knobs], deadline=machine.now + 4.2)
        found.append(better.verdict)
        wrong += not same.gain.low < 1 < same.gain.high
    # Of one in a hundred.
    assert wrong <= 2
    assert least <= found.count("recommended") / len(found) <= most


def test_a_change_that_does_nothing_is_not_called_something_because_it_is_looked_at_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = Cell(name="2proc", strategy="ddp", world_size=2, global_batch_size=4)
    knob = Knob(key="train.packing", change="train.packing", overrides={"packing": True})
    wrong = 0
    for seed in range(300):
        machine = NoisyMachine(Trouble(wander=0.15, wander_seconds=0.05), 1.5, seed)
        monkeypatch.setattr("tasks.measuring.advice.time", SimpleNamespace(perf_counter=lambda now=machine: now.now))
        bench: Any = _ChangedSteps(machine, {})
        comparison: Any = SimpleNamespace(seed=seed, most_share=0.05)
        trying = _Trying(cell, comparison, bench, error_rate=0.05)
        (found,) = trying._time_sets([[knob]], deadline=machine.now + 40.0)
        wrong += found.verdict != "no clear gain"
    # Two standard errors above 5 %.
    assert wrong / 300 <= 0.075, f"{wrong} of 300"


@pytest.mark.parametrize(
    ("warm_up_seconds", "step_seconds", "said"),
    [
        (21.0, 0.5, "compiling takes 20.0 s at the start of every launch, won back after 40 steps"),
        (21.0, 1.5, "compiling takes 20.0 s"),
        # Whose results are kept on the disk: it takes no time, and not less than none.
        (0.9, 0.5, "compiling added nothing to the warm-up here"),
    ],
)
def test_what_compiling_takes_is_said_with_the_steps_that_win_it_back(
    warm_up_seconds: float, step_seconds: float, said: str
) -> None:
    facts, seconds = {"plain": 1.0, "compiled": warm_up_seconds}, {"plain": [1.0, 1.0], "compiled": [step_seconds] * 2}
    bench: Any = SimpleNamespace(facts=lambda arm: [{"warm_up_seconds": facts[arm.name]}])
    timed_turns: Any = SimpleNamespace(list_by_turn=lambda name: seconds[name])
    plain, compiled = (Arm(name=name, cell="2proc", variant={}) for name in facts)
    assert _describe_break_even(bench, plain, compiled, timed_turns) == said
