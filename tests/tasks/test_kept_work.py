"""What a stage keeps beyond DVC, under digests of its own, depends on all that dvc.yaml says the stage depends on.

dvc.yaml is read for what there is: a value of params.yaml, or a file, that comes to a stage has to change what is kept,
or to stand here with the reason why it does not.
"""

from typing import get_args

import pytest

from tasks.evaluate import HeldoutRows, ModelToEvaluate, list_evaluation_inputs
from tasks.inputs.snapshot import Snapshot, read_stages
from tasks.measure import Inputs
from tasks.params import load_params
from tasks.params.section import Section
from tasks.params.sources import RowRange
from tasks.params.train import NOT_CONTENT, LoraParams
from tasks.records.facts import SliceFacts
from tasks.records.manifests import BaseModelManifest
from tasks.train import plan_segments
from tests.machines import make_machine
from tests.tasks.reporting.comparison import edit_json
from tests.tiny import make_slice, with_manifest
from training.registry import list_strategies

CELL = "2proc"


@pytest.fixture
def params(project):
    return load_params(project / "presets" / "embedded.yaml", looks_at_data=False)


@pytest.fixture
def stages(project, params, monkeypatch):
    monkeypatch.chdir(project)
    return {stage.name: stage for stage in read_stages(params)}


def _change(value, key, annotation):
    """Return another value of the same kind."""
    if key == "ranges":
        return [RowRange(start=0, end=400), *value[1:]]
    if key.endswith(".strategy"):  # a file of the project, which is read
        return next(name for name in list_strategies() if name != value)
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


def _change_each(value, wanted, key="", annotation=None):
    """Yield every value that stands below `wanted` keys of params.yaml, by its own key, with params of another one."""
    if isinstance(value, Section):
        parts = {name: (getattr(value, name), field.annotation) for name, field in type(value).model_fields.items()}
    elif key == "cells":
        parts = {name: (cell, None) for name, cell in value.items()}
    else:
        if any(f"{key}.".startswith(f"{above}.") for above in wanted):
            yield key, _change(value, key, annotation)
        return
    for name, (part, kind) in parts.items():
        for below, changed in _change_each(part, wanted, f"{key}.{name}".lstrip("."), kind):
            other = {name: changed}
            yield below, {**value, **other} if key == "cells" else value.model_copy(update=other)


TRAIN, MEASURE, EVALUATE = f"train@{CELL}", "measure", "evaluate"


@pytest.fixture
def keys(params, tmp_path):
    """Stage -> a function of params and inputs that returns the key of what the stage keeps."""
    for number, part in enumerate(("0-500", "1300-1500")):
        make_slice(tmp_path / part, num_rows=200, seed=number)
    (tmp_path / "model").mkdir()
    with_manifest(tmp_path / "model", num_parameters=1, model_type="qwen2")

    def train(params=params, *, rows="r", base_model="b", machine="m"):
        slices = {
            part: SliceFacts(range=part, num_rows=500, num_tokens=9, digest=f"{rows} of {part}")
            for part in map(str, params.ranges)
        }
        # Of the first segment: how many there are decides none of them.
        return plan_segments(CELL, params, slices=slices, base_model=base_model, machine=machine)[0].fingerprint

    def measure(params=params, *, rows="r", base_model="b", machine="m", trial=None, snapshot=None):
        return Inputs(
            snapshot=snapshot or Snapshot(None), params=params, model_dir=tmp_path, trial=trial,
            base_model=BaseModelManifest.model_construct(digest=base_model), rows=[tmp_path / "0-500"],
            machine=make_machine().model_copy(update={"digest": machine}), slices=tmp_path,
            rows_digests={"0-500": rows, "500-1300": "s"},
        ).key  # fmt: skip

    def evaluate(params=params, *, weights="w", edited=None):
        if edited:
            edit_json(tmp_path / edited / "manifest.json", digest="other")
        rows = HeldoutRows(
            folder=tmp_path / "1300-1500", seq_len=params.train.seq_len, vocab_size=9, eos_token_id=1,
            base_model=tmp_path / "model", workload=params.workload,
        )  # fmt: skip
        return list_evaluation_inputs(ModelToEvaluate(name=CELL, checkpoint=None, weights_digest=weights), rows)

    return {TRAIN: train, MEASURE: measure, EVALUATE: evaluate}


