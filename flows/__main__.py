"""`python -m flows`: the whole comparison, here and now, as one run of the flow."""

import argparse
import atexit
import contextlib
import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ddp_audit.process.redaction import redact
from flows.child import VERBOSE
from tasks.params import load_params
from tasks.process.failure import ResourceError, exit_with_one_line
from tasks.process.lock import lock_workspace
from tasks.process.wording import BASELINE, NOTHING, format_interval, format_percent, format_ratio, format_seconds
from tasks.records.estimate import Estimate

if TYPE_CHECKING:
    from prefect import State

    from flows.server import Server

RESULTS = Path("reports/results.json")
REPORT_PAGE = Path("reports/index.html")
_RUNS, _LOG = Path(".work/runs"), Path(".work/logs/retrain.log")
_SAMPLES = 1_000


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flows", description="Run the comparison of params.yaml.")
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--rebench", action="store_true", help="measure the speed again; fail if a cell became slower")
    again.add_argument("--retrain", action="store_true", help="first train every cell anew, though nothing has changed")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what DVC says of its own work, too")
    arguments = parser.parse_args()
    if arguments.verbose:
        os.environ[VERBOSE] = "1"
    params = load_params()
    asked = "rebench" if arguments.rebench else "retrain" if arguments.retrain else "compare"
    with lock_workspace(f"make {asked}"):
        if arguments.retrain:
            _train_anew()
        _run(list(params.cells), rebench=arguments.rebench)


def _train_anew() -> None:
    """Forget every finished segment, and train all cells; raises StageFailed as the stage ends."""
    from flows.output import StageOutput
    from flows.pipeline import StageFailed, explain_failure, reproduce

    shutil.rmtree(_RUNS, ignore_errors=True)
    for stages in (["fingerprint"], ["--force", "train"]):
        with contextlib.closing(StageOutput(_LOG, send=lambda _: None)) as output:
            code = reproduce(*stages, environment={}, on_output=output.write)
        if code != 0:
            raise StageFailed(*explain_failure(output.last_lines, code))


def _run(cells: list[str], *, rebench: bool) -> None:
    from flows.pipeline import describe_plan, find_cached, find_changes, list_stages
    from flows.server import find_or_start, is_available

    stages = list_stages(cells)
    changes = {"measure": ["asked for"]} if rebench else find_changes()
    # A server starts slower than all the rest of a run that does nothing.
    if not rebench and not is_available() and (cached := find_cached(changes)):
        for number, stage in enumerate(stages, start=1):
            _say(f"{number} of {len(stages)} {stage}: {cached[stage]}")
        _say_verdict()
        return
    _say(describe_plan(stages, changes))
    if not is_available():
        _say("starting a Prefect server for this run")
    # Prefect says on the terminal what we say better; all of it stands in the log of the run.
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    # What we say after the run belongs to none.
    os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")

    server: Server | None = None
    try:
        server = find_or_start(temporary=True)
        # Registered before Prefect is imported, so that it happens after Prefect has sent its last events.
        atexit.register(server.end)
        import flows.ddp_compare  # noqa: F401 - while the server starts

        server.wait_until_ready(say=_say)
    except (ResourceError, OSError) as error:
        why = str(error)
    else:
        from flows.ddp_compare import ddp_compare, outcome
        from flows.recording import tolerate_outage

        try:
            with tolerate_outage("it may show this run as running until the next one") as errors:
                outcome.append(ddp_compare(rebench=rebench, return_state=True))
        except Exception:
            if outcome:
                raise
        if (state := next(filter(None, outcome), None)) is not None:
            code = _report_outcome(state)
            if errors:
                _end(code, server)
            sys.exit(code)
        why = f"the Prefect server at {server.url} can begin no flow run"
    os.environ.pop("PREFECT_API_URL", None)
    _say(f"{redact(why)}; the comparison goes on, and Prefect records nothing of it")
    from flows.ddp_compare import compare

    _end(_report_outcome(compare(rebench=rebench)), server)


def _end(code: int, server: "Server | None") -> NoReturn:
    """End the process at once: Prefect would try for seconds to send each of its last events."""
    sys.stdout.flush()
    if server is not None:
        server.end()
    os._exit(code)


def print_plan() -> None:
    """Print which stages would run, and what changed for each; raises ConfigurationError as a run does."""
    from flows.pipeline import describe_plan, find_changes, list_stages

    changes = find_changes()
    stages = list_stages(load_params().cells)
    why = {stage: ", ".join(changes.get(stage, ["has not run here before"])) for stage in stages}
    lines = [describe_plan(stages, changes), *(f"  {stage}: {why[stage] or 'nothing has changed'}" for stage in stages)]
    print("\n".join(lines))  # noqa: T201


def _say(line: str) -> None:
    text = f"{time.strftime('%H:%M:%S')} {line}"
    if sys.stderr.isatty():
        text = textwrap.fill(text, shutil.get_terminal_size().columns, subsequent_indent=" " * 9)
    sys.stderr.write(f"{text}\n")


def _report_outcome(state: "State") -> int:
    """Say what the comparison came to; return the exit code."""
    if state.is_completed():
        _say_verdict()
        return 0
    code = state.result(raise_on_failure=False) if state.is_failed() else None
    if not isinstance(code, int):
        state.result()
        return 1
    if str(state.message).startswith(("upload: ", "rebench: ")):
        _say_verdict()  # the comparison itself is finished
    sys.stderr.write(f"{state.message}\n")
    return code


def _say_verdict() -> None:
    print_verdict(json.loads(RESULTS.read_bytes()))
    print(f"Report: {REPORT_PAGE}", flush=True)  # noqa: T201


def print_verdict(results: Mapping[str, Any]) -> None:
    """Print what results.json says: a line per cell, what kind of demonstration it is, and the sentence."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    # What the speedup is of: what was timed in blocks, whatever the batch of a step, else the whole trainings.
    speeds = [(cell["cell"], cell["speed"]) for cell in results["cells"] if cell["speed"]]
    timed = {cell: format_seconds(_SAMPLES / speed["samples_per_second"]) for cell, speed in speeds}
    heading = f"{_SAMPLES:,} samples" if timed else "per epoch"
    table = Table("cell", heading, "speedup", "95 % interval", "of linear", "standing", box=None, pad_edge=False)
    for cell in results["cells"]:
        state, measured = cell["standing"]["state"], cell["speedup"]
        seconds = timed.get(cell["cell"], NOTHING) if timed else format_seconds(cell["seconds_per_epoch"])
        speedup, interval, efficiency = (BASELINE if cell["is_baseline"] else state), NOTHING, NOTHING
        if measured is not None and not cell["is_baseline"]:
            speedup = format_ratio(measured["value"])
            interval = format_interval(Estimate(*(measured[end] for end in ("value", "low", "high"))))
            efficiency = format_percent(measured["parallel_efficiency"]["value"])
        table.add_row(cell["cell"], seconds, speedup, interval, efficiency, state)
    if table.rows:
        console.print(table)
    for sentence in filter(None, (results["verdict"], results.get("label"))):
        # Whole where something reads it that is no terminal.
        console.print(f"\n{sentence}", soft_wrap=not console.is_terminal)


if __name__ == "__main__":
    exit_with_one_line(_main, name="ddp-compare")
