"""A run works on one snapshot of its inputs: whatever is edited in the middle of a stage, DVC records nothing of it.

The stages are the real ones, as dvc.yaml has them, in a finished comparison, forked from a process that has torch
already; the edit is made by a hook of the interpreter while the stage runs (MEANWHILE).
"""

import json
import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tasks.records.run import RunFile, read_segment
from tests.museum.stage_process import StageFailedError, StageProcess
from tests.workspace import Workspace

pytestmark = pytest.mark.slow

MEANWHILE = """
import os, sys
EDIT = {edit!r}
opened = []

def hook(event, arguments):
    if event != "open" or not isinstance(arguments[0], (str, os.PathLike)):
        return
    if os.path.basename(arguments[0]) == "params.yaml" and "/tasks/" in sys.argv[0]:
        opened.append(1)
        if len(opened) == 2:  # the stage has begun to work on what it read when it was opened first
            exec(EDIT)

sys.addaudithook(hook)
"""
PARAM_OF = {
    "download": ("ranges", ["0-64", "64-120"]),
    "slice": ("heldout", "130-160"),
    "measure": ("train.weight_decay", 0.05),
    "train@1proc": ("train.weight_decay", 0.05),
    "evaluate": ("train.weight_decay", 0.05),
    "report": ("description", "Another one."),
    "upload": ("upload.private", False),
}
"""Stage -> one of its params, and another value for it."""
STAGES: dict[str, Any] = YAML(typ="safe").load(Path(__file__).resolve().parents[2] / "dvc.yaml")["stages"]


def _entry(stage: str) -> dict[str, Any]:
    name, _, cell = stage.partition("@")
    entry = json.dumps(STAGES[name].get("do", STAGES[name])).replace("${key}", cell)
    loaded: dict[str, Any] = json.loads(entry)
    return loaded


_FIRST = {
    ("train@1proc", "params.yaml"), ("train@1proc", "its code"), ("train@1proc", "data/slices"),
    ("download", "data/fingerprint/sources.json"), ("slice", "data/raw"), ("measure", "data/fingerprint/trial.json"),
    ("evaluate", "data/runs"), ("report", "data/measurements"), ("upload", "reports/charts"),
}  # fmt: skip
"""One edge of every stage, and one for every kind of input; `make test` leaves the others to `make test-all`."""


def _edges() -> list[Any]:
    """Return (stage, input) of every edge of dvc.yaml but the snapshots themselves, the params and the code."""
    others = ("data/fingerprint/stages/", "ddp_audit", "tasks", "training")
    inputs = {stage: [dep for dep in _entry(stage)["deps"] if not dep.startswith(others)] for stage in PARAM_OF}
    edges = [(stage, what) for stage, deps in inputs.items() for what in ("params.yaml", "its code", *deps)]
    assert set(edges) >= _FIRST
    return [pytest.param(*edge, id=f"{'first' if edge in _FIRST else 'other'}-{'-'.join(edge)}") for edge in edges]


