"""A re-benchmark asks for another session of measuring, and fails where a cell has become slower."""

import json
import os
from pathlib import Path

import pytest

from flows import ddp_compare
from flows.dvc_stage import StageFailed
from flows.rebench import make_trial_environment, require_no_regression
from tasks.fingerprint import TRIAL, read_trial
from tasks.params import load_params
from tasks.reporting.history import make_history
from tests.tasks.reporting.test_changes import pair


def _write_results(folder: Path, speedup: float) -> Path:
    before, now = pair(2.0, speedup, width=0.01)
    path = folder / "results.json"
    path.write_text(json.dumps({"history": make_history([before, now], [now]).model_dump(mode="json")}))
    return path


def test_a_regression_fails_in_one_line_with_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(StageFailed) as failed:
        require_no_regression(_write_results(tmp_path, 1.5))
    assert failed.value.exit_code == 7
    assert str(failed.value).startswith("rebench: slower than in the last comparable record: speedup of 2gpu 2.00x")
    assert "\n" not in str(failed.value)


def test_no_difference_and_no_history_fail_nothing(tmp_path: Path) -> None:
    require_no_regression(_write_results(tmp_path, 2.0))
    (tmp_path / "results.json").write_text("{}")
    require_no_regression(tmp_path / "results.json")


def test_every_rebench_has_a_trial_of_its_own_and_a_run_without_has_none(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        ddp_compare, "run_stage", lambda stage, environment=None, **_: asked.append((stage, environment))
    )
    monkeypatch.setattr(ddp_compare, "show_report", lambda: None)
    params = load_params(project / "params.yaml")
    for rebench in (False, True, True):
        ddp_compare.run_stages(params, rebench=rebench)
    trials = [environment for stage, environment in asked if stage == "fingerprint"]
    assert {environment for stage, environment in asked if stage != "fingerprint" and environment} == set()
    assert trials[0] is None
    assert trials[1][TRIAL] != trials[2][TRIAL]


def test_a_trial_is_kept_until_another_one_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trial.json"
    monkeypatch.delenv(TRIAL, raising=False)
    assert read_trial(file) is None
    for environment in (make_trial_environment(), make_trial_environment()):
        monkeypatch.setattr(os, "environ", os.environ | environment)
        file.write_text(json.dumps({"trial": read_trial(file)}))
        monkeypatch.delenv(TRIAL)
        assert read_trial(file) == environment[TRIAL]
