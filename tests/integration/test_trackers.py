"""What every tracker holds to, each with its real store; what is MLflow's own stands in test_mlflow.py."""

import logging
import os
import shutil
import signal
import subprocess
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

FOLLOW = """
import sys, time
from pathlib import Path
from tasks.services import follower as following
from tests.flows.toy_project import wait_for
from tests.tracked_run import Place
following.FLUSH_SECONDS = 0.05
kind, first, last, waits = sys.argv[1], *map(int, sys.argv[2:])
place = Place(Path.cwd(), [kind])
with place.follow() as follower:
    for step in range(first, last + 1):
        follower.send(place.events(step))
        time.sleep(0.1)
    Path("is-sent").touch()
    time.sleep(waits)
"""
REPORT = """
import sys
from pathlib import Path
from tests.flows.toy_project import wait_for
from tests.tracked_run import Place
place = Place(Path.cwd(), [sys.argv[1]])
Path("is-reporting").touch()
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


def _kill(process):
    """Kill it, and whatever it has started."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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


def test_a_report_leaves_every_value_once_with_figures_gates_facts_and_the_report_and_a_second_sends_nothing(
    place, tracker, caplog
):
    place.report(speedup=1.5)
    _require_every_value_once(tracker, place.folder)
    found = STORES[tracker].read_values(place.folder)
    assert [value for _, value in found["2proc"]["final/speedup"]] == [1.5]
    assert [value for _, value in found["small"]["final/base_heldout_loss"]] == [3.25]
    said = STORES[tracker].read_texts(place.folder)
    assert "passed: 1,600 rows and 1,600 rows" in said
    assert "this machine" in said
    assert "# Speedup 1.5" in said
    with caplog.at_level(logging.INFO):
        place.report(speedup=1.5)
    assert f"{tracker}: 0 values sent" in caplog.text
    assert STORES[tracker].read_values(place.folder) == found


def test_killed_while_it_trains_and_while_it_reports_it_has_no_gap_and_no_duplicate(place, tracker):
    process = place.start(FOLLOW, tracker, 1, 7, 60)
    wait_for((place.folder / "is-sent").exists, seconds=60, what="it is sent")
    time.sleep(0.3)
    assert process.poll() is None
    _kill(process)
    # The checkpoint was that of step 5: steps 6 and 7 are trained, and streamed, again.
    process = place.start(FOLLOW, tracker, 6, 10, 0)
    assert process.wait(120) == 0
    process = place.start(REPORT, tracker)
    wait_for((place.folder / "is-reporting").exists, seconds=60, what="it reports")
    time.sleep(1)
    _kill(process)
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


def test_a_speedup_has_the_name_of_what_it_is_now_and_withheld_it_vanishes_with_all_that_showed_it(place, tracker):
    for is_proven, name in ((True, "speedup"), (False, "unproven_speedup")):
        place.report(speedup=1.5, is_proven=is_proven)
        found = STORES[tracker].read_values(place.folder)["2proc"]
        assert {key: [value for _, value in found[key]] for key in found if "speedup" in key} == {
            f"final/{name}": [1.5],
            f"final/{name}_low": [1.25],
            f"final/{name}_high": [1.75],
        }
    place.report(speedup=None)
    _require_every_value_once(tracker, place.folder)
    values = STORES[tracker].read_values(place.folder).values()
    assert not [key for found in values for key in found if "speedup" in key]
    said = STORES[tracker].read_texts(place.folder)
    assert "# Speedup None" in said
    assert "withheld: Same rows, same work" in said
    if tracker != "mlflow":  # which keeps the files of deleted runs until `mlflow gc`
        assert "# Speedup 1.5" not in said
        assert "passed: 1,600 rows" not in said


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
