"""What the stage `measure` does beside timing: updates of steps that weak scaling times and nothing trains."""

import json
import threading

import pytest

from tasks.inputs.snapshot import Snapshot
from tasks.measure import Inputs, _check_updates
from tasks.params import load_params
from tasks.process.failure import PreemptedError
from tasks.process.lock import lock_machine, make_lock_name
from tasks.records.manifests import BaseModelManifest
from tests.conftest import PROJECT
from tests.machines import make_machine
from tests.museum.project import Size, change_params, make_project, run_stage, start_training
from tests.museum.stage_process import StageFailedError

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path):
    """A tiny model and two ranges of ragged rows, before the stage."""
    make_project(tmp_path / "project", PROJECT, Size(num_rows=(61, 29)))
    return tmp_path / "project"


@pytest.mark.parametrize(("precision", "steps"), [("fp32", (1, 2, 3)), ("fp16", (1, 2, 4))])
def test_updates_of_the_larger_steps_of_weak_scaling_are_made_and_computed_twice(
    precision, steps, project, tmp_path, starts_warm
):
    change_params(project, {"measure.scaling": "weak", "train.precision": precision})
    content = json.loads((project / "params.yaml").read_bytes())
    for cell in content["cells"].values():
        cell["launcher"] = "torchrun"
    (tmp_path / "params.yaml").write_text(json.dumps(content))
    model = project / "data/base_model"
    inputs = Inputs(
        snapshot=Snapshot(None), params=load_params(tmp_path / "params.yaml", looks_at_data=False), model_dir=model,
        base_model=BaseModelManifest.read(model), machine=make_machine(), rows=[project / "data/slices/0-61"],
        slices=project / "data/slices", rows_digests={}, trial=None,
    )  # fmt: skip
    found = _check_updates(inputs, "2proc", 16, tmp_path / "work", threading.Event())
    # 41 rows: two steps of 16, and one of a partial batch; or all 61, should steps be skipped.
    assert [(one["step"], one["verdict"], one["problem"]) for one in found] == [
        (step, "passed", None) for step in steps
    ]
    stop = threading.Event()
    stop.set()
    with pytest.raises(PreemptedError):
        _check_updates(inputs, "2proc", 16, tmp_path / "stopped", stop)


@pytest.mark.parametrize("stage", ["measure", "train"])
def test_the_machines_lock_is_respected(stage, project, monkeypatch):
    # The stage's own process has its temporary files there (tests/museum/stage_process.py).
    name = make_lock_name(str(project))
    monkeypatch.setattr("tasks.process.lock.make_lock_name", lambda: name)
    change_params(project, {"measure.speed": True})
    with lock_machine("ours"), pytest.raises(StageFailedError, match="another comparison") as caught:
        run_stage(project, "measure") if stage == "measure" else start_training(project, "2proc").finish()
    assert caught.value.exit_code == 4