EXTENT = {f"train.{name}" for name in NOT_CONTENT}


# Of `ranges` the rows themselves are measured, which are files; the model's name is that of checkpoints.
@pytest.mark.parametrize(("stage", "others"), [(TRAIN, set()), (MEASURE, {"model.name", "ranges"})])
def test_what_a_stage_keeps_is_told_from_others_by_every_value_that_it_depends_on(stage, others, params, stages, keys):
    before, changed = keys[stage](), dict(_change_each(params, stages[stage].params))
    assert len(changed) > 25
    same = {key for key, other in changed.items() if keys[stage](other) == before}
    assert same == EXTENT | {"verify.updates", "verify.max_gib"} | others


def test_what_is_evaluated_is_told_from_others_by_every_value_that_does_not_come_with_the_weights(params, stages, keys):
    before, trained = keys[EVALUATE](), keys[TRAIN]()
    # The held-out rows are in the folder of theirs.
    changed = dict(_change_each(params, [key for key in stages[EVALUATE].params if key != "heldout"]))
    assert len(changed) > 30
    for key, other in changed.items():
        comes_with_weights = keys[TRAIN](other) != trained or key.startswith("cells.1proc")
        assert keys[EVALUATE](other) != before or comes_with_weights or key in EXTENT, key


FILES = {
    TRAIN: {
        "data/slices": {"rows": "other"},
        "data/base_model": {"base_model": "other"},
        "data/fingerprint/machine.json": {"machine": "other"},
    },
    MEASURE: {
        "data/slices": {"rows": "other"},
        "data/base_model": {"base_model": "other"},
        "data/fingerprint/machine.json": {"machine": "other"},
        "data/fingerprint/trial.json": {"trial": "again"},
    },
    EVALUATE: {
        "data/runs": {"weights": "other"},
        "data/base_model": {"edited": "model"},
        "data/slices": {"edited": "1300-1500"},
    },
}
"""Stage -> file of dvc.yaml -> another one; source files of the project count by their versions."""
_SOURCES = ("data/fingerprint/stages/", "ddp_audit", "tasks", "training")


@pytest.mark.parametrize(("stage", "file"), [(stage, file) for stage, files in FILES.items() for file in files])
def test_what_a_stage_keeps_is_told_from_others_by_every_file_that_it_depends_on(stage, file, stages, keys):
    assert {one for one in stages[stage].deps if not one.startswith(_SOURCES)} == FILES[stage].keys()
    assert keys[stage]() != keys[stage](**FILES[stage][file])


def test_what_is_measured_is_told_from_others_by_which_cell_comes_first(params, keys):
    cells = dict(reversed(params.cells.items()))
    assert keys[MEASURE](params.model_copy(update={"cells": cells})) != keys[MEASURE]()


def test_what_is_measured_is_told_from_others_by_variables_that_change_numbers_or_speed(keys, monkeypatch):
    before = keys[MEASURE]()
    for name in ("SOME_NAME", "OMP_NUM_THREADS", "NCCL_DEBUG", "CUDA_MPS_PIPE_DIRECTORY", "TORCH_EXTENSIONS_DIR"):
        monkeypatch.setenv(name, "7")
    assert keys[MEASURE]() == before
    begun = Snapshot(None)
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    assert keys[MEASURE]() != before
    assert keys[MEASURE](snapshot=begun) == before, "what the stage sets while it runs is none of what it began with"


def test_all_that_is_kept_is_told_from_others_by_the_version_of_what_made_it(keys, monkeypatch):
    def list_all():
        return {stage: key() for stage, key in keys.items()}

    before = list_all()
    monkeypatch.setattr("tasks.measuring.versions.MEASURING_VERSION", 1000)
    measured = list_all()
    assert {stage for stage in before if measured[stage] == before[stage]} == {TRAIN}
    monkeypatch.setattr("tasks.measuring.versions.NUMERICS_VERSION", 1000)
    monkeypatch.setattr("tasks.train.NUMERICS_VERSION", 1000)
    assert not [stage for stage, key in list_all().items() if key == measured[stage]]
