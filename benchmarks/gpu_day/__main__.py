"""`make gpu-day`: everything that a card is wanted for, within 25 minutes, in one folder of results.

Needs torch, transformers, numpy, scipy and safetensors, and what benchmarks/throughput/prepare.py made. A part that
fails or takes too long is ended and named, and the next one begins; the summary is written after each of them.
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
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu_day.parts import Day, Part, list_parts
from benchmarks.gpu_day.summary import Ended, compute_flops_per_token, write_summary
from training.process.redaction import redact, shorten

_PROJECT = Path(__file__).resolve().parents[2]
_TOTAL_SECONDS = 25 * 60.0
_LEAST_SECONDS = 20.0
"""With less left, a part is not begun."""
_PHANTOM = "PHANTOM_CARD"
"""Set where the card is that of tests/phantom/."""


def run_day(prepared: Path, results: Path, scratch: Path, *, only: Sequence[str], is_short: bool) -> list[Ended]:
    """Run all parts, or these and the model for them; return how each ended."""
    started = time.monotonic()
    facts = json.loads((prepared / "facts.json").read_bytes())
    lengths = np.minimum(np.diff(np.load(prepared / "rows" / "offsets.npy")), facts["seq_len"]).tolist()
    day = Day(
        prepared=prepared, results=results, scratch=scratch, num_rows=facts["num_rows"],
        seq_len=facts["seq_len"], is_short=is_short,
    )  # fmt: skip
    flops = compute_flops_per_token(prepared, lengths)
    ended: list[Ended] = []
    for part in list_parts(day):
        if only and part.name not in ("model", *only):
            continue
        left = _TOTAL_SECONDS - (time.monotonic() - started)
        ended.append(run_part(part, left))
        print(f"{part.name}: {ended[-1].how} ({ended[-1].seconds:.0f} s)", flush=True)
        write_summary(results, ended, flops_per_token=flops, is_phantom=_PHANTOM in os.environ)
    return ended


def run_part(part: Part, seconds_left: float) -> Ended:
    """Run a part to its end or to that of its time."""
    if seconds_left < _LEAST_SECONDS:
        return Ended(name=part.name, how="not begun: no time was left", seconds=0.0, found={})
    limit, started = min(part.limit_seconds, seconds_left), time.monotonic()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **part.environment}
    with (part.folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *part.arguments], cwd=_PROJECT, env=environment, stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(timeout=limit)
            how = "finished" if code == 0 else f"failed: {_find_reason(part.folder / 'log.txt')}"
        except subprocess.TimeoutExpired:
            how = f"ended after its {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = part.folder / "found.json"
    return Ended(
        name=part.name, how=how, seconds=time.monotonic() - started,
        found=json.loads(found.read_bytes()) if found.exists() else {},
    )  # fmt: skip


def _find_reason(log: Path) -> str:
    """Return the first error that the log names, which is the rank's and not that of whoever waited for it."""
    text = log.read_text(errors="replace")
    named = re.search(r"^(?:\[rank\d+\]: ?)?([\w.]*(?:Error|Exception): .+)$", text, flags=re.MULTILINE)
    last = text.strip().rpartition("\n")[2] or "it said nothing"
    return shorten(redact(named[1] if named else last), limit=200)


def main() -> None:
    """Run what the command line asks for; exit with 1 if a part did not finish."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_day", description=__doc__)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("gpu-day"), help="folder of the results")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="the model and these alone")
    parser.add_argument("--short", action="store_true", help="a step or two of each part, to see whether it runs")
    arguments = parser.parse_args()
    prepared = arguments.prepared
    if not (prepared / "facts.json").is_file():
        parser.error(f"{prepared}: no facts.json; make it: python -m benchmarks.throughput.prepare --out FOLDER")
    if not torch.cuda.is_available():
        parser.error("no GPU is there for torch: nothing could be measured")
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        ended = run_day(
            prepared.resolve(), arguments.out.resolve(), Path(scratch), only=arguments.only, is_short=arguments.short
        )
    print((arguments.out / "summary.md").read_text(encoding="utf-8"))
    sys.exit(any(part.how != "finished" for part in ended))


if __name__ == "__main__":
    main()
