"""What the ranks are told is read strictly."""

from pathlib import Path
from typing import Any

import pytest

from tests.tiny import make_config, make_slice
from tests.training.conftest import parsed


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A valid config as JSON."""
    return make_config(tmp_path / "work", tmp_path / "model", [make_slice(tmp_path / "slice")], learning_rate=1)


def test_a_whole_number_stands_for_a_float_and_paths_are_paths(config: dict[str, Any], tmp_path: Path) -> None:
    read = parsed(config, tmp_path)
    assert (read.learning_rate, type(read.learning_rate)) == (1.0, float)
    assert read.segments[0].slice_dir == tmp_path / "slice"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learningrate": 1}, "learningrate"),
        ({"seed": None}, "seed"),
        ({"seed": True}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"precision": "fp8"}, "fp32, bf16, fp16"),
        ({"segments": []}, "at least one"),
        ({"segments": [{"range": "0-1"}]}, r"segments\[0\].*slice_dir"),
        ({"segments": "0-1"}, "segments"),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_name(
    config: dict[str, Any], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        parsed({**config, **changes}, tmp_path)


def test_a_missing_key_is_refused_by_name(config: dict[str, Any], tmp_path: Path) -> None:
    del config["max_grad_norm"]
    with pytest.raises(ValueError, match=r"missing keys \['max_grad_norm'\]"):
        parsed(config, tmp_path)
