"""What is done is not done again: real DVC, real stages, real torchrun."""

import hashlib

import pytest

pytestmark = pytest.mark.slow

STAGES = ["fingerprint", "download", "slice", "measure", "train@1proc", "train@2proc", "evaluate", "report", "upload"]


def _digests(workspace):
    """Return the sha256 of every file of the runs' output."""
    runs = workspace.folder / "data" / "runs"
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in runs.rglob("*") if file.is_file()}


def test_a_comparison_in_a_fresh_clone_changes_no_file_of_git_and_leaves_nothing_to_commit_but_its_record(finished):
    said = finished.run("git", "status", "--porcelain", "--untracked-files=all").stdout.splitlines()
    assert sorted(said) == ["?? dvc.lock", "?? first-run.log", "?? reports/metrics.json"]  # the log is the fixture's
    for name in ("data/README.md", "reports/README.md"):
        assert (finished.folder / name).is_file()


def test_dvc_repro_after_the_flow_does_nothing_and_with_a_renamed_function_and_file_of_training_nothing_anew(workspace):
    before, training = _digests(workspace), workspace.folder / "training"
    said = workspace.repro().stdout
    assert said.count("Running stage") == 1
    assert "Running stage 'fingerprint'" in said
    for file in [*training.rglob("*.py"), *(workspace.folder / "tasks").rglob("*.py")]:
        text = file.read_text()
        renamed = text.replace("compute_rate_in_segment", "tell_rate").replace(
            "step.schedule import", "step.rates import"
        )
        if renamed != text:
            file.write_text(renamed)
    (training / "step" / "schedule.py").rename(training / "step" / "rates.py")
    said = workspace.repro("measure", "train@1proc", "train@2proc").stdout
    assert "speed: measured already" in said
    assert "2proc: 2 of 2 segments are finished already; nothing to train" in said
    assert [workspace.launches(cell) for cell in ("1proc", "2proc")] == [1, 1]
    assert _digests(workspace) == before
