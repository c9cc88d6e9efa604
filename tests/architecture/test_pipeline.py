"""dvc.yaml, tasks/ and the lock hold together."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.inputs.meaning import collect_meanings


@pytest.fixture(scope="module")
def stages(project: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(project / "dvc.yaml")["stages"]
    return loaded


def test_every_stage_is_one_module_of_tasks(stages: dict[str, Any], project: Path) -> None:
    modules = {file.stem for file in (project / "tasks").glob("*.py")} - {"__init__", "params"}
    assert modules == set(stages)


def test_every_stage_runs_its_own_module(stages: dict[str, Any]) -> None:
    for name, stage in stages.items():
        command = stage.get("do", stage)["cmd"]
        assert command.startswith(f"python -m tasks.{name} "), name


def test_upload_depends_on_the_report_and_nothing_depends_on_upload(stages: dict[str, Any]) -> None:
    assert "reports/results.json" in stages["upload"]["deps"]
    outputs = {next(iter(out)) if isinstance(out, dict) else out for out in stages["upload"]["outs"]}
    for name, stage in stages.items():
        assert not outputs & set(stage.get("do", stage).get("deps", [])), name


def test_every_stage_but_the_first_works_on_its_snapshot_and_depends_on_it(stages: dict[str, Any]) -> None:
    """What its params and its code are stands there (tests/tasks/inputs/test_meaning.py): no code is listed twice."""
    for name, stage in stages.items():
        if name == "fingerprint":
            continue
        stage = stage.get("do", stage)
        key = f"{name}@${{key}}" if name == "train" else name
        snapshot = f"data/fingerprint/stages/{key}.json"
        assert f" --inputs {snapshot}" in stage["cmd"], name
        assert snapshot in stage["deps"], name
        assert not [dep for dep in stage["deps"] if dep.startswith(("tasks", "training"))], name


@pytest.mark.slow
def test_code_that_only_measures_is_measured_anew_and_retrains_nothing(project: Path) -> None:
    files = {f"training/probing/{file.name}" for file in (project / "training/probing").glob("*.py")}
    assert len(files) > 4
    assert files < set(collect_meanings("tasks.measure", "training.__main__"))
    assert not files & set(collect_meanings("tasks.train", "training.__main__", without=["training.probing"]))
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, training.loop; print(*sorted(sys.modules))"],
        cwd=project, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert not [name for name in loaded if name.startswith("training.probing")]
    assert "training.loop" in loaded


@pytest.mark.parametrize(("name", "fewest"), [("requirements.lock", 200), ("requirements-extras.lock", 10)])
def test_a_lock_pins_every_package_by_hash_and_names_no_host(project: Path, name: str, fewest: int) -> None:
    lock = (project / name).read_text()
    packages = re.findall(r"^[A-Za-z0-9_.\-]+==", lock, flags=re.MULTILINE)
    assert len(packages) > fewest
    assert len(re.findall(r"==.*\\\n    --hash=sha256:", lock)) == len(packages)
    assert "://" not in lock


def test_the_set_up_installs_no_extra_and_the_extras_change_no_version_of_it(project: Path) -> None:
    pinned, extra = (
        set(re.findall(r"^([a-z0-9.\-]+)==([^ ;\\]+)", (project / name).read_text(), flags=re.MULTILINE))
        for name in ("requirements.lock", "requirements-extras.lock")
    )
    assert not {"wandb", "tensorboard"} & {name for name, _ in pinned}
    assert {"wandb", "tensorboard"} <= {name for name, _ in extra}
    assert {pair for pair in extra if pair[0] in dict(pinned)} <= pinned


def test_the_lock_keeps_the_pins_without_which_prefect_dies_or_never_fires(project: Path) -> None:
    lock = (project / "requirements.lock").read_text()
    fastapi = re.search(r"^fastapi==0\.(\d+)\.", lock, flags=re.MULTILINE)
    sqlalchemy = re.search(r"^sqlalchemy==(\d+)\.(\d+)\.", lock, flags=re.MULTILINE)
    assert fastapi is not None
    assert 139 <= int(fastapi[1]) < 151
    assert sqlalchemy is not None
    assert (int(sqlalchemy[1]), int(sqlalchemy[2])) == (2, 0)
