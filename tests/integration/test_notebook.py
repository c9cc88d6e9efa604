"""The notebook's cells, one after another, with its preset shrunk."""

import base64
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ruamel.yaml import YAML

from tests.workspace import SMALL, Workspace

PRESET = Path("presets/qwen2-arxiv-t4.yaml")
SHRUNK = YAML(typ="safe", pure=True).load("""
model: {source: "builtin:tiny-qwen2", name: tiny}
dataset: {source: "builtin:docstrings"}
measure: {speed: false}
train.precision: fp32
train.threads_per_rank: 1
""")


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_one_after_another(tmp_path, project, warm, monkeypatch):
    place = Workspace.create(tmp_path / "notebook", project=project, changes=SMALL, programs=warm)
    (place.folder / ".venv").symlink_to(warm.parent)
    params = (place.folder / "params.yaml").rename(place.folder / "before.yaml")
    shutil.copy(project / PRESET, place.folder / "params.yaml")
    place.change({key: SMALL[key] for key in SMALL if key.startswith(("train.", "ranges", "heldout"))} | SHRUNK)
    (place.folder / "params.yaml").rename(place.folder / PRESET)
    params.rename(place.folder / "params.yaml")
    cells = json.loads((project / PRESET).with_suffix(".ipynb").read_text())["cells"]
    go, setup, *others = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    monkeypatch.chdir(place.folder / "presets")
    for _ in range(2):
        exec(go, {})
        assert Path.cwd() == place.folder
    assert setup == "!make setup TORCH=installed", "tests/architecture/test_makefile.py runs its recipe"
    *typed, show = others
    said = [place.run("bash", "-c", line.removeprefix("!")).stdout for cell in typed for line in cell.splitlines()]
    assert "2gpu fits." in said[1]
    assert re.search(r"with train.keep last: a checkpoint of 0\.0\d GiB, after 2 segments of each cell", said[1])
    assert said[2].rstrip().endswith("Report: reports/index.html")
    kept = [file.parent.name for file in (place.folder / "data/runs").rglob("*.pt")]
    assert kept == ["64-128-epoch-1"] * 4
    shown = []
    display = SimpleNamespace(IFrame=lambda source, **_: shown.append(source))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    exec(show, {})
    page = base64.b64decode(shown[0].removeprefix("data:text/html;charset=utf-8;base64,"))
    assert page == (place.folder / "reports" / "index.html").read_bytes()
    assert place.run("bash", "-c", typed[-1].removeprefix("!")).stdout.count(": cached, ") >= 8
