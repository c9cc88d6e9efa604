"""The stage `train` with shipped settings: right trainings pass, and what goes wrong late is seen, by real ranks."""

import json
import os
import signal

import pytest

from tests.conftest import PROJECT
from tests.flows.toy_project import wait_for
from tests.museum.project import Size, change_params, copy_project, make_project, patch_project, start_stage
from tests.museum.stage_process import StageFailedError, run_elsewhere
from tests.processes import list_in
from tests.tasks.wrong_updates import BETWEEN
from tests.training.replays import list_verdicts

pytestmark = pytest.mark.slow

PASSED = [("passed", None)] * 4
"""Of all that are checked where four are asked for: the first step, the last, and one of each segment by chance."""
ONE_SEGMENT = {"ranges": ["0-48"], "verify.updates": 3}
"""Of six steps: the first, the last, and one between them."""


@pytest.fixture(scope="module")
def blank(tmp_path_factory):
    """A scratch project before the training: a tiny model, 6 and 4 steps, the last of a partial batch."""
    folder = tmp_path_factory.mktemp("train") / "blank"
    run_elsewhere(make_project, folder, PROJECT, Size(num_rows=(48, 29)))
    # Each that is looked at takes longer than all ten steps.
    change_params(folder, {"verify.updates": len(PASSED)})
    return folder


@pytest.fixture
def project(blank, tmp_path):
    """A copy of it."""
    return copy_project(blank, tmp_path / "project")


@pytest.fixture(scope="module")
def trained(blank, tmp_path_factory):
    """Another, in which two ranks have trained undisturbed."""
    folder = copy_project(blank, tmp_path_factory.mktemp("trained") / "project")
    train(folder)
    return folder


def train(project, cell="2proc", key=None, changes=None):
    """Train a cell, with what the key names wrong and its params changed; return what was found of its updates."""
    change_params(project, changes or {})
    if key:
        patch_project(project, f"tests.tasks.wrong_updates:{key}")
    start_stage(project, "train", cell).finish()
    return checked(project, cell)


def checked(project, cell="2proc"):
    """Return what was found of a trained cell's updates."""
    return [one for facts in read_facts(project, cell) for one in facts["checked_updates"]]


def read_facts(project, cell="2proc"):
    """Return the facts of a trained cell's segments."""
    run = project / "data/runs" / cell
    entries = json.loads((run / "run.json").read_bytes())["segments"]
    return [json.loads((run / one["folder"] / "segment.json").read_bytes()) for one in entries]


@pytest.mark.parametrize("cell", ["1proc", "2proc"])
def test_every_drawn_update_of_a_right_training_is_one_processs(trained, cell):
    found = checked(trained, cell) if cell == "2proc" else train(trained, cell)
    assert list_verdicts(found) == PASSED
    steps = [one["step"] for one in found]
    assert (steps, steps[0], steps[-1]) == (sorted(set(steps)), 1, 10)
    assert all(one["compared"]["gradient"]["difference"] < 3e-6 for one in found)
    assert not (trained / ".work/runs" / cell / "updates").exists()
    assert _is_unbroken(trained, cell)


def _is_unbroken(project, cell):
    first, second = read_facts(project, cell)
    return second["start_checksum"] == first["parameter_checksums"][0]


@pytest.mark.parametrize(
    ("key", "first", "cause"),
    [
        ("rank 1's gradient thrown away", 6, "the gradient of rank 1 is missing"),
        ("gradient halved", 6, "the norm of the gradient differs by 5.0e-01"),
        ("learning rate of 1.1 times the recorded one", 6, "as with 1.1 times the learning rate"),
        ("no update", 9, "no update was made"),
        ("moments emptied once", 6, "the optimizer has counted"),
    ],
)
def test_a_defect_that_begins_late_is_seen_and_its_cause_is_named(project, key, first, cause):
    # What is wrong in each rank alike is so in one process, too.
    found = train(project, "2proc" if "gradient" in key else "1proc", f"{key} from step {first}")
    failed = [one for one in found if one["verdict"] == "failed"]
    assert failed == [one for one in found if one["step"] >= first]
    assert cause in failed[0]["problem"]


