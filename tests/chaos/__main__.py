"""`python -m tests.chaos [PART ...]`: provoke every fault many times, print the table, write it into docs/faults.md."""

import argparse
import datetime
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

# Before torch is imported: a process with threads of its own cannot be forked.
os.environ["OMP_NUM_THREADS"] = "1"


from tasks.machine.facts import collect_machine_facts
from tests.chaos.document import DOCUMENT, Row, with_rows
from tests.chaos.parts import PARTS
from tests.chaos.trial import Part, Trial


def main() -> int:
    """Return 0 if every trial was survived."""
    keys = [part.key for part in PARTS]
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(keys)}; default: all")
    chosen = parser.parse_args().parts or keys
    if unknown := set(chosen) - set(keys):
        parser.error(f"{', '.join(sorted(unknown))}; allowed: {', '.join(keys)}")
    _say_only_results()
    facts = collect_machine_facts()
    machine = f"one machine ({facts.cpu}, {facts.num_cpus} CPUs; torch {facts.versions['torch']})"
    rows = []
    for part in (part for part in PARTS if part.key in chosen):
        rows.append(_run(part))
        print(" | ".join(rows[-1].cells), flush=True)
        # At once: the next part may take an hour, or end this process.
        DOCUMENT.write_text(with_rows(DOCUMENT.read_text(), rows, order=keys, machine=machine))
    print(f"written: docs/{DOCUMENT.name}")
    return 0 if all(row.num_survived == len(row.trials) for row in rows) else 1


def _say_only_results() -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    # Every refused checkpoint is a warning, and hundreds are broken here; each trial looks at the event instead.
    logging.getLogger("training").setLevel(logging.ERROR)


def _run(part: Part) -> Row:
    root = Path(tempfile.mkdtemp(prefix=f"chaos-{part.key}-"))
    trials: list[Trial] = []
    for trial in part.trials(root):
        trials.append(trial)
        if trial.problem:
            print(f"{part.key}: {trial.problem}; kept: {root}", flush=True)
    if all(trial.survived for trial in trials):
        shutil.rmtree(root, ignore_errors=True)
    return Row(part=part, trials=trials, date=datetime.datetime.now(datetime.UTC).date().isoformat())


if __name__ == "__main__":
    sys.exit(main())
