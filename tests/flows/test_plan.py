"""What is said before a comparison starts: what will run, and how long that took last time."""

import re
from pathlib import Path

import pytest

from flows.pipeline import list_stages, remember_seconds, tell_plan
from tasks.reporting.provenance import STAGE_SECONDS

STAGES = list_stages(["1proc", "2proc"])


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_first_run_runs_all_and_knows_no_times() -> None:
    assert tell_plan(STAGES, {}) == (
        "9 of 9 stages to run, some for the first time (`measure` will tell how long the trainings take): "
        "fingerprint, download, slice, measure, train@1proc, train@2proc, evaluate, report, upload"
    )


def test_later_run_goes_on_from_the_first_that_changed_and_says_how_long_those_took() -> None:
    for stage in STAGES:
        remember_seconds(stage, 3600.0 if stage == "measure" else 30.0)
    changes = {"fingerprint": ["always changed"], "download": [], "train@2proc": ["params.yaml (modified)"]}
    changes |= {stage: [] for stage in STAGES if stage not in changes}
    assert re.fullmatch(
        r"4 of 9 stages to run, which took 0:02:00 last time \(h:min:s\), so until [A-Z][a-z]{2} \d\d:\d\d: "
        "train@2proc, evaluate, report, upload",
        tell_plan(STAGES, changes),
    )
    assert "7200" not in STAGE_SECONDS.read_text()


def test_where_nothing_has_changed_nothing_is_announced() -> None:
    changes = {stage: [] for stage in STAGES} | {"fingerprint": ["always changed"]}
    assert tell_plan(STAGES, changes) == "9 stages, in none of which anything has changed so far"


def test_a_damaged_file_of_times_is_none() -> None:
    remember_seconds("upload", 5.0)
    STAGE_SECONDS.write_text('{"upload": ')
    assert "for the first time" in tell_plan(STAGES, {})
    remember_seconds("upload", 5.0)
    assert '"upload": 5.0' in STAGE_SECONDS.read_text()
