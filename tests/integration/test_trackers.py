"""What every tracker holds to, each with its real store; what is MLflow's own stands in test_mlflow.py."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.services import follower as following
from tasks.services.tracker import PENDING, PendingReport, send_pending
from tasks.services.trackers import wandb
from tests.flows.toy_project import wait_for
from tests.integration.tracker_stores import STORES, TRACKERS, read_all_bytes, require_tracker
from tests.tracked_run import ALL_STEPS, NUM_STEPS, Place, step_event

pytestmark = pytest.mark.slow

WITHIN = 1e-6
"""Of a value, relatively: TensorBoard keeps 32 bits."""

BEGIN = """
import sys, time
from pathlib import Path
from tasks.services import follower as following
from tests.tracked_run import Place
following.FLUSH_SECONDS = 0.05
place = Place(Path.cwd(), [sys.argv[1]])
"""
FOLLOW = """
with place.follow() as follower:
    for step in range(1, 8):
        follower.send(place.events(step))
        time.sleep(0.1)
    Path("has-begun").touch()
    time.sleep(60)
"""
REPORT = """
Path("has-begun").touch()
place.report(speedup=1.5)
"""


@pytest.fixture(params=TRACKERS)
def tracker(request):
    return request.param


@pytest.fixture(autouse=True)
def _at_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_TRACKING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(following, "FLUSH_SECONDS", 0.1)


@pytest.fixture
def place(tmp_path, tracker, empty_store):
    require_tracker(tracker)
    if tracker == "mlflow":
        shutil.copy(empty_store, tmp_path)
    return Place(tmp_path, [tracker])


def _kill_after(seconds, code, tracker):
    """Start a part of a stage, and kill it, with whatever it has started, so long after it has begun."""
    environment, has_begun = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}, Path("has-begun")
    process = subprocess.Popen([sys.executable, "-c", BEGIN + code, tracker], env=environment, start_new_session=True)
    wait_for(has_begun.exists, seconds=60, what="it has begun")
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() in (-signal.SIGKILL, 0)
    has_begun.unlink()


def _require_every_value_once(tracker, folder):
    found = STORES[tracker].read_values(folder)
    assert set(found) <= {"1proc", "2proc", "small"}
    for cell in ("1proc", "2proc"):
        for key in ("loss", "learning_rate", "grad_norm", "data_wait_seconds", "num_tokens"):
            written = [(step, step_event(step)[key]) for step in ALL_STEPS if step_event(step)[key] is not None]
            assert [step for step, _ in found[cell][key]] == [step for step, _ in written], (cell, key)
            assert [value for _, value in found[cell][key]] == pytest.approx(
                [value for _, value in written], rel=WITHIN
            )
        assert [step for step, _ in found[cell]["epoch/loss"]] == [NUM_STEPS, 2 * NUM_STEPS]


def test_a_report_leaves_every_value_once_a_second_sends_nothing_and_what_is_withheld_later_vanishes(
    place, tracker, caplog
):
    store = STORES[tracker]

    def read_speedups():
        values = store.read_values(place.folder)["2proc"]
        return {key: [value for _, value in values[key]] for key in values if "speedup" in key}

    place.report(speedup=1.5)
    _require_every_value_once(tracker, place.folder)
    proven = {"final/speedup": [1.5], "final/speedup_low": [1.25], "final/speedup_high": [1.75]}
    assert read_speedups() == proven
    found, said = store.read_values(place.folder), store.read_texts(place.folder)
    assert [value for _, value in found["small"]["final/base_heldout_loss"]] == [3.25]
    assert "passed: 1,600 rows and 1,600 rows" in said
    assert "this machine" in said
    assert "# Speedup 1.5" in said
    with caplog.at_level(logging.INFO):
        place.report(speedup=1.5)
    assert f"{tracker}: 0 values sent" in caplog.text
    assert store.read_values(place.folder) == found

    place.report(speedup=1.5, is_proven=False)
    assert read_speedups() == {key.replace("speedup", "unproven_speedup"): value for key, value in proven.items()}
    place.report(speedup=None)
    _require_every_value_once(tracker, place.folder)
    values, said = store.read_values(place.folder).values(), store.read_texts(place.folder)
    assert not [key for found in values for key in found if "speedup" in key]
    assert "# Speedup None" in said
    assert "withheld: Same rows, same work" in said
    if tracker != "mlflow":  # which keeps the files of deleted runs until `mlflow gc`
        assert "# Speedup 1.5" not in said
        assert "passed: 1,600 rows" not in said


def test_killed_while_it_trains_and_while_it_reports_it_has_no_gap_and_no_duplicate(place, tracker):
    _kill_after(0.3, FOLLOW, tracker)
    # The checkpoint was that of step 5: steps 6 and 7 are trained, and streamed, again.
    with place.follow() as follower:
        follower.send(place.events(*range(6, 11)))
    _kill_after(1.0, REPORT, tracker)
    place.report(speedup=1.5)
    _require_every_value_once(tracker, place.folder)


@pytest.mark.parametrize("tracker", ["mlflow", "tensorboard"])
def test_steps_appear_while_the_cell_trains_where_a_run_can_grow(place, tracker):
    with place.follow() as follower:
        follower.send(place.events(1, 2))
        read = STORES[tracker].read_values
        wait_for(
            lambda: len(read(place.folder).get("2proc", {}).get("loss", [])) == 2, seconds=60, what="both are there"
        )


def test_a_file_of_events_that_a_kill_left_half_written_is_mended(tmp_path):
    require_tracker("tensorboard")
    place = Place(tmp_path, ["tensorboard"])
    with place.follow() as follower:
        follower.send(place.events(1, 2, 3))
    (file,) = place.folder.glob("tensorboard/*/2proc/*tfevents*")
    file.write_bytes(file.read_bytes()[:-5])
    place.report(speedup=1.5)
    _require_every_value_once("tensorboard", place.folder)


def test_a_tracker_that_is_away_costs_one_warning_each_time_and_gets_all_when_it_is_back(
    place, tracker, monkeypatch, caplog
):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "Canary0" * 5)
    with monkeypatch.context() as patch:
        STORES[tracker].take_away(place.folder, patch)  # its address and key hold a canary, too
        with place.follow() as follower:
            follower.send(place.events(*ALL_STEPS))
        assert "canary" not in caplog.text.lower()
        caplog.clear()
        place.report(speedup=1.5)
        (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert warning.startswith(f"{tracker}: ")
        assert "\n" not in warning
        (pending,) = PENDING.iterdir()
        assert PendingReport.read(pending).trackers == [tracker]
        assert send_pending(place.params) is False
    # Another comparison is reported in the same folders, then this one's come back from DVC's cache.
    shutil.copytree(place.folder / "reports", place.folder / "restored")
    other = Place(place.folder, "none")
    other.params = other.params.model_copy(update={"name": "other"})
    other.report(speedup=2.5)
    caplog.clear()
    assert send_pending(place.params) is True
    assert "the report of small that this missed is here no more; put its params back" in caplog.text
    assert pending.is_file()
    shutil.copytree(place.folder / "restored", place.folder / "reports", dirs_exist_ok=True)
    assert send_pending(place.params) is True
    assert not pending.exists()
    _require_every_value_once(tracker, place.folder)
    assert "canary" not in caplog.text.lower()
    assert b"canary" not in read_all_bytes(place.folder).lower()


def test_a_run_of_wb_is_sent_once_and_deleted_there_where_what_it_showed_is_withheld_later(tmp_path, monkeypatch):
    require_tracker("wandb")
    monkeypatch.setenv("WANDB_API_KEY", "canary".ljust(40, "0"))
    sent, deleted = [], set()

    def sync(command, **_):
        folders = [Path(word) for word in command[5:]]
        for folder in folders:
            (folder / "run.synced").touch()
        sent.extend(folder.name for folder in folders)
        return subprocess.CompletedProcess(command, 0)

    def find_run(name):
        return SimpleNamespace(delete=lambda: deleted.add(name.partition("/")[2]))

    monkeypatch.setattr(wandb, "subprocess", SimpleNamespace(run=sync))
    monkeypatch.setattr(wandb, "_require_answer", lambda: None)
    monkeypatch.setattr("wandb.Api", lambda **_: SimpleNamespace(run=find_run))
    place = Place(tmp_path, ["wandb"])
    for _ in range(2):
        place.report(speedup=1.5)
        assert len(sent) == 3
    place.report(speedup=None)
    # Both that showed the speedup, or the gate that has failed since, have gone, and others are there.
    assert (len(deleted), len(sent)) == (2, 5)
    assert all(any(name.endswith(run) for name in sent[:3]) for run in deleted)
