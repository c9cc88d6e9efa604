"""The flow and dvc.yaml name the same stages; a re-benchmark measures anew, and fails where a cell became slower."""

import contextlib
import json
import os
import re
import uuid

import networkx as nx
import pytest
from dvc.exceptions import DvcException
from dvc.lock import FAILED_TO_LOCK_MESSAGE, LockError
from dvc.repo import Repo
from prefect.states import Completed

from flows import ddp_compare, recording
from flows.pipeline import StageFailed, list_upstream
from tasks.fingerprint import TRIAL, read_trial
from tasks.params import load_params
from tasks.reporting.history import make_history
from tests.tasks.reporting.test_changes import pair


def _run(project, monkeypatch, *, rebench=False):
    """Return stage -> the task that it is, and what its command gets, in the order of the flow."""
    asked = {}
    monkeypatch.setattr(
        ddp_compare, "run_stage", lambda this, stage, environment, **_: asked.update({stage: (this, environment)})
    )
    monkeypatch.setattr(ddp_compare, "require_no_regression", lambda _: None)
    ddp_compare.run_stages(load_params(project / "params.yaml"), rebench=rebench)
    return asked


def test_flow_runs_every_stage_of_dvc_yaml_after_those_it_depends_on(project, monkeypatch):
    stages = list(_run(project, monkeypatch))
    with Repo(str(project)) as repo:
        graph = nx.relabel_nodes(repo.index.graph, lambda stage: stage.addressing)
    assert sorted(stages) == sorted(graph.nodes)
    monkeypatch.chdir(project)
    drawn = nx.DiGraph([(stage, needed) for stage, after in list_upstream().items() for needed in after])
    assert set(nx.transitive_closure_dag(drawn).edges) == set(nx.transitive_closure_dag(graph).edges)
    assert set(drawn["report"]) == {"evaluate", "measure"}
    for stage, needed in graph.edges:
        assert stages.index(needed) < stages.index(stage), f"{stage} needs {needed}"


def test_dvc_never_restores_what_only_an_upload_can_do(project):
    with Repo(str(project)) as repo:
        assert any(out.persist for out in repo.stage.collect("upload")[0].outs)


def _write_results(folder, speedup):
    before, now = pair(2.0, speedup, width=0.01)
    path = folder / "results.json"
    path.write_text(json.dumps({"history": make_history([before, now], [now]).model_dump(mode="json")}))
    return path


def test_a_regression_is_reported_also_where_the_upload_after_it_fails(project, tmp_path, monkeypatch):
    asked = []

    def run(_this, stage, **_):
        asked.append(stage)
        if stage == "upload" and fails:
            raise StageFailed("upload: upload pending", 4)

    monkeypatch.setattr(ddp_compare, "RESULTS", _write_results(tmp_path, 1.5))
    monkeypatch.setattr(ddp_compare, "run_stage", run)
    for fails in (False, True):
        expected = r"^rebench: slower than in the last comparable record: speedup of 2gpu 2.00x"
        with pytest.raises(StageFailed, match=expected) as failed:
            ddp_compare.run_stages(load_params(project / "params.yaml"), rebench=True)
        assert (failed.value.exit_code, asked[-1]) == (7, "upload")
        assert str(failed.value).endswith("; upload: upload pending") == fails


def test_no_difference_and_no_history_fail_nothing(tmp_path):
    ddp_compare.require_no_regression(_write_results(tmp_path, 2.0))
    (tmp_path / "results.json").write_text("{}")
    ddp_compare.require_no_regression(tmp_path / "results.json")


def test_a_run_that_is_tried_again_is_not_taken_for_one_that_was_killed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own, killed, crashed = str(uuid.uuid4()), str(uuid.uuid4()), []
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", own)
    monkeypatch.setattr(recording, "get_client", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(recording, "_set_crashed", lambda _client, run: crashed.append(str(run)) or True)
    monkeypatch.setattr(ddp_compare, "compare", lambda **_: Completed())
    for run in (own, killed):
        file = tmp_path / ".work/flow_runs" / run
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    ddp_compare.ddp_compare.fn()
    assert crashed == [killed]
    assert [file.name for file in (tmp_path / ".work/flow_runs").iterdir()] == [own]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (OSError(28, "No space left on device", "x.log"), 4, "slice: .* device: 'x.log'; free space or choose another"),
        (LockError(FAILED_TO_LOCK_MESSAGE), 4, "slice: another DVC works in this folder: Unable to acquire lock"),
        (DvcException("/ is not a git repository"), 1, "slice: / is not a git repository; to work without one: "),
    ],
)
def test_what_keeps_the_flow_from_running_a_stage_is_one_line_with_its_exit_code(error, code, said, monkeypatch):
    def fail(_stage):
        raise error

    monkeypatch.setattr(ddp_compare, "list_changes", fail)
    failed = ddp_compare.dvc_stage.fn("slice", "3 of 9", {})
    assert ddp_compare.get_exit_code(failed) == code
    assert re.match(said, failed.message)


def test_every_rebench_has_a_trial_of_its_own_that_is_kept_until_another_one_is_asked_for(
    project, tmp_path, monkeypatch
):
    file = tmp_path / "trial.json"
    monkeypatch.delenv(TRIAL, raising=False)
    assert read_trial(file) is None
    assert not any(environment for _, environment in _run(project, monkeypatch).values())
    trials = []
    for _ in range(2):
        asked = {stage: environment for stage, (_, environment) in _run(project, monkeypatch, rebench=True).items()}
        environment = asked.pop("fingerprint")
        assert not any(asked.values())
        monkeypatch.setattr(os, "environ", os.environ | dict(environment))
        file.write_text(json.dumps({"trial": read_trial(file)}))
        monkeypatch.delenv(TRIAL)
        trials.append(read_trial(file))
    assert trials == [trials[0], environment[TRIAL]]
    assert trials[0] != trials[1]
