"""Every known defect is found and named, and nothing is found where nothing is wrong: scripts of several styles."""

import dataclasses
import importlib.util
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch

from ddp_audit.asked import parse_request
from ddp_audit.checks import QUESTIONS, Answers, ask_all, judge_cells, list_faults
from ddp_audit.findings import (
    CLASSES,
    clipping,
    data_wait,
    epochs,
    exchange,
    gradient_scale,
    launches_alike,
    loss_weights,
    own_device,
    plain_baseline,
    plausible_speed,
    rows_of_its_own,
    same_ids,
    same_parameters,
    start_weights,
)
from ddp_audit.launched import Audit
from ddp_audit.process.findings import Finding
from tests.auditing.defects import DEFECTS, EARLY_CLIPPING
from tests.auditing.forked_scripts import ForkedScripts

SCRIPTS = Path(__file__).parent / "scripts"
TOLD_BY_SECONDS = {data_wait.NAME, own_device.NAME, plausible_speed.NAME}
"""What a tiny script on a busy machine may really be: bound by data or by too few cores, or slower now and then."""
needs_lightning = pytest.mark.skipif(
    importlib.util.find_spec("pytorch_lightning") is None, reason="no pytorch-lightning: make extras installs it"
)
CORRECT = [
    pytest.param(name, marks=needs_lightning) if name == "lightning_module" else name
    for name in sorted(file.stem for file in SCRIPTS.glob("*.py"))
]


