"""What a stage keeps beyond DVC, under digests of its own, depends on all that dvc.yaml says the stage depends on.

dvc.yaml is read for what there is: a value of params.yaml, or a file, that comes to a stage has to change what is kept,
or to stand here with the reason why it does not.
"""

import dataclasses
import re
from typing import get_args

import pytest
from pydantic import BaseModel

from tasks.evaluate import HeldoutRows, ModelToEvaluate, list_evaluation_inputs
from tasks.inputs.snapshot import Snapshot, read_stages
from tasks.measure import Inputs
from tasks.params import load_params
from tasks.params.sources import RowRange
from tasks.params.train import NOT_CONTENT, LoraParams
from tasks.records.facts import SliceFacts
from tasks.records.manifests import BaseModelManifest
from tasks.train import plan_segments
from tests.machines import make_machine
from tests.tiny import make_slice, with_manifest
from training.registry import list_strategies

CELL = "2proc"
ONLY_NAMED = {"model.name"}
"""Names the checkpoints and is in nothing that is measured."""


@pytest.fixture
def params(project):
    return load_params(project / "presets" / "embedded.yaml", looks_at_data=False)


@pytest.fixture
def stages(project, params, monkeypatch):
    monkeypatch.chdir(project)
    return {stage.name: stage for stage in read_stages(params)}


def _change(value, annotation):
    """Return another value of the same kind."""
    if any(part is LoraParams for part in get_args(annotation)):
        return LoraParams(rank=2, alpha=4)
    words = [word for word in get_args(annotation) if isinstance(word, str)]
    if words:
        return next(word for word in words if word != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict):
        return {**value, "added": 1}
    return f"{value}x" if isinstance(value, str) else (value or 0) + 1


