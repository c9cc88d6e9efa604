"""What is done is not done again: real DVC, real Prefect flow, real torchrun."""

import hashlib

import pytest

pytestmark = pytest.mark.slow

STAGES = ["fingerprint", "download", "slice", "measure", "train@1proc", "train@2proc", "evaluate", "report", "upload"]
CELLS = ["1proc", "2proc"]


def _digests(workspace):
    """Return the sha256 of every file of the runs' output."""
    runs = workspace.folder / "data" / "runs"
    files = sorted(file for file in runs.rglob("*") if file.is_file())
    return {str(file.relative_to(runs)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _launches(workspace):
    return [workspace.launches(cell) for cell in CELLS]


def test_a_comparison_in_a_fresh_clone_changes_no_file_of_git_and_leaves_nothing_to_commit_but_its_record(finished):
    said = finished.run("git", "status", "--porcelain", "--untracked-files=all").stdout.splitlines()
    assert sorted(said) == ["?? dvc.lock", "?? first-run.log", "?? reports/metrics.json"]  # the log is the fixture's
    for name in ("data/README.md", "reports/README.md"):
        assert (finished.folder / name).is_file()


def test_dvc_repro_after_the_flow_does_nothing_and_the_other_way_round(workspace):
    said = workspace.repro().stdout
    assert said.count("Running stage") == 1
    assert "Running stage 'fingerprint'" in said
    # Every stage is run again; what was trained of the one range is there.
    workspace.change({"ranges": ["0-64"], "measure.speed": False})
    said = workspace.repro().stdout
    assert all(f"Running stage '{stage}'" in said for stage in STAGES)
    assert _launches(workspace) == [1, 1]
    said = workspace.flow()
    assert said.count(": cached, ") == len(STAGES) - 1
    assert _launches(workspace) == [1, 1]


def test_a_renamed_function_and_a_renamed_file_under_training_train_nothing_anew_and_another_version_does(workspace):
    before, training = _digests(workspace), workspace.folder / "training"
    for file in [*training.rglob("*.py"), *(workspace.folder / "tasks").rglob("*.py")]:
        text = file.read_text()
        renamed = text.replace("compute_rate_in_segment", "tell_rate").replace(
            "step.schedule import", "step.rates import"
        )
        if renamed != text:
            file.write_text(renamed)
    (training / "step" / "schedule.py").rename(training / "step" / "rates.py")
    said = workspace.repro("measure", "train@1proc", "train@2proc").stdout
    assert "Running stage 'measure'" in said
    assert "speed: measured already" in said
    assert "Running stage 'train@2proc'" in said
    assert "2proc: 2 of 2 segments are finished already; nothing to train" in said
    assert _launches(workspace) == [1, 1]
    assert _digests(workspace) == before
    numerics = training / "numerics.py"
    numerics.write_text(numerics.read_text().replace("NUMERICS_VERSION = ", "NUMERICS_VERSION = 1"))
    workspace.change({"measure.speed": False})
    said = workspace.repro("train@1proc").stdout
    assert "(numerics 1 -> 11)" in said
    assert _launches(workspace) == [2, 1]
