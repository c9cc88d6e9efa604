"""What the stage `measure` does beside timing: updates of steps that weak scaling times and nothing trains."""

import threading
from types import SimpleNamespace

import pytest

from tasks.measure import _check_updates
from tasks.params import load_params
from tasks.process.failure import PreemptedError
from tasks.process.lock import lock_machine, make_lock_name
from tests.conftest import PROJECT
from tests.machines import make_machine
from tests.museum.project import CELLS, Size, change_params, make_project, start_stage
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
    launchers = {f"cells.{cell}.launcher": "torchrun" for cell in CELLS}
    change_params(project, launchers | {"measure.scaling": "weak", "train.precision": precision})
    inputs = SimpleNamespace(
        params=load_params(project / "params.yaml", looks_at_data=False), model_dir=project / "data/base_model",
        machine=make_machine(), rows=[project / "data/slices/0-61"],
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
        start_stage(project, stage, "2proc").finish()
    assert caught.value.exit_code == 4
