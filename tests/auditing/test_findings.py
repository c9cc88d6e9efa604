"""Every known defect is found and named, and nothing is found where nothing is wrong: scripts of several styles."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from ddp_audit.checks import QUESTIONS, ask_all, judge_cells, list_faults
from ddp_audit.findings import CLASSES
from ddp_audit.findings.cells import launches_alike, plausible_speed, same_step
from ddp_audit.findings.gradients import exchange, find_other_gradient
from ddp_audit.findings.hygiene import data_wait, one_model, own_device
from ddp_audit.findings.ids import same_ids
from ddp_audit.findings.parameters import same_parameters, start_weights
from tests.auditing.conftest import SCRIPTS, ask

KNOWN, OPEN, RIGHT, SEEN = YAML(typ="safe").load(Path(__file__).with_name("defects.yaml")).values()
"""What is known to be wrong, what is only no pass, what is neither; and what is seen of right scripts."""
TOLD_BY_SECONDS = {data_wait.name, own_device.name, plausible_speed.name}
"""What a tiny script on a busy machine may really be: bound by data or by too few cores, or slower now and then."""
needs_lightning = pytest.mark.skipif(
    importlib.util.find_spec("pytorch_lightning") is None, reason="no pytorch-lightning: make extras installs it"
)
STYLES = re.findall(r"^def (\w+)\(\):", (SCRIPTS / "styles.py").read_text(), re.MULTILINE)
CORRECT = [
    *(f"styles {name}" for name in STYLES),
    *(file.stem for file in sorted(SCRIPTS.glob("*.py")) if file.stem not in ("styles", "lightning_module")),
    pytest.param("lightning_module", marks=needs_lightning),
]
OPEN_STYLES = {f"styles {name}" for name in {*STYLES} - {"looking_ahead", "pictures_apart", "streaming", "told"}}
"""Of which something stays open."""


@pytest.fixture
def folder(tmp_path):
    """A folder with a file to go on from, of numbers that 16 bits do not hold."""
    torch.save(
        dict.fromkeys(("embedding.weight", "head.weight"), torch.linspace(0.1, 0.3, 1600).view(100, 16)),
        tmp_path / "saved.pt",
    )
    return tmp_path


def _find_question(case):
    return next(one for one in QUESTIONS if one.name == case["question"])


def _require_numbers(found, case):
    assert found.code == case.get("code", found.code), found
    for key, value in case.get("numbers", {}).items():
        told = found.numbers[key]
        assert value in str(told) if isinstance(value, str) else told == value, key


def _list_failed(gates):
    """Return name -> the finding of the last cell that failed."""
    return {
        gate.name: one
        for gate in gates
        for one in gate.findings.values()
        if one.outcome == "failed" and gate.name not in TOLD_BY_SECONDS
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_nothing_is_found_in_a_correct_script_and_nothing_about_its_steps_stays_open(correct, name):
    gates = [gate for gate in ask_all(correct(name)) if gate.name not in TOLD_BY_SECONDS]
    assert _list_failed(gates) == {}
    standing = judge_cells(gates, [], ["1proc", "2proc"])["2proc"]
    assert standing.state == "proven" or name in OPEN_STYLES, standing


@pytest.mark.slow
def test_what_can_be_seen_of_a_correct_script_is_said_to_be_right(correct):
    gates = {gate.name: gate for gate in ask_all(correct("plain_ddp"))}
    unseen = {name for name, gate in gates.items() if gate.outcome == "not checked"} - TOLD_BY_SECONDS
    # It is not told to go on from anything, and has no BatchNorm.
    assert unseen == {start_weights.name, one_model.name}
    assert gates[exchange.name].findings["2proc"].numbers["gradients_exchanged"] == pytest.approx(1, abs=5e-3)
    assert next(gate for gate in ask_all(correct("regression")) if gate.name == same_ids.name).findings == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=needs_lightning if "lightning" in case["script"] else ()) for case in SEEN]
)
def test_what_is_seen_of_a_correct_script_is_said_in_numbers(correct, case):
    _require_numbers(ask(correct(case["script"]), _find_question(case)), case)


@pytest.mark.slow
@needs_lightning
def test_of_lightning_gradient_and_forward_pass_are_seen_within_its_step(audit_script, correct):
    # Its gradient is there at the end of the optimizer's step, and not at the beginning.
    assert correct("lightning_module").ranks("2proc")[0].steps[0]["gradient"]["digests"]
    # Under DDP the whole step is a call of the wrapper; on one rank it is none, and the forward pass in it is.
    draws = {"        logits = self(": "        torch.rand(1)\n        logits = self("}
    assert ask(audit_script("lightning_module", draws), same_step).outcome == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("name", [*KNOWN, *OPEN, *RIGHT])
def test_a_known_defect_is_found_and_named_once_or_at_least_no_pass(audit_script, correct, folder, name):
    case = {"arguments": "", "needs_baseline": name in RIGHT} | (KNOWN | OPEN | RIGHT)[name]
    question = _find_question(case)
    baseline = None if case["needs_baseline"] else correct(case["script"])
    audit = audit_script(case["script"], dict(case["edits"]), case["arguments"], folder=folder, baseline=baseline)
    failed = _list_failed(ask_all(audit))
    # It is said once, under its own name.
    assert set(failed) == ({question.name} if name in KNOWN else set()), failed
    found = failed.get(question.name) or ask(audit, question)
    _require_numbers(found, case)
    if found.code == "nothing_changed":
        assert ask(audit, same_parameters).code == "unchanged"  # and not equal
    if name in KNOWN:
        assert found.code in question.says, "no sentence says what is wrong"
        assert list_faults(ask_all(audit), CLASSES)[0].sentence
    if name in RIGHT:
        assert found.outcome == "passed", found.compared
        assert find_other_gradient(audit, "2proc") is None


def test_every_question_has_a_defect_that_it_finds():
    # Launches that differ are in tests/auditing/test_launching.py.
    asked = {one.name for one in QUESTIONS} - TOLD_BY_SECONDS - {launches_alike.name}
    assert {defect["question"] for defect in KNOWN.values()} == asked
    assert len({one.name for one in QUESTIONS}) == len(QUESTIONS)
    assert len(KNOWN | OPEN | RIGHT) == len(KNOWN) + len(OPEN) + len(RIGHT)
