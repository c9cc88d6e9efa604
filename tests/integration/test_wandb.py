"""W&B's own: what its server has after `wandb sync`, and what it must not have any more."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.services.tracker import PENDING
from tasks.services.tracker_ui import send_pending
from tests.integration.test_trackers import REPORT
from tests.tracked_run import ALL_STEPS, Place, step_event
from tests.tracker_stores import find_closed_port, require_tracker
from tests.wandb_server import KEY, WandbServer

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


def test_what_is_written_is_sent_once_with_config_figures_gates_and_report(place: Place, server: WandbServer) -> None:
    place.report(speedup=1.5)
    _require_every_step_once(server)
    runs = {run.name: run for run in server.runs.values()}
    assert runs["2proc"].summary["final/speedup"] == 1.5
    assert runs["2proc"].summary["speedup"] == "proven"
    assert runs["2proc"].config["world_size"]["value"] == "2"
    assert b"# Speedup 1.5" in b"".join(runs["small"].files.values())
    before = dict(server.runs)
    server.runs.clear()
    place.report(speedup=1.5)
    assert not server.runs, "sent again"
    assert before


def test_a_server_that_was_down_gets_all_with_the_next_report(
    place: Place, server: WandbServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{find_closed_port()}")
        place.report(speedup=1.5)
        assert PENDING.is_file()
    assert not server.runs
    assert send_pending(place.params) is True
    _require_every_step_once(server)
    assert KEY not in caplog.text


def test_killed_while_it_is_sent_the_server_has_every_step_once_after_the_next(
    place: Place, server: WandbServer
) -> None:
    process = place.start(REPORT, "wandb")
    for _ in range(1200):
        if server.runs:
            break
        time.sleep(0.05)
    assert server.runs, "nothing was sent within a minute"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    place.report(speedup=1.5)
    _require_every_step_once(server)


def test_a_figure_that_is_withheld_later_is_deleted_there(place: Place, server: WandbServer) -> None:
    place.report(speedup=1.5)
    first = set(server.runs)
    place.report(speedup=None)
    _require_every_step_once(server)
    assert server.deleted == first, "all three showed the gate that has failed since, or the speedup"
    for run in server.runs.values():
        assert not [key for key in run.summary if key.startswith("final/speedup")]
        assert b"# Speedup 1.5" not in b"".join(run.files.values())


def test_without_a_key_nothing_is_sent(place: Place, server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    place.report(speedup=1.5)
    assert not server.runs
    assert not PENDING.exists()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", "offline")
    place.report(speedup=1.5)
    assert not server.runs
