"""W&B's own: what its server has after `wandb sync`, and what it must not have any more."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.tracker_stores import require_tracker
from tests.integration.wandb_server import KEY, WandbServer
from tests.tracked_run import ALL_STEPS, Place, step_event

pytestmark = pytest.mark.slow


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    require_tracker("wandb")
    with WandbServer() as found:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", found.url)
        yield found
        assert found.unknown == []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Place(tmp_path, ["wandb"])


def _require_every_step_once(server: WandbServer) -> None:
    assert sorted(run.name for run in server.runs.values()) == ["1proc", "2proc", "small"]
    for run in server.runs.values():
        assert run.is_finished
        if run.name != "small":
            assert sorted(run.history) == list(range(len(ALL_STEPS)))
            found = sorted((row["_step"], row["loss"], row["_timestamp"]) for row in run.history.values())
            assert [(step, loss) for step, loss, _ in found] == [(step, step_event(step)["loss"]) for step in ALL_STEPS]
            assert found[0][2] == 1_772_366_400.5, "the time of the step, not of sending it"


def test_what_is_written_is_sent_once_and_a_figure_that_is_withheld_later_is_deleted_there(
    place: Place, server: WandbServer
) -> None:
    place.report(speedup=1.5)
    _require_every_step_once(server)
    runs = {run.name: run for run in server.runs.values()}
    assert runs["2proc"].summary["final/speedup"] == 1.5
    assert runs["2proc"].summary["speedup"] == "proven"
    assert runs["2proc"].config["world_size"]["value"] == "2"
    assert b"# Speedup 1.5" in b"".join(runs["small"].files.values())
    first = dict(server.runs)
    server.runs.clear()
    place.report(speedup=1.5)
    assert not server.runs, "sent again"
    server.runs.update(first)
    place.report(speedup=None)
    _require_every_step_once(server)
    shown = {key for key, run in first.items() if run.name != "1proc"}
    assert server.deleted == shown, "both showed the gate that has failed since, or the speedup"
    for run in server.runs.values():
        assert not [key for key in run.summary if key.startswith("final/speedup")]
        assert b"# Speedup 1.5" not in b"".join(run.files.values())
