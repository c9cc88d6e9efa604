"""`make gpu-day`: everything that a card is wanted for, within minutes, and one file of results.

Needs torch, transformers, numpy, scipy and safetensors, and what `make lease-kit` made; pytest and accelerate for their
parts. A part that fails or takes too long is ended and named, and the next one begins; the archive is written anew
whenever something was found.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.gpu_day.day import Day
from benchmarks.gpu_day.summary import RUNNING, Ended, format_summary, read_rehearsed, write_archive
from ddp_audit.process.lifeline import set_parent_death_signal
from ddp_audit.process.redaction import redact, shorten

PARTS = {
    "card": ("card", 25),
    "eager": ("steps", 50),
    "compiled": ("steps", 80),
    "profile": ("profiles", 20),
    "tests": ("gpu_tests", 70),
    "precisions": ("steps", 40),
    "two-ranks": ("two_ranks", 60),
    "training": ("resuming", 40),
    "peers": ("beside_peers", 80),
}
"""Part -> module of this folder, and its seconds of 7.5 minutes: to them come those that the parts before it left."""
_MINUTES = 7.5
_FIRST = "card"
"""Always run: it makes the model of all others."""
_PROJECT = Path(__file__).resolve().parents[2]
_LEAST_SECONDS = 8.0
"""With less left, a part is not begun."""
_SECONDS_TO_END = 2.0
_SECONDS_BETWEEN_LOOKS = 0.1
_PHANTOM = "PHANTOM_CARD"
"""Set where the card is that of tests/phantom/."""


def run_day(prepared, archive, work, *, minutes, only, is_short):
    """Run all parts, or the first and these; return how each ended."""
    planned_end = time.monotonic()
    day_ends_at = planned_end + 60 * minutes - _SECONDS_TO_END
    results, scratch, ended = work / "results", work / "scratch", []
    scratch.mkdir()
    rehearsed = read_rehearsed(prepared)

    def keep(*running):
        summary = format_summary([*ended, *running], rehearsed, is_phantom=_PHANTOM in os.environ)
        write_archive(archive, results, [*ended, *running], summary)
        return summary

    for name, (module, seconds) in PARTS.items():
        if only and name not in (_FIRST, *only):
            continue
        planned_end += seconds * minutes / _MINUTES
        day = Day(
            part=name, prepared=prepared, scratch=scratch, out=results / name, is_short=is_short,
            ends_at=min(planned_end, day_ends_at),
        )  # fmt: skip
        day.out.mkdir(parents=True)
        ended.append(run_part(day, [sys.executable, "-m", "benchmarks.gpu_day.part", module, day.as_text()], keep))
        summary = keep()
        print(f"{name}: {ended[-1].how} ({ended[-1].seconds:.0f} s)", flush=True)
    print(summary, flush=True)
    return ended


def run_part(day, command, keep):
    """Run a part to its end or to that of its time; whenever it finds something, `keep` is told of it."""
    out, log = day.out / "found.json", day.out / "log.txt"
    started, limit = time.monotonic(), day.seconds_left
    if limit < _LEAST_SECONDS:
        return Ended(name=day.part, how="not begun: no time was left")
    with log.open("wb") as written:
        process = subprocess.Popen(
            command, cwd=_PROJECT, stdout=written, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=partial(set_parent_death_signal, signal.SIGKILL, parent=os.getpid()),
        )  # fmt: skip
    how, stamp = f"ended after its {limit:.0f} s", 0
    try:
        while day.seconds_left > 0 and process.poll() is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            if out.exists() and out.stat().st_mtime_ns != stamp:
                stamp = out.stat().st_mtime_ns
                keep(_make_ended(day, RUNNING, started))
        if process.poll() is not None:
            how = "finished" if process.returncode == 0 else f"failed: {find_reason(log)}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return _make_ended(day, how, started)


def _make_ended(day, how, started):
    out = day.out / "found.json"
    return Ended(
        name=day.part, how=how, seconds=time.monotonic() - started,
        results=json.loads(out.read_bytes()) if out.exists() else {},
    )  # fmt: skip


def find_reason(log):
    """Return the first error that the log names, which is the rank's and not that of whoever waited for it."""
    text = log.read_text(errors="replace")
    named = re.search(r"^(?:\[rank\d+\]: ?)?([\w.]*(?:Error|Exception): .+)$", text, flags=re.MULTILINE)
    last = text.strip().rpartition("\n")[2] or "it said nothing"
    return shorten(redact(named[1] if named else last), limit=200)


def main():
    """Run what the command line asks for; exit with 1 if a part did not finish."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_day", description=__doc__)
    parser.add_argument("--prepared", type=Path, default=Path(".lease/prepared"), help="what `make lease-kit` made")
    parser.add_argument("--archive", type=Path, default=Path("gpu-day.tgz"), help="file of the results")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="for all parts")
    parser.add_argument("--only", nargs="+", default=[], choices=PARTS, metavar="PART", help="the card and these alone")
    parser.add_argument("--short", action="store_true", help="a step or two of each part, to see whether it runs")
    arguments = parser.parse_args()
    if not (arguments.prepared / "facts.json").is_file():
        parser.error(f"{arguments.prepared}: no facts.json; make it: make lease-kit")
    with tempfile.TemporaryDirectory() as work:
        ended = run_day(
            arguments.prepared.resolve(), arguments.archive.resolve(), Path(work), minutes=arguments.minutes,
            only=arguments.only, is_short=arguments.short,
        )  # fmt: skip
    sys.exit(any(part.how != "finished" for part in ended))


if __name__ == "__main__":
    main()
