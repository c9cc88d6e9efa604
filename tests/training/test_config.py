"""What the ranks are told is read strictly."""

import pytest

from tests.tiny import make_config, make_slice
from tests.training.conftest import parsed


@pytest.fixture
def config(tmp_path):
    """A valid config as JSON."""
    return make_config(tmp_path / "work", tmp_path / "model", [make_slice(tmp_path / "slice")], learning_rate=1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learningrate": 1}, "learningrate"),
        ({"seed": True}, "seed"),
        ({"precision": "fp8"}, "fp32, bf16, fp16"),
        ({"segments": [{"range": "0-1"}]}, r"segments\[0\].*slice_dir"),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_name(config, tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        parsed({**config, **changes}, tmp_path)
