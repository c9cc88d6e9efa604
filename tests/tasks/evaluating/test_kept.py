"""What was found of a model is reused where nothing that it depends on is another, and nowhere else."""

import importlib.metadata

import pytest

from tasks.evaluate import reuse_or_make
from tasks.inputs.snapshot import Snapshot
from tasks.records.evaluation import FoundFile


class Count:
    """Makes a result, and counts how often."""

    number = 0

    def __call__(self):
        self.number += 1
        return FoundFile(loss=4.0, num_tokens=15, parameter_checksum="01")


@pytest.fixture
def count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Count()


def _run(count):
    reuse_or_make("the loss: computed", FoundFile, {"weights": "w"}, count, Snapshot(None))
    return count.number


def test_what_was_found_is_found_once_unless_the_environment_has_other_arithmetic(count, monkeypatch):
    assert _run(count) == 1
    monkeypatch.setenv("SOME_NAME", "1")
    assert _run(count) == 1
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    assert _run(count) == 2
    monkeypatch.delenv("ONEDNN_DEFAULT_FPMATH_MODE")
    assert _run(count) == 2


@pytest.mark.parametrize("package", ["torch", "torchvision", "transformers", "tokenizers", "numpy"])
def test_with_another_version_of_what_computes_it_is_found_anew(package, count, tmp_path, monkeypatch):
    _run(count)
    (tmp_path / f"{package}-0.0.1.dist-info").mkdir()
    (tmp_path / f"{package}-0.0.1.dist-info" / "METADATA").write_text(f"Name: {package}\nVersion: 0.0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.metadata.version(package) == "0.0.1"
    assert _run(count) == 2
