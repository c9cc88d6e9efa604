"""A run works on one snapshot of its inputs: whatever is edited in the middle of a stage, DVC records nothing of it.

The stages are the real ones, as dvc.yaml has them, in a finished comparison, forked from a process that has torch
already; the edit is made by a hook of the interpreter while the stage runs (MEANWHILE).
"""

import json
import os
import shlex
from pathlib import Path

import pytest
from ruamel.yaml import YAML

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
STAGES = YAML(typ="safe").load(Path(__file__).resolve().parents[2] / "dvc.yaml")["stages"]


def _entry(stage):
    name, _, cell = stage.partition("@")
    entry = json.dumps(STAGES[name].get("do", STAGES[name])).replace("${key}", cell)
    return json.loads(entry)


_EDGES = (
    "train@1proc < params.yaml", "train@1proc < its code", "train@1proc < data/slices",
    "download < data/fingerprint/sources.json", "slice < data/raw", "measure < data/fingerprint/trial.json",
    "evaluate < data/runs", "report < data/measurements", "upload < reports/charts",
)  # fmt: skip
"""A stage and an input: one of every stage, and one for every kind of input."""


@pytest.fixture(scope="module")
def shared(finished, tmp_path_factory):
    """A copy of the finished comparison in which every edit is undone after its test."""
    return finished.copy(tmp_path_factory.mktemp("snapshot") / "workspace")


def _edit_of(stage, what, folder):
    """Return the file that is edited, and its text then, made so that nothing is written through a hard link."""
    if what == "params.yaml":
        file = folder / what
        before = file.read_bytes()
        Workspace(folder).change({"train.weight_decay": 0.05})
        after = file.read_text()
        file.write_bytes(before)
        return file, after
    if what == "its code":
        file = folder / "tasks" / f"{stage.partition('@')[0]}.py"
        return file, f"{file.read_text()}\nCHANGED = True\n"
    place = folder / what
    file = next(file for file in sorted([place, *place.rglob("*")]) if file.is_file())
    return file, "somebody wrote this\n"


@pytest.mark.parametrize("edge", _EDGES)
def test_an_input_edited_in_the_middle_of_a_stage_fails_it_in_one_line(edge, shared):
    stage, what = edge.split(" < ")
    file, after = _edit_of(stage, what, shared.folder)
    kept = file.with_name(f".kept-{file.name}")
    os.link(file, kept)
    new = f"import pathlib; p = pathlib.Path({str(file)!r}); p.unlink(); p.write_text({after!r})"
    _, _, module, *arguments = shlex.split(_entry(stage)["cmd"])
    first = MEANWHILE.format(edit=new)
    try:
        with pytest.raises(StageFailedError) as ended:
            StageProcess(shared.folder, module.removeprefix("tasks."), *arguments, first=first).finish()
    finally:
        kept.replace(file)
    assert ended.value.exit_code == (3 if what.startswith(("data", "reports")) else 2)
    line = ended.value.words
    assert line.startswith(f"{stage.partition('@')[0]}: "), line
    assert "changed while this run was going; run again" in line or (
        "params.yaml changed while this run was going: train.weight_decay" in line
    )
    assert file.relative_to(shared.folder).as_posix() in line or what == "params.yaml"


def test_a_param_edited_between_the_end_of_a_stage_and_dvcs_record_makes_it_stale(workspace):
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
    lock = YAML(typ="safe").load(workspace.folder / "dvc.lock")["stages"]
    assert lock["train@1proc"]["params"]["params.yaml"]["train"]["weight_decay"] == 0.05
    launches = workspace.launches("1proc")
    workspace.repro("train@1proc")
    assert workspace.launches("1proc") == launches + 1, "it was trained with the value that params.yaml has"
