"""The flow and dvc.yaml name the same stages, in an order that the dependencies allow."""

from pathlib import Path

import networkx as nx
import pytest
from dvc.repo import Repo

from flows import ddp_compare, dvc_stage
from tasks.params import load_params


@pytest.fixture
def order_of_flow(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    order: list[str] = []
    monkeypatch.setattr(ddp_compare, "run_stage", lambda stage, **_: order.append(stage))
    monkeypatch.setattr(ddp_compare, "show_report", lambda: order.append("(report shown)"))
    ddp_compare.run_stages(load_params(project / "params.yaml"))
    return order


def test_flow_runs_every_stage_of_dvc_yaml_after_those_it_depends_on(project: Path, order_of_flow: list[str]) -> None:
    stages = [stage for stage in order_of_flow if not stage.startswith("(")]
    with Repo(str(project)) as repo:
        graph = nx.relabel_nodes(repo.index.graph, lambda stage: stage.addressing)
    assert sorted(stages) == sorted(graph.nodes)
    for stage, needed in graph.edges:
        assert stages.index(needed) < stages.index(stage), f"{stage} needs {needed}"


def test_only_transfers_are_tried_again_and_every_stage_has_its_time(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, dict[str, float]] = {}
    monkeypatch.setattr(ddp_compare, "run_stage", lambda stage, **options: asked.update({stage: options}))
    monkeypatch.setattr(ddp_compare, "show_report", lambda: None)
    ddp_compare.run_stages(load_params(project / "params.yaml"))
    assert {stage for stage, options in asked.items() if options.get("retries")} == {"download", "upload"}
    assert all(options["hours"] > 0 for options in asked.values())
    waits = dvc_stage._run_dvc_stage.retry_delay_seconds
    assert isinstance(waits, list)
    assert waits == sorted(set(waits)), "each wait is longer than the last"
