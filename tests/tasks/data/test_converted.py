"""Pickled weights become safetensors once, by one command, and nothing of a pickle is run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tasks.data.sources.converted import convert_weights
from tasks.data.sources.models import store_model
from tasks.params.sources import ModelParams
from tasks.process.failure import DataError
from training.process.files import digest_file


@pytest.fixture
def pickled(tiny_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The built-in model with its weights as a pickle, in which embedding and head are one."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "pickled"
    shutil.copytree(tiny_qwen2, folder, ignore=shutil.ignore_patterns("*.safetensors", "manifest.json"))
    torch.save(AutoModelForCausalLM.from_pretrained(tiny_qwen2).state_dict(), folder / "pytorch_model.bin")
    return folder


def test_what_was_refused_is_the_same_model_after_the_command_that_is_named(
    pickled: Path, tiny_qwen2: Path, project: Path
) -> None:
    with pytest.raises(DataError, match="pickled weights are refused") as refused:
        store_model(ModelParams(source="path:pickled", name="mine"))
    command = str(refused.value).partition("or once: python ")[2].split()
    ended = subprocess.run(
        [sys.executable, *command], env={"PYTHONPATH": str(project), "PATH": ""}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert digest_file(Path("pickled-safe/model.safetensors")) in ended.stdout
    stored = store_model(ModelParams(source="path:pickled-safe", name="mine"))
    found, wanted = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (stored, tiny_qwen2))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_weights_in_several_files_are_all_converted(pickled: Path) -> None:
    weights = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    (pickled / "pytorch_model.bin").unlink()
    files = {name: f"pytorch_model-{number % 2}.bin" for number, name in enumerate(weights)}
    for file in set(files.values()):
        torch.save({name: weights[name] for name in weights if files[name] == file}, pickled / file)
    (pickled / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    convert_weights(pickled, Path("safe"))
    found = AutoModelForCausalLM.from_pretrained("safe").state_dict()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


class Harmful:
    """Runs a command as soon as it is unpickled."""

    def __reduce__(self) -> Any:
        return print, ("harm done",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"weight": Harmful()}, "not loadable"),
        ({"weight": torch.zeros(2), "note": "hello"}, "'note' is no tensor; allowed: weights and nothing else"),
        ([torch.zeros(2)], "holds a list; allowed: a dict"),
    ],
    ids=["code", "a text", "a list"],
)
def test_what_is_more_than_tensors_is_refused_and_nothing_is_left(
    pickled: Path, content: Any, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(content, pickled / "pytorch_model.bin")
    with pytest.raises(DataError, match=says):
        convert_weights(pickled, Path("safe"))
    assert "harm done" not in capsys.readouterr().out
    assert not Path("safe").exists()


def test_a_folder_without_weights_or_a_place_that_is_taken_is_refused(pickled: Path) -> None:
    Path("safe").mkdir()
    with pytest.raises(DataError, match="is there already; allowed: a new folder"):
        convert_weights(pickled, Path("safe"))
    (pickled / "pytorch_model.bin").unlink()
    with pytest.raises(DataError, match=r"has no file 'pytorch_model\.bin'"):
        convert_weights(pickled, Path("other"))
    with pytest.raises(DataError, match=r"has no config\.json"):
        convert_weights(Path("safe"), Path("other"))
