"""Compiled layers: the same training, and one line where that cannot be."""

import pytest
import torch._dynamo.utils

from tests.tiny import make_tiny_model
from tests.training.conftest import relative_l2, weights_at_end
from training.process.failure import UnfitModelError
from training.workloads import causal_lm


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_compiled_layers_train_the_same_weights(backend, toy, train_here, monkeypatch):
    compile_layer = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda *of, **how: compile_layer(*of, **how, backend=backend))
    # As wide as a row is long: lengths must not be mistaken for it.
    model = make_tiny_model(toy.folder / "model", hidden_size=32)
    configs = [toy.tell(str(is_compiled), model=model, compile=is_compiled) for is_compiled in (False, True)]
    train_here(configs[0])
    torch._dynamo.utils.counters.clear()
    train_here(configs[1])
    # One for several rows and one for a single row, whatever their length: all before the first step.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    distance = relative_l2(weights_at_end(configs[1]), weights_at_end(configs[0]))
    assert (distance > 0, distance < 2e-6) == (backend == "inductor", True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, r"needs a C\+\+ compiler on cpu, .*use compile: false"),
        ({"packing": True}, "document by document.*use one"),
    ],
)
def test_where_layers_cannot_be_compiled_it_is_refused(changes, says, toy, monkeypatch):
    monkeypatch.setenv("CXX", str(toy.folder / "none"))
    with pytest.raises(UnfitModelError, match=says):
        causal_lm.prepare(causal_lm.load_model(toy.models("tiny")), toy.read(compile=True, **changes))
