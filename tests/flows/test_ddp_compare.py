"""The flow and dvc.yaml name the same stages; a re-benchmark measures anew, and fails where a cell became slower."""

import json
import os

import networkx as nx
import pytest
from dvc.repo import Repo

from flows import ddp_compare
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


def test_a_regression_fails_in_one_line_with_an_exit_code_of_its_own(tmp_path):
    with pytest.raises(StageFailed) as failed:
        ddp_compare.require_no_regression(_write_results(tmp_path, 1.5))
    assert failed.value.exit_code == 7
    assert str(failed.value).startswith("rebench: slower than in the last comparable record: speedup of 2gpu 2.00x")
    assert "\n" not in str(failed.value)


def test_no_difference_and_no_history_fail_nothing(tmp_path):
    ddp_compare.require_no_regression(_write_results(tmp_path, 2.0))
    (tmp_path / "results.json").write_text("{}")
    ddp_compare.require_no_regression(tmp_path / "results.json")


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
