"""What cannot be compiled ends in one line, and nothing is left uncompiled."""

import pytest
import torch

from training.model.layers import explain_failed_compilation
from training.process.failure import UnfitModelError


def _fail(*_):
    raise RuntimeError("no kernel for this\nand a long story")


def test_what_torch_cannot_compile_is_said_in_one_line():
    compiled = torch.compile(lambda part: part + 1, backend=_fail)
    expected = r"compile: true, .*no kernel for this.*; use compile: false"
    with pytest.raises(UnfitModelError, match=expected) as caught, explain_failed_compilation():
        compiled(torch.ones(2))
    assert "\n" not in str(caught.value)


def test_any_other_error_stays_what_it_is():
    with pytest.raises(ZeroDivisionError), explain_failed_compilation():
        raise ZeroDivisionError
