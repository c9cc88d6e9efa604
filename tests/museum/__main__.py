"""`python -m tests.museum`: run every exhibit, print the table, and write its row into docs/museum.md at once."""

import argparse
import datetime
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.museum.catalogue import DOCUMENT, Shown, keys_shown, table_of, with_lines, with_shown
from tests.museum.clean import run_clean
from tests.museum.exhibits import EXHIBITS
from tests.museum.kinds import KINDS, Kind, with_kind
from tests.museum.museum import Museum, Outcome
from tests.museum.project import Size
from tests.museum.workloads import PARAMS

_CHECKOUT = Path(__file__).resolve().parents[2]
_SIZE = Size(num_rows=(165, 85))
"""Larger than in the tests, so that the ratios are not of single steps alone."""


def main() -> int:
    """Return 0 if every exhibit was caught by whom it has to be, and no comparison without a defect was."""
    parser = argparse.ArgumentParser(prog="tests.museum", description=__doc__)
    parser.add_argument(
        "--clean", type=int, default=50, help="comparisons without a defect to run as well (%(default)s)"
    )
    parser.add_argument(
        "--only", default="", help="exhibits with these words in their name; the other rows stay as they are"
    )
    parser.add_argument("--missing", action="store_true", help="exhibits that have no row in docs/museum.md yet")
    parser.add_argument("--no-exhibits", action="store_true", help="nothing but the comparisons without a defect")
    parser.add_argument(
        "--workload", choices=sorted(PARAMS), default="causal_lm", help="another one, as long as any gate catches"
    )
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32", help="likewise")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    kind = Kind(workload=arguments.workload, precision=arguments.precision)
    is_other = kind != KINDS[0]
    console, progress = Console(), Console(stderr=True, highlight=False, soft_wrap=True)
    exhibits = [
        part for part in EXHIBITS if arguments.only in part.key and part.applies_to(kind.workload, kind.precision)
    ]
    if arguments.missing:
        there = keys_shown(DOCUMENT.read_text(encoding="utf-8"))
        exhibits = [part for part in exhibits if part.key not in there]
    if arguments.no_exhibits:
        exhibits = []
    load = f"load average {os.getloadavg()[0]:.1f} when the museum began"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    root = Path(tempfile.mkdtemp(prefix="museum-"))
    try:
        museum = Museum(root / "exhibits", _CHECKOUT, size=_size(kind) if is_other else _SIZE, certifies_all=is_other)
        if museum.clean.is_caught:
            progress.print(f"the comparison without a defect raises an alarm: {museum.clean.says}")
            return 1
        machine = json.loads((museum.blank / "data" / "fingerprint" / "machine.json").read_bytes())
        timed = museum.show_timed() if any(part.is_timed for part in exhibits) else None
        if timed is not None and timed.is_caught:
            progress.print(f"the comparison without a defect, timed, raises an alarm: {timed.says}")
            return 1
        shown = []
        for number, exhibit in enumerate(exhibits, start=1):
            shown.append(Shown(exhibit=exhibit, outcome=museum.show(exhibit)))
            progress.print(f"exhibit {number} of {len(exhibits)}: {exhibit.key}: {shown[-1].who_caught}")
            if not is_other:
                text = with_lines(DOCUMENT.read_text(encoding="utf-8"))
                text = with_shown(text, shown[-1:], machine=machine, load=load, date=today)
                DOCUMENT.write_text(text, encoding="utf-8")
        clean: list[list[Outcome]] = []
        for index in range(arguments.clean):
            outcomes = run_clean(root / "clean", _CHECKOUT, index, workload=kind.workload, precision=kind.precision)
            shutil.rmtree(root / "clean")
            clean.append(outcomes)
            word = f"alarm: {outcomes[-1].says}" if outcomes[-1].is_caught else "no alarm"
            word += "".join(f"; before that, {outcome.says}" for outcome in outcomes[:-1])
            progress.print(f"without a defect, {index + 1} of {arguments.clean}: {word}")
    finally:
        shutil.rmtree(root, ignore_errors=True)
    console.print(table_of(shown))
    wrong = [
        part.exhibit.key for part in shown if not (part.outcome.is_caught if is_other else part.is_as_expected)
    ]  # fmt: skip
    num_alarms = sum(outcomes[-1].is_caught for outcomes in clean)
    if not arguments.only and not arguments.missing:
        text = DOCUMENT.read_text(encoding="utf-8")
        caught = f"{len(shown) - len(wrong)} of {len(shown)}" if shown else None
        without = (len(clean), num_alarms) if clean else None
        text = with_kind(text, kind, caught=caught, clean=without, machine=machine, date=today)
        DOCUMENT.write_text(text, encoding="utf-8")
    console.print("written: docs/museum.md")
    console.print(
        f"{len(shown) - len(wrong)} of {len(shown)} exhibits as expected{''.join(f'; not: {key}' for key in wrong)}"
    )
    console.print(f"{num_alarms} alarms in {len(clean)} comparisons without a defect")
    return 1 if wrong or num_alarms else 0


def _size(kind: Kind) -> Size:
    """Return a comparison that is seconds long, in another workload or precision."""
    train: tuple[tuple[str, Any], ...] = (("precision", kind.precision),)
    if kind.workload == "image_classification":
        # A step takes a second on one core, whatever the images.
        return Size(workload=kind.workload, num_rows=(45, 13), train=train)
    return Size(workload=kind.workload, train=train)


if __name__ == "__main__":
    sys.exit(main())