def _start(stage: str, workspace: Workspace, *, first: str) -> StageProcess:
    """Start a stage as dvc.yaml has it, with Python that runs before it."""
    _, _, module, *arguments = shlex.split(_entry(stage)["cmd"])
    return StageProcess(
        workspace.folder, module.removeprefix("tasks."), *arguments, first=first, has_services=True
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared(finished: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A copy of the finished comparison in which every edit is undone after its test."""
    return finished.copy(tmp_path_factory.mktemp("snapshot") / "workspace")


def _edit_of(stage: str, what: str, folder: Path) -> tuple[Path, str]:
    """Return the file that is edited, and its text then, made so that nothing is written through a hard link."""
    if what == "params.yaml":
        file = folder / what
        before = file.read_bytes()
        Workspace(folder).change(dict([PARAM_OF[stage]]))
        after = file.read_text()
        file.write_bytes(before)
        return file, after
    if what == "its code":
        file = folder / "tasks" / f"{stage.partition('@')[0]}.py"
        return file, f"{file.read_text()}\nCHANGED = True\n"
    place = folder / what
    file = next(file for file in sorted([place, *place.rglob("*")]) if file.is_file())
    return file, "somebody wrote this\n"


@pytest.mark.parametrize(("stage", "what"), _edges())
def test_an_input_edited_in_the_middle_of_a_stage_fails_it_in_one_line(
    stage: str, what: str, shared: Workspace
) -> None:
    file, after = _edit_of(stage, what, shared.folder)
    kept = file.with_name(f".kept-{file.name}")
    os.link(file, kept)
    new = f"import pathlib; p = pathlib.Path({str(file)!r}); p.unlink(); p.write_text({after!r})"
    try:
        with pytest.raises(StageFailedError) as ended:
            _start(stage, shared, first=MEANWHILE.format(edit=new)).finish()
    finally:
        kept.replace(file)
    assert ended.value.exit_code == (3 if what.startswith(("data", "reports")) else 2)
    line = ended.value.words
    assert line.startswith(f"{stage.partition('@')[0]}: "), line
    assert "changed while this run was going; run again" in line or (
        "params.yaml changed while this run was going: " in line and PARAM_OF[stage][0] in line
    )
    assert file.relative_to(shared.folder).as_posix() in line or what == "params.yaml"


def _wait_for_step(workspace: Workspace, cell: str, process: subprocess.Popen[Any]) -> None:
    log = workspace.folder / ".work" / "runs" / cell / "steps.jsonl"
    log.unlink()
    deadline = time.monotonic() + 900
    while not (log.exists() and '"event": "step"' in log.read_text()):
        assert process.poll() is None, "it ended before it could be disturbed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _recorded(workspace: Workspace, stage: str) -> dict[str, Any]:
    lock = YAML(typ="safe").load(workspace.folder / "dvc.lock")
    found: dict[str, Any] = lock["stages"][stage]
    return found


def test_a_param_edited_while_a_cell_trains_is_never_recorded_for_it(workspace: Workspace) -> None:
    # Of four epochs three are to be trained: what comes before the training knows of no change.
    workspace.change({"train.epochs": 4, "measure.speed": False})
    before = _recorded(workspace, "train@1proc")
    with subprocess.Popen(
        ["python", "-m", "dvc", "repro", "train@1proc", "train@2proc"],
        cwd=workspace.folder, env=workspace.environment(), stdout=-1, stderr=-2, text=True,
    ) as run:  # fmt: skip
        _wait_for_step(workspace, "1proc", run)
        workspace.change({"train.weight_decay": 0.05})
        said, _ = run.communicate(timeout=900)
    assert run.returncode != 0
    assert "train: params.yaml changed while this run was going: train.weight_decay 0.01 -> 0.05; run again" in said
    assert _recorded(workspace, "train@1proc") == before, "nothing was recorded"
    assert workspace.launches("2proc") == 1, "no other cell was trained with other values"
    assert not (workspace.folder / "data" / "runs" / "1proc" / "run.json").exists()
    launches = workspace.launches("1proc")
    workspace.change({"train.weight_decay": 0.01})
    workspace.repro("train@1proc")
    assert workspace.launches("1proc") == launches, "what it had trained still fits"
    run = workspace.folder / "data/runs/1proc"
    record = RunFile.read(run)
    values = [record.train, *(read_segment(run / part.folder).settings[0]["train"] for part in record.segments)]
    assert {value["weight_decay"] for value in values} == {0.01}
    assert {value["learning_rate"] for value in values} == {0.002}
    assert len(record.segments) == 8


def test_a_param_edited_between_the_end_of_a_stage_and_dvcs_record_makes_it_stale(workspace: Workspace) -> None:
    """DVC reads params.yaml itself after the command; what the stage worked with is the snapshot, which it records."""
    stage = workspace.folder / "tasks" / "train.py"
    stage.write_text(
        stage.read_text().replace(
            "    _assemble(run, arguments.run)\n",
            "    _assemble(run, arguments.run)\n"
            "    text = Path('params.yaml').read_text()\n"
            "    Path('params.yaml').write_text(text.replace('weight_decay: 0.01', 'weight_decay: 0.05'))\n",
        )
    )
    workspace.repro("train@1proc")
    assert _recorded(workspace, "train@1proc")["params"]["params.yaml"]["train"]["weight_decay"] == 0.05
    launches = workspace.launches("1proc")
    workspace.repro("train@1proc")
    assert workspace.launches("1proc") == launches + 1, "it was trained with the value that params.yaml has"
