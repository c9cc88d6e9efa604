"""What cannot be compiled ends in one line, and nothing is left uncompiled."""

from typing import Any

import pytest
import torch
from torch import nn

from training.model.layers import compile_layers, explain_failed_compilation, is_compiled
from training.process.failure import UnfitModelError


def _fail(*_: Any) -> Any:
    raise RuntimeError("no kernel for this\nand a long story")


def test_what_torch_cannot_compile_is_said_in_one_line() -> None:
    compiled = torch.compile(lambda part: part + 1, backend=_fail)
    expected = r"compile: true, .*no kernel for this.*; use compile: false"
    with pytest.raises(UnfitModelError, match=expected) as caught, explain_failed_compilation():
        compiled(torch.ones(2))
    assert "\n" not in str(caught.value)


def test_any_other_error_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError), explain_failed_compilation():
        raise ZeroDivisionError


@pytest.mark.parametrize(("device", "variable", "language"), [("cpu", "CXX", "C\\+\\+"), ("cuda", "CC", "C")])
def test_a_compiler_that_is_not_there_is_named(
    device: str, variable: str, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "nowhere-to-be-found")
    model = nn.Linear(2, 2)
    with pytest.raises(UnfitModelError, match=rf"compile: true needs a {language} compiler.*nowhere-to-be-found"):
        compile_layers(model, device)
    assert not is_compiled(model)
