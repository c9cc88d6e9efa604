"""What of prefect.yaml becomes a deployment, as Prefect's own users write it."""

import asyncio
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from flows import runner, serve

LINES = """deployments:
  - name: nightly
    entrypoint: flows/ddp_compare.py:ddp_compare
    schedules: [{{cron: "0 4 * * *"}}]
    {limit}
"""


BAD = "deployments: [{{name: nightly, schedules: [{{{plan}}}]}}]"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("deployments: [", "ParserError"),
        ("name: ddp-compare", "KeyError: 'deployments'"),
        (BAD.format(plan="crn: 0 4 * * *"), "'crn'"),
        (BAD.format(plan="cron: 0 25 * * *"), 'Invalid cron string: "0 25 * * *"'),
    ],
)
def test_a_prefect_yaml_that_prefect_cannot_take_is_refused_in_one_line(text, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "redact_logs", lambda: None)
    (tmp_path / "prefect.yaml").write_text(text)
    assert runner._main() == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("serve: prefect.yaml: ")
    assert reason in line
    assert "git diff prefect.yaml" in line


@pytest.mark.slow
def test_serve_ends_as_its_runner_does_that_refuses_prefect_yaml(tmp_path, project, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(project))
    (tmp_path / "prefect.yaml").write_text("deployments: [")
    with pytest.raises(SystemExit) as ended:
        serve._run_deployments(SimpleNamespace(is_running=True))
    assert ended.value.code == 2


@pytest.mark.parametrize(("limit", "most"), [("", 1), ("concurrency_limit: null", 1), ("concurrency_limit: 2", 2)])
def test_a_deployment_needs_no_more_than_a_name(limit, most, tmp_path, monkeypatch):
    keep = AsyncMock()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "_LOG", tmp_path / "log")
    monkeypatch.setattr(runner._Runner, "start", AsyncMock())
    monkeypatch.setattr(runner._Runner, "aadd_deployment", keep)
    (tmp_path / "prefect.yaml").write_text(LINES.format(limit=limit))
    asyncio.run(runner._serve())
    (deployment,) = keep.await_args.args
    assert (deployment.name, deployment.concurrency_limit, len(deployment.schedules)) == ("nightly", most, 1)
    assert deployment.concurrency_options.collision_strategy == "ENQUEUE"