@pytest.fixture(scope="module")
def slow_server() -> Iterator[str]:
    """The address of a server that takes its time with an upload."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(0.1)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


@pytest.fixture(scope="module")
def audit_script(forked: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Audit]:
    def run(source: Path, arguments: str = "", *, folder: Path | None = None, baseline: Audit | None = None) -> Audit:
        folder = folder or tmp_path_factory.mktemp(source.stem)
        if source.parent != folder:
            shutil.copy(source, folder)
        request = parse_request({"SCRIPT": f"{source.name} {arguments}", "CELLS": "1,2", "FOLDER": str(folder)})
        audit = Audit(request)
        for cell, world_size in request.cells.items():
            if cell == audit.baseline and baseline is not None:
                audit.launches[cell] = baseline.launches[cell]
                continue
            launched = forked.launch(request.words_for(cell), cell=cell, world_size=world_size, folder=folder)
            if cell == audit.baseline and plain_baseline.is_wrapped(launched):
                words = request.words_for(cell)
                alone = forked.launch(words, cell=cell, world_size=world_size, folder=folder, is_alone=True)
                launched = launched if alone.is_failed else alone
            assert launched.exit_code == 0, launched.ending
            assert all(rank.is_whole for rank in launched.ranks), [rank.lines.get("broken") for rank in launched.ranks]
            audit.launches[cell] = [launched]
        return audit

    return run


@pytest.fixture(scope="module")
def correct(audit_script: Callable[..., Audit]) -> Callable[[str], Audit]:
    done: dict[str, Audit] = {}

    def get(name: str) -> Audit:
        if name not in done:
            done[name] = audit_script(SCRIPTS / f"{name}.py")
        return done[name]

    return get


def _list_failed(gates: list[Answers]) -> dict[str, Finding]:
    """Return name -> the finding of the last cell that failed."""
    return {
        gate.name: one
        for gate in gates
        for one in gate.findings.values()
        if one.verdict == "failed" and gate.name not in TOLD_BY_SECONDS
    }


def _ask(audit: Audit, name: str, cell: str = "2proc") -> Finding:
    return next(gate for gate in ask_all(audit) if gate.name == name).findings[cell]


@pytest.mark.slow
@pytest.mark.parametrize("name", CORRECT)
def test_nothing_is_found_in_a_correct_script(correct: Callable[[str], Audit], name: str) -> None:
    gates = ask_all(correct(name))
    assert _list_failed(gates) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "accelerated", "classifier", "plain_ddp", "regression", "trainer",
        pytest.param("lightning_module", marks=needs_lightning),
    ],
)  # fmt: skip
def test_nothing_about_its_steps_stays_open_of_a_correct_script(correct: Callable[[str], Audit], name: str) -> None:
    audit = correct(name)
    gates = [gate for gate in ask_all(audit) if gate.name not in TOLD_BY_SECONDS]
    standings = judge_cells(gates, [], list(audit.request.cells))
    assert standings["2proc"].state == "proven", standings["2proc"]


@pytest.mark.slow
def test_of_numbers_with_a_fraction_there_are_no_ids_and_a_mean_of_squares_is_weighed(
    correct: Callable[[str], Audit],
) -> None:
    audit = correct("regression")
    assert next(gate for gate in ask_all(audit) if gate.name == same_ids.NAME).findings == {}
    weights, clip = _ask(audit, loss_weights.NAME), _ask(audit, clipping.NAME)
    assert (weights.code, weights.numbers["steps_compared"]) == ("passed", 16)
    assert (clip.code, clip.numbers["steps"], clip.numbers["compared"]) == ("passed", 10, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ("clamp_(-0.01, 0.01)", "not checked"),
        # As a scaler for fp16 leaves it.
        ("mul_(0.25)", "passed"),
    ],
)
def test_a_gradient_that_the_script_itself_changes_is_no_pass(
    audit_script: Callable[..., Audit], correct: Callable[[str], Audit], tmp_path: Path, change: str, verdict: str
) -> None:
    text = (SCRIPTS / "regression.py").read_text()
    changed = f"            loss.backward()\n            [one.grad.{change} for one in network.parameters()]\n"
    (tmp_path / "regression.py").write_text(text.replace("            loss.backward()\n", changed))
    audit = audit_script(tmp_path / "regression.py", folder=tmp_path, baseline=correct("regression"))
    found = clipping.find(audit, "2proc")
    assert found is not None
    assert found.verdict == verdict, found.compared


@pytest.mark.slow
@pytest.mark.parametrize("change", ["hook", "hook afterwards", "hook of the exchange", "between micro-batches"])
def test_a_gradient_that_is_clipped_before_the_exchange_is_no_pass(
    audit_script: Callable[..., Audit], correct: Callable[[str], Audit], tmp_path: Path, change: str
) -> None:
    text = (SCRIPTS / "regression.py").read_text()
    for right, wrong in EARLY_CLIPPING[change].items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    (tmp_path / "regression.py").write_text(text)
    audit = audit_script(tmp_path / "regression.py", folder=tmp_path, baseline=correct("regression"))
    found = clipping.find(audit, "2proc")
    assert found is not None
    assert (found.verdict, found.code) == ("not checked", "changed_early")


@pytest.mark.slow
def test_in_16_bits_the_first_gradient_is_still_the_baselines(
    audit_script: Callable[..., Audit], tmp_path: Path
) -> None:
    text = (SCRIPTS / "plain_ddp.py").read_text()
    in_16_bits = "for number, micro in enumerate(group, start=1):\n"
    assert text.count(in_16_bits) == 1
    changed = f"torch.set_autocast_enabled('cpu', True)\n        {in_16_bits}"
    (tmp_path / "plain_ddp.py").write_text(text.replace(in_16_bits, changed))
    audit = audit_script(tmp_path / "plain_ddp.py", folder=tmp_path)
    assert audit.ranks("2proc")[0].steps[0]["micros"][0]["precision"] == "autocast bfloat16"
    found = gradient_scale.find(audit, "2proc")
    assert found is not None
    assert (found.verdict, gradient_scale.find_other_gradient(audit, "2proc")) == ("passed", None)


@pytest.mark.slow
def test_what_can_be_seen_of_a_correct_script_is_said_to_be_right(correct: Callable[[str], Audit]) -> None:
    gates = {gate.name: gate for gate in ask_all(correct("plain_ddp"))}
    unseen = {name for name, gate in gates.items() if gate.verdict == "not checked"} - TOLD_BY_SECONDS
    # It is not told to go on from anything.
    assert unseen == {start_weights.NAME}
    exchanges, rows = (gates[name].findings["2proc"] for name in (exchange.NAME, rows_of_its_own.NAME))
    assert (exchanges.numbers["exchanges"], exchanges.numbers["micro_batches"]) == (1, 2)
    assert exchanges.numbers["gradients_exchanged"] == pytest.approx(1, abs=5e-3)
    assert (rows.numbers["different_rows"], rows.numbers["rows"]) == (48, 48)


@pytest.mark.slow
@needs_lightning
def test_of_lightning_is_seen_what_its_callback_says_and_how_often_it_exchanges(
    correct: Callable[[str], Audit],
) -> None:
    audit = correct("lightning_module")
    passes, exchanges = _ask(audit, epochs.NAME), _ask(audit, exchange.NAME)
    assert (passes.code, passes.numbers["name"], passes.numbers["asked"]) == ("passed", "max_epochs", 2)
    assert (exchanges.numbers["exchanges"], exchanges.numbers["micro_batches"]) == (1, 2)
    # Its gradient is there at the end of the optimizer's step, and not at the beginning.
    assert audit.ranks("2proc")[0].steps[0]["gradient"]["digests"]


@pytest.mark.slow
def test_an_optimizer_that_asks_for_several_gradients_per_step_exchanges_nothing_too_often(
    correct: Callable[[str], Audit],
) -> None:
    assert _ask(correct("closure"), exchange.NAME).code == "several_gradients"


@pytest.mark.slow
@pytest.mark.parametrize("name", list(DEFECTS))
def test_a_known_defect_is_found_and_named(
    audit_script: Callable[..., Audit],
    correct: Callable[[str], Audit],
    tmp_path: Path,
    slow_server: str,
    name: str,
) -> None:
    defect = DEFECTS[name]
    text = (SCRIPTS / f"{defect.script}.py").read_text()
    for right, wrong in defect.edits.items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    script = tmp_path / f"{defect.script}.py"
    script.write_text(text)
    torch.save({"embedding.weight": torch.ones(100, 16), "head.weight": torch.ones(100, 16)}, tmp_path / "saved.pt")
    baseline = None if defect.needs_baseline else correct(defect.script)
    audit = audit_script(script, defect.arguments.format(url=slow_server), folder=tmp_path, baseline=baseline)
    failed = _list_failed(ask_all(audit))
    # It is said once, under its own name.
    assert set(failed) == {defect.found}
    found = failed[defect.found]
    assert found.code == defect.code
    (fault, *_) = (one for one in list_faults(ask_all(audit), CLASSES) if defect.found == one.question.NAME)
    assert defect.code in fault.question.SAYS, "no sentence says what is wrong"
    assert fault.sentence
    for key, value in defect.numbers.items():
        told = found.numbers[key]
        assert value in str(told) if isinstance(value, str) else told == value, key


def test_every_question_has_a_defect_that_it_finds() -> None:
    # Launches that differ are in tests/auditing/test_flattering_scripts.py.
    asked = {one.NAME for one in QUESTIONS} - TOLD_BY_SECONDS - {launches_alike.NAME}
    assert {defect.found for defect in DEFECTS.values()} == asked
    assert len({one.NAME for one in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.slow
def test_parameters_that_never_change_are_not_called_equal(correct: Callable[[str], Audit]) -> None:
    audit = correct("plain_ddp")
    ranks = audit.ranks("2proc")
    kept = [
        [{**step, "weights": ranks[0].steps[0]["start"]} if "weights" in step else step for step in rank.steps]
        for rank in ranks
    ]
    frozen = [dataclasses.replace(rank, steps=steps) for rank, steps in zip(ranks, kept, strict=True)]
    launched = dataclasses.replace(audit.first("2proc"), ranks=frozen)
    found = _ask(Audit(audit.request, {**audit.launches, "2proc": [launched]}), same_parameters.NAME)
    assert (found.verdict, found.code) == ("not checked", "unchanged")


@pytest.mark.slow
def test_a_script_that_never_steps_or_has_no_torch_is_not_observable(
    correct: Callable[[str], Audit],
) -> None:
    audit = correct("by_hand")
    launched = audit.first("2proc")
    ranks = [dataclasses.replace(rank, steps=[]) for rank in launched.ranks]
    empty = Audit(audit.request, {**audit.launches, "2proc": [dataclasses.replace(launched, ranks=ranks)]})
    found = [gate.findings["2proc"] for gate in ask_all(empty) if "2proc" in gate.findings]
    assert {one.code for one in found} <= {"no_steps", "too_few_steps"}, found
