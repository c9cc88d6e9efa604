"""Which code a stage depends on: all that it may import, by what it means."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.fingerprint import write_snapshots
from tasks.inputs.meaning import NOT_CONTENT, collect_meanings
from tasks.params import load_params

MODULES = {
    "tasks/records/measurement.py": {"measure", "train@1proc", "train@2proc", "report", "upload"},
    "tasks/evaluating/loss_arithmetic.py": {"evaluate", "report", "upload"},
    "tasks/reporting/style.css": {"report"},
    "tasks/reporting/script.js": {"report"},
    "tasks/reporting/charts/speedup.py": {"report"},
    "tasks/measuring/bench.py": {"measure"},
    "tasks/measuring/model_error.json": {"measure"},
    "tasks/strategies/ddp.py": {"measure", "train@1proc", "train@2proc", "report", "upload"},
    "tasks/equivalence/reference/causal_lm.py": {"measure", "evaluate"},
    "tasks/ranks/cell_ranks.py": {"measure", "train@1proc", "train@2proc", "evaluate"},
    "tasks/ranks/launchers/torchrun.py": {"measure", "train@1proc", "train@2proc", "evaluate"},
    "tasks/data/slicing/image_classification.py": {"slice"},
    "tasks/data/sources/rows.py": {"download"},
    "tasks/train.py": {"train@1proc", "train@2proc"},
    "training/probing/parts.py": {"measure"},
    "training/loop.py": {"measure", "train@1proc", "train@2proc"},
    "tasks/process/lock.py": set(),
}
"""A module -> the stages that a change of what it means makes stale."""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Path:
    """The project's sources, which a test may change and put back."""
    folder = tmp_path_factory.mktemp("meaning")
    for name in ("tasks", "training"):
        shutil.copytree(project / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(project / name, folder / name)
    return folder


def _snapshots(folder: Path) -> dict[str, str]:
    """Return stage -> its snapshot, as `fingerprint` would write it in that copy of the project."""
    code = (
        "from pathlib import Path; from tasks.fingerprint import write_snapshots; from tasks.params import load_params;"
        "from tasks.inputs.meaning import keep_meanings;"
        "write_snapshots(Path('stages'), load_params(looks_at_data=False)); keep_meanings()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    return {file.stem: file.read_text() for file in (folder / "stages").iterdir()}


@pytest.fixture(scope="module")
def unchanged(copied: Path) -> dict[str, str]:
    return _snapshots(copied)


def _stale_after(folder: Path, module: str, change: Callable[[str], str], before: dict[str, str]) -> set[str]:
    file = folder / module
    content = file.read_text()
    file.write_text(change(content))
    try:
        return {stage for stage, snapshot in _snapshots(folder).items() if snapshot != before[stage]}
    finally:
        file.write_text(content)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_a_change_of_meaning_makes_stale_the_stages_that_may_run_it(
    module: str, copied: Path, unchanged: dict[str, str]
) -> None:
    added = {".py": "\nCHANGED = True\n", ".css": "\n.changed {}\n", ".js": "\n// changed\n", ".json": "\n"}[
        Path(module).suffix
    ]
    assert _stale_after(copied, module, lambda text: text + added, unchanged) == MODULES[module]


def test_a_comment_or_a_docstring_makes_nothing_stale(copied: Path, unchanged: dict[str, str]) -> None:
    remark = '"""A remark: '
    for module in ("tasks/records/measurement.py", "training/loop.py"):
        changed = _stale_after(copied, module, lambda text: "# another\n" + text.replace('"""', remark, 1), unchanged)
        assert changed == set()


def test_a_default_of_params_counts_by_its_value(copied: Path, unchanged: dict[str, str]) -> None:
    found = _stale_after(
        copied,
        "tasks/params/train.py",
        lambda text: text.replace("momentum: Finite = Field(default=0.9", "momentum: Finite = Field(default=0.8"),
        unchanged,
    )
    assert found == {"measure", "train@1proc", "train@2proc", "evaluate", "report", "upload"}


def test_every_module_left_out_is_one_of_the_project(project: Path) -> None:
    for module in NOT_CONTENT:
        place = project / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__init__.py").is_file(), module


def test_code_that_only_measures_belongs_to_the_stage_measure_alone(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    write_snapshots(tmp_path / "stages", load_params(looks_at_data=False))
    files = {f"training/probing/{file.name}" for file in (project / "training/probing").glob("*.py")}
    codes = {file.stem: set(json.loads(file.read_text())["code"]) for file in (tmp_path / "stages").iterdir()}
    assert files < codes.pop("measure")
    assert all(not files & code for code in codes.values())


def test_names_put_together_and_lazy_imports_are_followed(tmp_path: Path) -> None:
    for name, text in {
        "tasks/__init__.py": "",
        "tasks/one.py": "def f(x):\n    import importlib\n    importlib.import_module(f'tasks.many.{x}')\n",
        "tasks/many/__init__.py": "",
        "tasks/many/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tasks.typed\n",
        "tasks/many/b.py": "def g():\n    from tasks import lazy\n    open('beside.txt')\n",
        "tasks/many/beside.txt": "data",
        "tasks/lazy.py": "import os\n",
        "tasks/typed.py": "",
        "tasks/other.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    assert set(collect_meanings("tasks.one", project=tmp_path)) == {
        "tasks/__init__.py", "tasks/one.py", "tasks/many/__init__.py", "tasks/many/a.py", "tasks/many/b.py",
        "tasks/many/beside.txt", "tasks/lazy.py",
    }  # fmt: skip


def test_what_measure_keeps_outside_of_dvc_depends_on_the_schema_that_it_writes() -> None:
    from tasks import measure

    timed = set(collect_meanings(*measure._TIMING, without=measure._STARTING))
    assert {"tasks/records/measurement.py", "tasks/measuring/model_error.json", "training/probing/parts.py"} < timed
    certified = set(collect_meanings(*measure._CERTIFYING, without=measure._STARTING))
    assert {
        "tasks/equivalence/reference/update.py",
        "tasks/equivalence/reference/causal_lm.py",
        "tasks/measuring/sample.py",
    } < certified
    assert "tasks/measuring/bench.py" not in certified
    assert not [path for path in timed | certified if path.startswith("tasks/ranks/launchers")]
