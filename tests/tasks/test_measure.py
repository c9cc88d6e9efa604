"""The equivalence certificate, made by the real stage with real ranks on gloo, of right trainers and of wrong ones."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.integration.conftest import processes_in
from tests.museum.project import (
    Size,
    change_params,
    copy_project,
    make_project,
    patch_project,
    run_stage,
)
from tests.museum.stage_process import StageFailedError, StageProcess
from tests.tasks.wrong_updates import WRONG

pytestmark = pytest.mark.slow


def break_functions(project: Path, key: str) -> None:
    """Have the project's processes run with functions of tests/tasks/wrong_updates.py."""
    patch_project(project, f"tests.tasks.wrong_updates:{key}")


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scratch project before the stage `measure`: a tiny model, two ranges of ragged rows."""
    folder = tmp_path_factory.mktemp("measure") / "blank"
    make_project(folder, PROJECT, Size(num_rows=(61, 29)))
    return folder


@pytest.fixture
def copied(blank: Path, tmp_path: Path) -> Path:
    """A copy of it, in which nothing but the certificate is made."""
    project = copy_project(blank, tmp_path / "project")
    change_params(project, {"measure.twin_seconds": 0})
    return project


def certificate_of(project: Path) -> dict[str, Any]:
    """Run the stage; return the certificate of the cell of two ranks."""
    run_stage(project, "measure")
    found = json.loads((project / "data/measurements/certificate.json").read_bytes())
    (cell,) = found["cells"]
    assert cell["cell"] == "2proc"
    return {**cell, "sample": found["sample"]}


@pytest.fixture(scope="module")
def certified(blank: Path, tmp_path_factory: pytest.TempPathFactory, warm: Path) -> Path:
    """A copy of it in which the stage has run under torchrun, which starts at once as its ranks do."""
    project = copy_project(blank, tmp_path_factory.mktemp("certified") / "project")
    change_params(project, {"cells.2proc.launcher": "torchrun"})
    starts_warm = f"import sys; sys.executable = {str(warm / 'python')!r}"
    StageProcess(project, "measure", *_arguments(), first=starts_warm).finish()
    return project


def test_two_ranks_under_torchrun_make_the_updates_of_one_process_to_the_bit(certified: Path) -> None:
    found = json.loads((certified / "data/measurements/certificate.json").read_bytes())
    (cell,) = found["cells"]
    assert (cell["verdict"], cell["problem"], cell["num_steps"]) == ("passed", None, 8)
    assert found["sample"]["num_rows"] == 61
    equal = {"max_abs": 0.0, "relative_l2": 0.0, "is_bitwise_equal": True, "largest_in": None}
    assert [update["step"] for update in cell["updates"]] == list(range(1, 9))
    for update in cell["updates"]:
        gradient, weights = update["gradient"], update["weights"]
        assert gradient["found"] == weights["found"] == equal
        assert gradient["noise_floor"] < 1e-6
        assert gradient["tolerance"] == 10 * max(gradient["noise_floor"], 2**-23)
        assert weights["tolerance"] == 10 * 2**-23 + 4 * weights["noise_floor"] < 1e-3
    assert sum(update["gradient"]["noise_floor"] > 0 for update in cell["updates"]) > 4
    assert (cell["gradient"], cell["weights"]) == (equal, equal)
    kept = sorted(sorted(file.name for file in folder.iterdir()) for folder in (certified / ".work/measure").iterdir())
    assert kept == [["certificate.json", "manifest.json"], ["manifest.json", "twins.json"]]


def test_packed_rows_and_exchanges_in_16_bit_are_certified(copied: Path) -> None:
    changes = {"train.packing": True, "train.precision": "bf16", "cells.2proc.options": {"gradient_hook": "fp16"}}
    change_params(copied, changes)
    found = certificate_of(copied)
    assert (found["verdict"], found["problem"]) == ("passed", None)
    assert found["gradient"]["is_bitwise_equal"]
    assert found["weights"]["is_bitwise_equal"]


@pytest.mark.parametrize("where", ["on the ranks", "in the one process"])
def test_without_memory_smaller_micro_batches_are_certified(copied: Path, where: str) -> None:
    break_functions(copied, f"no memory {where}")
    change_params(copied, {"measure.twin_seconds": 0})
    found = certificate_of(copied)
    assert (found["verdict"], found["problem"], found["num_steps"]) == ("passed", None, 8)
    assert [update["step"] for update in found["updates"]] == list(range(1, 9))
    assert found["micro_batch_size"] == 1
    assert "out of memory" in (copied / "stages.log").read_text()


def test_what_is_certified_is_not_measured_again_when_only_the_extent_grows(certified: Path, tmp_path: Path) -> None:
    project = copy_project(certified, tmp_path / "project")
    extent = {"train.epochs": 3, "train.log_every_steps": 7, "ranges": ["0-61"]}
    change_params(project, {**extent, "measure.twin_seconds": 0})
    # Nobody could start ranks here: the launcher is gone.
    (project / "tasks/ranks/launchers/torchrun.py").write_text("")
    again = certificate_of(project)
    before = json.loads((certified / "data/measurements/certificate.json").read_bytes())["cells"][0]
    assert {key: again[key] for key in before} == before
    assert "1 of 1 cells are certified already" in (project / "stages.log").read_text()


def test_in_weak_scaling_the_larger_steps_have_a_certificate_of_their_own(copied: Path) -> None:
    change_params(copied, {"measure.scaling": "weak"})
    run_stage(copied, "measure")
    found = json.loads((copied / "data/measurements/certificate.json").read_bytes())
    told = [(one["cell"], one["global_batch_size"], one["verdict"]) for one in found["cells"]]
    assert told == [("2proc", 8, "passed"), ("2proc", 16, "passed")]
    # 61 rows are 8 steps of 8 samples, the last of 5, and 4 of 16.
    assert [one["num_steps"] for one in found["cells"]] == [8, 4]


@pytest.mark.parametrize("changes", [{"train.precision": "fp16"}, {"train.exact": True}], ids=str)
def test_right_trainers_pass(copied: Path, changes: dict[str, Any]) -> None:
    change_params(copied, changes)
    found = certificate_of(copied)
    assert found["verdict"] == "passed", found["problem"]
    assert found["gradient"]["relative_l2"] < 1e-6


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_trainers_fail_by_orders_of_magnitude(copied: Path, name: str, precision: str) -> None:
    change_params(copied, {"train.max_grad_norm": 0.1, "train.precision": precision})
    break_functions(copied, name)
    found = certificate_of(copied)
    assert found["verdict"] == "failed"
    worst = max(
        found[what]["relative_l2"] / found["tolerance"][what] for what in ("gradient", "weights") if found[what]
    )
    assert worst > 30, found
    assert found["problem"]


def test_ranks_that_differ_are_a_failed_certificate_and_no_failed_stage(copied: Path) -> None:
    break_functions(copied, "no exchange")
    found = certificate_of(copied)
    assert found["verdict"] == "failed"
    assert "the ranks hold different parameters" in found["problem"]
    # The last update's are not known: the ranks saved nothing.
    assert found["updates"][-1]["weights"] is None


def test_another_failure_of_the_ranks_ends_the_stage_with_its_own_exit_code(copied: Path) -> None:
    break_functions(copied, "broken device")
    with pytest.raises(StageFailedError, match="broken device") as caught:
        run_stage(copied, "measure")
    assert caught.value.exit_code == 6
    assert not (copied / "data/measurements").exists()


@pytest.mark.parametrize("moment", ["ranks", "process"])
def test_sigterm_ends_the_stage_resumable_and_leaves_no_process(copied: Path, moment: str) -> None:
    break_functions(copied, f"slow {moment}")
    stage = StageProcess(copied, "measure", *_arguments())
    streams = copied / ".work" / "measure"
    wanted = '"event": "step"' if moment == "ranks" else '"event": "launch_finished"'
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(
        wanted in file.read_text() for file in streams.glob("*/ranks/steps.jsonl")
    ):
        time.sleep(0.05)
    if moment == "process":
        time.sleep(1.0)
    os.kill(stage.pid, signal.SIGTERM)
    with pytest.raises(StageFailedError) as caught:
        stage.finish()
    assert caught.value.exit_code == 75, caught.value.words
    assert "measuring was stopped" in caught.value.words
    assert processes_in(copied) == []
    assert not (copied / "data/measurements").exists()


def _arguments() -> list[str]:
    """Return the stage's command line."""
    return [
        *("--slices", "data/slices", "--base-model", "data/base_model"),
        *("--machine", "data/fingerprint/machine.json", "--trial", "data/fingerprint/trial.json"),
        *("--measurements", "data/measurements"),
    ]