def _change_fields(model, key):
    """Yield every key below `key` with the model in which it has another value."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        # A strategy is a file of the project, which is read.
        other = _find_other_strategy(value) if name == "strategy" else _change(value, field.annotation)
        yield f"{key}.{name}", model.model_copy(update={name: other})


def _find_other_strategy(strategy):
    return next(name for name in sorted(STRATEGIES) if name != strategy)


def _change_each(params, keys):
    """Yield every value that stands below those keys of params.yaml, by its own key, with params of another one."""
    for key in keys:
        section, _, name = key.partition(".")
        value = getattr(params, section)
        if section == "cells":
            for cell in [name] if name else value:
                for changed_key, changed in _change_fields(value[cell], f"cells.{cell}"):
                    yield changed_key, params.model_copy(update={section: {**value, cell: changed}})
        elif section == "ranges":
            yield key, params.model_copy(update={section: [RowRange(start=0, end=400), *value[1:]]})
        elif name:
            changed = value.model_copy(update={name: f"{getattr(value, name)}x"})
            yield key, params.model_copy(update={section: changed})
        elif isinstance(value, BaseModel):
            for changed_key, changed in _change_fields(value, section):
                yield changed_key, params.model_copy(update={section: changed})
        else:
            yield key, params.model_copy(update={section: f"{value}x"})


def _fingerprint(params, **facts):
    """Return the address of the first segment: how many there are decides none of them."""
    slices = {
        str(part): SliceFacts(range=str(part), num_rows=500, num_tokens=9, digest=f"rows of {part}")
        for part in params.ranges
    }
    slices |= facts.pop("slices", {})
    told = {"base_model": "b", "machine": "m", **facts}
    return plan_segments(CELL, params, slices=slices, **told)[0].fingerprint


def test_a_segment_is_told_from_others_by_every_value_that_its_stage_depends_on(params, stages):
    before = _fingerprint(params)
    changed = dict(_change_each(params, stages[f"train@{CELL}"].params))
    assert len(changed) > 25
    same = {key for key, other in changed.items() if _fingerprint(other) == before}
    assert same == {f"train.{name}" for name in NOT_CONTENT} | {"verify.updates", "verify.max_gib"}


def test_a_segment_is_told_from_others_by_every_file_that_its_stage_depends_on(params, stages):
    rows = SliceFacts(range="0-500", num_rows=500, num_tokens=9, digest="other rows")
    others = {
        "data/slices": {"slices": {"0-500": rows}},
        "data/base_model": {"base_model": "other"},
        "data/fingerprint/machine.json": {"machine": "other"},
    }
    assert set(others) == _list_files(stages[f"train@{CELL}"])
    for file, other in others.items():
        assert _fingerprint(params, **other) != _fingerprint(params), file


def _list_files(stage):
    """Return its inputs; source files of the project count by their versions."""
    return {
        dep for dep in stage.deps if not dep.startswith(("data/fingerprint/stages/", "ddp_audit", "tasks", "training"))
    }


@pytest.fixture
def inputs(params, tmp_path):
    """What the stage `measure` is given."""
    make_slice(tmp_path / "0-500", num_rows=200)
    return Inputs(
        snapshot=Snapshot(None), params=params, model_dir=tmp_path,
        base_model=BaseModelManifest.model_construct(digest="b"), machine=make_machine(),
        rows=[tmp_path / "0-500"], slices=tmp_path, rows_digests={"0-500": "r", "500-1300": "s"}, trial=None,
    )  # fmt: skip


def test_what_is_measured_is_told_from_others_by_every_value_that_its_stage_depends_on(inputs, stages):
    changed = dict(_change_each(inputs.params, stages["measure"].params))
    same = {key for key, params in changed.items() if dataclasses.replace(inputs, params=params).key == inputs.key}
    # Of `ranges` the rows themselves count, which are files; what is checked of a training measures nothing anew.
    assert same == {f"train.{name}" for name in NOT_CONTENT} | ONLY_NAMED | {
        "ranges", "verify.updates", "verify.max_gib",
    }  # fmt: skip


def test_what_is_measured_is_told_from_others_by_which_cell_comes_first(inputs):
    cells = dict(reversed(inputs.params.cells.items()))
    assert dataclasses.replace(inputs, params=inputs.params.model_copy(update={"cells": cells})).key != inputs.key


CHANGES = {
    "data/slices": lambda one: dataclasses.replace(one, rows_digests={"0-500": "other", "500-1300": "s"}),
    "data/base_model": lambda one: dataclasses.replace(
        one, base_model=BaseModelManifest.model_construct(digest="other")
    ),
    "data/fingerprint/machine.json": lambda one: dataclasses.replace(
        one, machine=one.machine.model_copy(update={"digest": "other"})
    ),
    "data/fingerprint/trial.json": lambda one: dataclasses.replace(one, trial="again"),
}
"""File of dvc.yaml -> another one."""


def test_what_is_measured_is_told_from_others_by_every_file_that_its_stage_depends_on(inputs, stages):
    assert set(CHANGES) == _list_files(stages["measure"])
    assert {file for file, change in CHANGES.items() if change(inputs).key == inputs.key} == set()


def test_what_is_measured_is_told_from_others_by_variables_that_change_numbers_or_speed(inputs, monkeypatch):
    def begin():
        return dataclasses.replace(inputs, snapshot=Snapshot(None))

    before = begin().key
    for name in ("SOME_NAME", "OMP_NUM_THREADS", "NCCL_DEBUG", "CUDA_MPS_PIPE_DIRECTORY", "TORCH_EXTENSIONS_DIR"):
        monkeypatch.setenv(name, "7")
    assert begin().key == before
    begun = begin()
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    assert begin().key != before
    assert begun.key == before, "what the stage sets while it runs is none of what it began with"


@pytest.fixture
def evaluated(params, tmp_path):
    """What the results of the stage `evaluate` say that they depend on, with one input or another changed."""
    slices = tmp_path / "slices"
    for number, part in enumerate(("0-500", "0-400", "1300-1500")):
        make_slice(slices / part, num_rows=8, seed=number)
    (tmp_path / "model").mkdir()
    with_manifest(tmp_path / "model", num_parameters=1, model_type="qwen2")

    def list_inputs(params=params, weights="w"):
        rows = HeldoutRows(
            folder=slices / "1300-1500", seq_len=params.train.seq_len, vocab_size=9, eos_token_id=1,
            base_model=tmp_path / "model", workload=params.workload,
        )  # fmt: skip
        subject = ModelToEvaluate(name=CELL, checkpoint=None, weights_digest=weights)
        return {"figures": list_evaluation_inputs(subject, rows)}

    return list_inputs


def test_what_is_evaluated_is_told_from_others_by_every_value_that_does_not_come_with_the_weights(
    params, stages, evaluated
):
    before = evaluated()
    keys = [key for key in stages["evaluate"].params if key != "heldout"]  # which is in the folder of its rows
    changed = dict(_change_each(params, keys))
    assert len(changed) > 30
    for key, other in changed.items():
        names = {name for name, found in evaluated(params=other).items() if found != before[name]}
        comes_with_weights = _fingerprint(other) != _fingerprint(params) or key.startswith("cells.1proc")
        is_extent = key.removeprefix("train.") in NOT_CONTENT
        assert names or comes_with_weights or is_extent, key


def test_what_is_evaluated_is_told_from_others_by_every_file_that_its_stage_depends_on(tmp_path, stages, evaluated):
    def edit(folder):
        manifest = tmp_path / folder / "manifest.json"
        manifest.write_text(re.sub(r'"digest": "[0-9a-f]+"', '"digest": "other"', manifest.read_text()))
        return evaluated()

    before = evaluated()
    others = {
        "data/runs": evaluated(weights="other"),
        "data/base_model": edit("model"),
        "data/slices": edit("slices/1300-1500"),
    }
    assert set(others) == _list_files(stages["evaluate"])
    assert [found["figures"] == before["figures"] for found in others.values()] == [False] * 3


def test_all_that_is_kept_is_told_from_others_by_the_version_of_what_made_it(params, inputs, evaluated, monkeypatch):
    def list_all():
        return {"speed": inputs.key, **evaluated(), "segment": _fingerprint(params)}

    before = list_all()
    monkeypatch.setattr("tasks.measuring.versions.MEASURING_VERSION", 1000)
    measured = list_all()
    assert {name for name in before if measured[name] == before[name]} == {"segment"}
    monkeypatch.setattr("tasks.measuring.versions.NUMERICS_VERSION", 1000)
    monkeypatch.setattr("tasks.train.NUMERICS_VERSION", 1000)
    assert not [name for name, found in list_all().items() if found == measured[name]]
