"""`ddp-audit train.py --epochs 2 --cells 1,2`: is a training script right on several ranks, without changing it?

What is asked for stands in options before, between or behind the script's own arguments, or, without any word, in the
environment (asked.py). Exit codes: 0 nothing wrong was found; 1 the training is wrong, or, where its speed is compared,
its cells are unlike; 2 for what cannot be audited; 6 where the script itself failed or hung.
"""

import datetime
import json
import logging
import os
import signal
import sys
import threading
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from ddp_audit.asked import (
    NAMES,
    AuditError,
    ConfigurationError,
    Request,
    ScriptError,
    parse_request,
    read_words,
)
from ddp_audit.checks import Result, ask_all, judge_cells, list_faults
from ddp_audit.findings import CLASSES, UNEVEN, find_uneven_pass
from ddp_audit.findings.hygiene import is_wrapped
from ddp_audit.page import make_document, render_html, render_markdown
from ddp_audit.process import wording
from ddp_audit.process.lifeline import StopEvent
from ddp_audit.process.redaction import redact, redact_line
from ddp_audit.records import Audit, Launched
from ddp_audit.running import launch_script
from ddp_audit.speed import compute_speeds

_log = logging.getLogger(__name__)

WORK = Path(".work/audits")
REPORTS = Path("reports/audit")
_WRITTEN = ("index.html", "report.md", "findings.json")


def run_audit(request: Request, *, work: Path, reports: Path, stop: threading.Event) -> tuple[str, bool]:
    """Launch every cell, in turns, write the report; return what is printed, and whether the training was found wrong.

    Raises ConfigurationError where there was nothing to observe, ScriptError where the script failed.
    """
    for name in _WRITTEN:
        # What stands there is of another audit, and would be taken for this one's if it fails.
        (reports / name).unlink(missing_ok=True)
    folder = work / datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
    audit = Audit(request, {cell: [] for cell in request.cells})
    launch = partial(launch_script, request, stop=stop, leave_out=work)
    is_alone = False
    for turn in range(request.num_launches):
        # There and back, so that what changes slowly does not always meet the same cell.
        for cell in list(request.cells)[:: -1 if turn % 2 else 1]:
            _log.info("%s: launch %d of %d", cell, turn + 1, request.num_launches)
            place, is_baseline = folder / f"{cell}-{turn + 1}", cell == request.baseline
            launched = launch(cell, place, number=turn + 1, is_alone=is_baseline and is_alone)
            if turn == 0 and is_baseline and not request.launcher and is_wrapped(launched):
                _log.info("%s: its model is wrapped where torchrun starts it; once more, started by python", cell)
                alone = launch(cell, place.with_name(f"{place.name}-alone"), is_alone=True)
                is_alone = bool(alone.num_steps) and not alone.is_failed
                launched = alone if is_alone else replace(launched, fails_alone=True)
            audit.add(launched)
            require_steps(launched, started_in=request.folder)
    answers, speeds = ask_all(audit), compute_speeds(audit) if request.compares_speed else []
    result = Result(audit, answers, speeds, judge_cells(answers, speeds, list(request.cells)))
    document = make_document(result)
    payload = [
        {
            "name": answer.name, "question": answer.question, "outcome": answer.outcome,
            "findings": [{"cell": cell, **asdict(finding)} for cell, finding in answer.findings.items()],
        }
        for answer in answers
    ]  # fmt: skip
    results = {"script": request.command_line, "findings": payload}
    reports.mkdir(parents=True, exist_ok=True)
    texts = (render_html(document), render_markdown(document), json.dumps(results, indent=1) + "\n")
    for name, text in zip(_WRITTEN, texts, strict=True):
        (reports / name).write_text(_make_public(text), encoding="utf-8")
    lines = [
        document.lead,
        *(f"{fault.kind}: {fault.question.name}: {fault.finding.compared}" for fault in list_faults(answers, CLASSES)),
        f"Report: {reports / _WRITTEN[0]}",
    ]
    is_wrong = bool(list_faults(answers, CLASSES[: 2 if request.compares_speed else 1]))
    return _make_public("".join(f"{line}\n" for line in lines)), is_wrong


def _make_public(text: str) -> str:
    """Return the text without secrets, and without what no page can show: a script may be named by any bytes."""
    return wording.replace_unprintable(redact(text))


def require_steps(launched: Launched, *, started_in: Path) -> None:
    """Raise the error of a launch that says nothing about a training."""
    ranks = launched.ranks
    text = (
        f"{launched.cell}: it was started in {started_in} (FOLDER=... starts it elsewhere), its output is in "
        f"{launched.folder / 'logs'}"
    )
    if launched.is_failed:
        ending, _, words = launched.ending.partition("\n")
        if words:
            _log.error("%s", words)
        ends = [end for _, end in find_uneven_pass(ranks)]
        if over := [end for end in ends if end is not None]:
            first = f"rank {ends.index(min(over))} after step {min(over)}"
            text = f"a pass over the data ended on {first} and not on all ranks: {UNEVEN}; {text}"
        raise ScriptError(f"{ending or f'it ended with exit code {launched.exit_code}'}; {text}")
    for rank in ranks:
        if error := rank.first("broken"):
            _log.warning("rank %d was observed up to step %d: %s", rank.rank, len(rank.steps), error.get("error"))
    replaced = [rank for rank in ranks if rank.steps and "replaced" in rank.lines and "end" not in rank.lines]
    trained = sum(bool(rank.steps) for rank in ranks)
    ended, why = "the script ended with exit code 0", ""
    if all(rank.start is None for rank in ranks):
        why = "no rank was observed: the interpreter was told to ignore its environment (-I, -E or -S)"
    elif not any("torch" in rank.lines for rank in ranks):
        why = f"{ended} and never imported torch: nothing to observe"
    elif replaced:
        program, steps = replaced[0].lines["replaced"][-1].get("program"), len(replaced[0].steps)
        why = (
            f"the script became another program ({program}) after {wording.format_plural(steps, 'step')} on rank "
            f"{replaced[0].rank}, of which nothing is observed: what it trained there is not known"
        )
    elif trained and all(rank.start is None for rank in ranks if not rank.steps) and trained < len(ranks):
        why = (
            f"{wording.format_plural(trained, 'rank')} trained where {len(ranks)} were asked for; {{ranks}} in "
            "SCRIPT or LAUNCHER stands for their number"
        )
    elif not trained:
        why = f"{ended}, and no optimizer step of torch.optim was seen in the processes that torchrun started"
    if why:
        raise ConfigurationError(f"{why}; {text}")


def main() -> None:
    """Audit what the command line and the environment ask for, and exit, by one line where that fails."""
    try:
        sys.exit(_run())
    except AuditError as error:
        line, code = redact_line(str(error)), error.exit_code
    except OSError as error:
        line, code = f"{error.strerror}: {error.filename or 'a file'}; free space or permit it", 4
    except KeyboardInterrupt:
        line, code = "interrupted", 130
    sys.stderr.write(f"ddp-audit: {line}\n")
    sys.exit(code)


def _run() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    asked = read_words(sys.argv[1:])
    # What was meant for the audit is none of the script's environment.
    request = parse_request(asked or {name: os.environ.pop(name) for name in NAMES if name in os.environ})
    stop = StopEvent()

    def ask_to_stop(number: int, _frame: object) -> None:
        if number == signal.SIGINT and stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, ask_to_stop)
    said, is_wrong = run_audit(request, work=WORK, reports=REPORTS, stop=stop)
    sys.stdout.write(said)
    return int(is_wrong)


if __name__ == "__main__":
    main()