@pytest.mark.parametrize("key", BETWEEN)
def test_what_changes_the_state_where_no_step_does_breaks_the_chain_of_segments(project, key):
    train(project, "1proc", key, {"verify.updates": 0})
    assert not _is_unbroken(project, "1proc")


@pytest.mark.parametrize(
    ("key", "every"),
    [("weights rounded by an evaluation", "eval"), ("weights rounded by a checkpoint", "checkpoint")],
)
def test_what_changes_weights_between_two_steps_belongs_to_the_update_of_the_second(project, key, every):
    found = train(project, "1proc", key, {**ONE_SEGMENT, f"train.{every}_every_steps": 1})
    assert [one["verdict"] for one in found] == ["passed", "failed", "failed"]


@pytest.mark.parametrize(
    "key", ["gradient dropped at log points alone", "half of the update made, the rest at log points"]
)
def test_what_is_wrong_between_two_log_points_is_seen(project, key):
    found = train(project, "1proc", key, {**ONE_SEGMENT, "train.log_every_steps": 10})
    # Those that begin behind a log point, or end there, pass: never all three, whichever is drawn.
    assert "failed" in {one["verdict"] for one in found}


@pytest.mark.parametrize(
    ("key", "changes", "problem"),
    [("no memory in the one process", {}, "out of memory"), (None, {"verify.max_gib": 1e-6}, "verify.max_gib allows")],
)
def test_what_there_is_no_room_for_is_not_checked_and_says_so(project, key, changes, problem):
    found = train(project, "1proc", key, ONE_SEGMENT | changes)
    assert {one["verdict"] for one in found} == {"not checked"}
    assert problem in found[0]["problem"]


def test_without_memory_both_go_on_with_smaller_micro_batches(project):
    found = train(project, key="no memory on the ranks")
    assert list_verdicts(found) == PASSED
    assert {one["micro_batch_size"] for one in found} == {1}


def test_a_finished_segment_keeps_its_checks_and_one_more_epoch_checks_only_its_own(trained, tmp_path):
    project = copy_project(trained, tmp_path / "project")
    before = checked(project)
    assert train(project, changes={"verify.updates": 30}) == before, "nothing was trained anew"
    found = train(project, changes={"ranges": ["0-48"], "train.epochs": 2, "verify.updates": len(PASSED)})
    kept = [one for one in before if one["step"] <= 6]
    assert found[: len(kept)] == kept
    assert {one["step"] > 6 for one in found[len(kept) :]} == {True}
    assert list_verdicts(found) == PASSED


def test_killed_between_keeping_and_replaying_it_trains_and_checks_that_update_again(project, trained):
    clean = checked(trained)
    change_params(project, {"train.checkpoint_every_steps": 1})
    patch_project(project, "tests.tasks.wrong_updates:slow process")
    stage = start_stage(project, "train", "2proc")
    updates = project / ".work/runs/2proc/updates"
    # Behind the checkpoint of a step that has been checked.
    wait_for(lambda: _is_kept(updates, clean[1]["step"]), seconds=120, what="the update is kept")
    os.kill(stage.pid, signal.SIGKILL)
    with pytest.raises(StageFailedError):
        stage.finish()
    wait_for(lambda: not list_in(project), seconds=30, what="nobody is left")
    (project / "patches").unlink()
    found = train(project)
    assert list_verdicts(found) == PASSED
    assert [(one["step"], one["compared"]) for one in found] == [(one["step"], one["compared"]) for one in clean]
    assert not updates.exists()


def _is_kept(updates, step):
    try:
        return int(json.loads((updates / "facts.json").read_bytes())["step"]) >= step
    except (OSError, ValueError):
        return False
