"""What decides numbers, and what does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.fingerprint import digest_training_code
from tasks.machine.facts import collect_machine_facts
from tasks.params.source_digest import digest_source
from tasks.records.fingerprint import MachineFile
from training.process.files import digest_json

SOURCE = '''\
"""Says something."""

import math


class Circle:
    """A circle."""

    def area(self, radius: float) -> float:
        """Return the area."""
        # Archimedes
        return math.pi * radius**2
'''

HARMLESS = {
    "a comment": ("# Archimedes", "# Euclid, rather"),
    "a docstring": ('"""Return the area."""', '"""Return the area; units squared."""'),
    "a docstring removed": ('    """A circle."""\n', ""),
    "the module's docstring": ('"""Says something."""\n', ""),
    "layout": ("return math.pi * radius**2", "return (\n            math.pi\n            * radius ** 2\n        )"),
}
REAL = {
    "a constant": ("radius**2", "radius**3"),
    "an operator": ("math.pi *", "math.pi /"),
    "a name": ("def area", "def surface"),
    "a string that is used": ("return math", 'print("x")\n        return math'),
    "a default": ("radius: float", "radius: float = 1.0"),
}


def _digest(folder: Path, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "shape.py").write_text(text)
    return digest_training_code(folder)


@pytest.mark.parametrize("case", HARMLESS)
def test_what_only_people_read_does_not_change_the_digest(case: str, tmp_path: Path) -> None:
    old, new = HARMLESS[case]
    assert old in SOURCE
    assert _digest(tmp_path / "a", SOURCE) == _digest(tmp_path / "b", SOURCE.replace(old, new))


@pytest.mark.parametrize("case", REAL)
def test_what_the_machine_does_otherwise_changes_the_digest(case: str, tmp_path: Path) -> None:
    old, new = REAL[case]
    assert old in SOURCE
    assert _digest(tmp_path / "a", SOURCE) != _digest(tmp_path / "b", SOURCE.replace(old, new))


def test_a_new_or_renamed_file_changes_the_digest(tmp_path: Path) -> None:
    before = _digest(tmp_path / "a", SOURCE)
    (tmp_path / "a" / "shape.py").rename(tmp_path / "a" / "form.py")
    assert digest_training_code(tmp_path / "a") != before


def test_a_file_that_moves_changes_nothing_and_another_one_of_its_name_does(tmp_path: Path) -> None:
    def digest_with(**files: str) -> str:
        top = tmp_path / str(len(list(tmp_path.iterdir())))
        for place, text in files.items():
            file = top / "training" / f"{place.replace('__', '/')}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return digest_training_code(top / "training")

    user, way = "from training.{} import area\n\nprint(area(2))\n", "\nWAY = import_file('training.{}', 'shape')\n"
    before = digest_with(user=user.format("shape") + way.format("a"), shape=SOURCE)
    assert digest_with(user=user.format("deep.shape") + way.format("b"), deep__shape=SOURCE) == before
    # Two files of one name: which of them is imported is a difference, though all that stands there is alike.
    other = SOURCE.replace("radius**2", "radius**3")
    two = {"a__shape": SOURCE, "b__shape": other}
    assert digest_with(user=user.format("a.shape"), **two) != digest_with(user=user.format("b.shape"), **two)
    # The same where a file is found by its name: another folder is another file.
    found = "SHAPE = import_file('training.{}', NAME)\n"
    assert digest_with(user=found.format("a"), **two) != digest_with(user=found.format("b"), **two)
    assert digest_with(user=found.format("a"), a__shape=SOURCE) == digest_with(user=found.format("b"), b__shape=SOURCE)


def test_what_only_measures_does_not_change_the_digest(tmp_path: Path) -> None:
    before = _digest(tmp_path / "a", SOURCE)
    (tmp_path / "a" / "probing").mkdir()
    (tmp_path / "a" / "probing" / "measure.py").write_text("anything = 1")
    assert digest_training_code(tmp_path / "a") == before
    (tmp_path / "a" / "workloads").mkdir()
    (tmp_path / "a" / "workloads" / "measure.py").write_text("anything = 1")
    assert digest_training_code(tmp_path / "a") != before


def test_the_machine_is_described_without_importing_torch() -> None:
    code = (
        "import sys; from tasks.machine.facts import collect_machine_facts; collect_machine_facts(); print('torch' in "
        "sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_machine_digest_is_stable_and_covers_every_fact() -> None:
    first, second = collect_machine_facts(), collect_machine_facts()
    assert first == second
    assert first.num_cpus >= 1
    assert {"python", "torch", "transformers", "numpy"} <= set(first.versions)
    # As it was before the facts had a class: nobody's segments are trained anew for it.
    assert first.digest == digest_json(first.content(exclude={"digest"}))
    for name in MachineFile.model_fields.keys() - {"digest", "file_version"}:
        assert name in first.content(exclude={"digest"})


def test_hidden_gpus_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert collect_machine_facts().num_gpus == 0


def test_a_changed_byte_in_a_local_source_is_seen(tmp_path: Path) -> None:
    assert digest_source(tmp_path / "none") is None
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    before = digest_source(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{ }")
    assert digest_source(tmp_path / "model") != before
