"""What the ranks are told is read strictly."""

import pytest

from tests.gpu.steps import read_told


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learningrate": 1}, "learningrate"),
        ({"seed": True}, "seed"),
        ({"precision": "fp8"}, "fp32, bf16, fp16"),
        ({"segments": [{"range": "0-1"}]}, r"segments\[0\].*slice_dir"),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_name(changes, words, toy):
    with pytest.raises(ValueError, match=words):
        read_told({**toy.tell(), **changes}, toy.folder)
