"""Compiled layers: the same training, and one line where that cannot be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo.utils

from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import parsed, relative_l2, weights_at_end
from training.process.failure import UnfitModelError
from training.workloads import causal_lm


@pytest.mark.slow
def test_compiled_layers_train_the_same_weights(
    slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    # As wide as a row is long: lengths must not be mistaken for it.
    model = make_tiny_model(tmp_path / "model", hidden_size=32)
    configs = [
        make_config(tmp_path / str(is_compiled), model, slices[:1], compile=is_compiled)
        for is_compiled in (False, True)
    ]
    train_here(configs[0])
    torch._dynamo.utils.counters.clear()
    train_here(configs[1])
    # One for several rows and one for a single row, whatever their length: all before the first step.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert 0 < relative_l2(weights_at_end(configs[1]), weights_at_end(configs[0])) < 2e-6


def test_without_a_compiler_it_is_refused_in_one_line(
    tiny_model: Path, slices: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    config = parsed(make_config(tmp_path, tiny_model, slices, compile=True), tmp_path)
    with pytest.raises(UnfitModelError, match=r"needs a C\+\+ compiler on cpu, .*use compile: false") as caught:
        causal_lm.prepare(causal_lm.load_model(tiny_model), config)
    assert "\n" not in str(caught.value)


def test_with_packing_it_is_refused_on_a_cpu(tiny_model: Path, slices: list[Path], tmp_path: Path) -> None:
    config = parsed(make_config(tmp_path, tiny_model, slices, compile=True, packing=True), tmp_path)
    with pytest.raises(UnfitModelError, match=r"document by document.*use one of the two"):
        causal_lm.prepare(causal_lm.load_model(tiny_model), config)
