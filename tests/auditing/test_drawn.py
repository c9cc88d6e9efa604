"""Random numbers of the forward pass are another step where one cell alone draws them, and none where all is well."""

from pathlib import Path

import pytest
import torch

from ddp_audit.asked import parse_request
from ddp_audit.checks import ask_all
from ddp_audit.findings import same_step
from ddp_audit.launched import Audit
from ddp_audit.observer.computed import has_drawn_since, name_computed, read_random_states
from ddp_audit.process.findings import Finding
from tests.auditing.forked_scripts import ForkedScripts
from tests.auditing.test_findings import needs_lightning

_SCRIPTS = Path(__file__).parent / "scripts"
_EMBEDDED, _LOGITS = "self.embedding(input_ids) *", "logits = wrapped("
_HEAD = "return self.head("
_FIRST = "self.__dict__.get('made') or self.__dict__.update(made=world_size > 1 and torch.rand(1))"
_DROPPED = "F.dropout(self.embedding(input_ids), 0.1) *"
_CHECKPOINTED = """(lambda ids: F.dropout(self.embedding(ids), {0})
            if world_size == 1
            else torch.utils.checkpoint.checkpoint(
                lambda ids: F.dropout(self.embedding(ids), {0}), ids, use_reentrant=False
            ))(input_ids) *"""


def _ask(forked: ForkedScripts, folder: Path, script: str, **edits: str) -> Finding:
    """Return what the question finds in a script of scripts/ in which `edits` were made."""
    text = (_SCRIPTS / f"{script}.py").read_text()
    for right, wrong in edits.items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    (folder / "script.py").write_text(text)
    audit = Audit(parse_request({"SCRIPT": "script.py", "CELLS": "1,2", "FOLDER": str(folder)}))
    for cell, world_size in audit.request.cells.items():
        found = forked.launch([str(folder / "script.py")], cell=cell, world_size=world_size, folder=folder)
        assert found.exit_code == 0, found.ending
        assert all(rank.is_whole for rank in found.ranks), [rank.lines.get("broken") for rank in found.ranks]
        audit.launches[cell] = [found]
    return next(gate for gate in ask_all(audit) if gate.name == same_step.NAME).findings["2proc"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "edits",
    [
        pytest.param({_EMBEDDED: _DROPPED}, id="in both cells"),
        pytest.param({_EMBEDDED: _CHECKPOINTED.format(0.1)}, id="recomputed by several ranks alone"),
        pytest.param({_EMBEDDED: _CHECKPOINTED.format(0.0)}, id="nowhere, recomputed by several ranks alone"),
        pytest.param({_LOGITS: f"torch.rand(world_size - 1)\n                {_LOGITS}"}, id="between the passes"),
        pytest.param({_HEAD: f"{_FIRST}\n        {_HEAD}"}, id="in the first pass alone"),
    ],
)
def test_random_numbers_that_make_no_other_step_are_not_found(
    forked: ForkedScripts, tmp_path: Path, edits: dict[str, str]
) -> None:
    gate = _ask(forked, tmp_path, "plain_ddp", **edits)
    assert gate.verdict == "passed", gate.compared


@pytest.mark.slow
@needs_lightning
def test_what_a_training_step_draws_beside_the_forward_pass_is_not_taken_for_the_models(
    forked: ForkedScripts, tmp_path: Path
) -> None:
    """Under DDP the whole step is a call of the wrapper; on one rank it is none, and the forward pass in it is."""
    gate = _ask(
        forked,
        tmp_path,
        "lightning_module",
        **{"        logits = self(": "        torch.rand(1)\n        logits = self("},
    )
    assert gate.verdict == "passed", gate.compared


@pytest.mark.slow
def test_dropout_of_attention_in_the_baseline_alone_is_found(forked: ForkedScripts, tmp_path: Path) -> None:
    rows = "*[self.embedding(input_ids)[None]] * 3"
    attended = f"F.scaled_dot_product_attention({rows}, dropout_p=0.1 * (world_size == 1))[0] *"
    gate = _ask(forked, tmp_path, "plain_ddp", **{_EMBEDDED: attended})
    assert gate.compared == "2proc: Model draws no random numbers in its forward pass, 1proc's does"


def test_the_state_of_the_generator_says_whether_something_was_drawn() -> None:
    here, rows = torch.device("cpu"), torch.ones(4, 8)
    for probability, has_drawn in ((0.5, True), (0.0, False)):
        before = read_random_states(here)
        torch.nn.functional.dropout(rows, probability)
        assert has_drawn_since(before, here) == has_drawn
    before = read_random_states(here)
    torch.rand(3, generator=torch.Generator())
    assert not has_drawn_since(before, here)


def test_a_model_has_one_name_whatever_it_is_wrapped_in() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module

    model = torch.nn.Linear(2, 2)
    wrapper = Wrapper(model)
    assert name_computed(model, None) == name_computed(wrapper, wrapper) == "Linear"
    assert name_computed(torch.compile(model), None) == name_computed(torch.compile(wrapper), wrapper) == "Linear"
    compiled_inside = Wrapper(torch.compile(model))
    assert name_computed(compiled_inside, compiled_inside) == "Linear"
    # Around a wrapper that is called by another module there is more than the wrapped one's forward pass.
    outer = torch.nn.Sequential(wrapper)
    assert name_computed(outer, wrapper) == "Sequential"
