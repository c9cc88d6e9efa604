"""The museum's table: for a terminal, and as docs/museum.md."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.marked_table import END
from tests.museum.exhibit import Exhibit
from tests.museum.kinds import BEGIN
from tests.museum.museum import Outcome

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "museum.md"
_WIDTH = 240
_NOT_CAUGHT = "not caught"
_LONG_HASH = re.compile(r"\b([0-9a-f]{8})[0-9a-f]{24,}\b")
_PROCESS = re.compile(r", pid [0-9]+ on .*")
"""Which process, on which host, in which folder: nothing of that belongs in a document."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An exhibit and what became of it."""

    exhibit: Exhibit
    outcome: Outcome

    @property
    def is_as_expected(self) -> bool:
        """Whether the named gate caught it."""
        return self.outcome.is_caught_by(self.exhibit.caught_by)

    @property
    def who_caught(self) -> str:
        """Who caught it, in words."""
        if not self.outcome.is_caught:
            return _NOT_CAUGHT
        if not self.is_as_expected:
            return f"not by “{self.exhibit.caught_by}”, but by {self.outcome.failed_gates or self.outcome.says}"
        stage, _, words = self.exhibit.caught_by.partition(": ")
        if not words:
            return f"gate “{self.exhibit.caught_by}”"
        who = f"the ranks ({self.outcome.error})" if self.outcome.error else f"the stage {stage}"
        return f"{who} refused: “{words}”"

    @property
    def naive(self) -> str:
        """The speedup that the times alone would give."""
        return "none" if self.outcome.naive_speedup is None else f"{self.outcome.naive_speedup:.2f}x"

    @property
    def says(self) -> str:
        """The report's verdict, or the stage's refusal, shortened."""
        words = _LONG_HASH.sub(r"\1...", self.outcome.says)
        return textwrap.shorten(_PROCESS.sub("", words), _WIDTH, placeholder=" ...")


def table_of(shown: Sequence[Shown]) -> Table:
    """Return the table for a terminal."""
    table = Table(title="Museum of wrong speedups", show_lines=True)
    for heading in ("mutant", "caught by", "naive speedup", "what is said instead"):
        table.add_column(heading, overflow="fold")
    for part in shown:
        table.add_row(part.exhibit.key, part.who_caught, part.naive, part.says)
    return table


def document_of(
    shown: Sequence[Shown],
    clean: Sequence[Sequence[Outcome]],
    *,
    machine: dict[str, Any],
    load: str,
    date: str,
    before: str,
) -> str:
    """Return docs/museum.md; `before`: what it was, whose table of workloads and precisions is kept."""
    missed = [part for part in shown if not part.outcome.is_caught]
    rows = ["| " + " | ".join(_cell(text) for text in _columns(part)) + " |" for part in shown]
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("python", "torch", "transformers"))
    paragraphs = _PARAGRAPHS.format(
        num_mutants=len(shown),
        num_caught=len(shown) - len(missed),
        missed=", ".join(f"“{part.exhibit.key}”" for part in missed) or "none",
        date=date,
        machine=f"{machine['cpu']}, {machine['num_cpus']} CPUs, {machine['os']}; {versions}",
        load=load,
        clean=_clean_sentence(clean),
    )
    return _DOCUMENT.format(
        paragraphs="\n\n".join(textwrap.fill(part, 120) for part in paragraphs.strip().split("\n\n")),
        rows="\n".join(rows),
        lines="\n".join(_lines_of(part.exhibit) for part in shown),
        kinds=f"{BEGIN}{before.partition(BEGIN)[2].partition(END)[0]}{END}",
    )


def _clean_sentence(clean: Sequence[Sequence[Outcome]]) -> str:
    """Say how many comparisons without a defect raised an alarm; of the attempts at each, the last one counts."""
    if not clean:
        return "No comparison without a defect was run this time."
    num_alarms = sum(outcomes[-1].is_caught for outcomes in clean)
    num_repeated = sum(len(outcomes) > 1 for outcomes in clean)
    found = "no gate failed in any of them" if not num_alarms else f"a gate failed in {num_alarms} of them"
    at_first = sorted({gate for outcomes in clean for outcome in outcomes[:-1] for gate in outcome.failed_gates})
    again = (
        f" {num_repeated} of them were run again, because gates about seconds failed at first "
        f"({', '.join(f'“{gate}”' for gate in at_first)}): they train for less than a second, and the machine had "
        "other work."
    )
    return (
        f"{len(clean)} comparisons without a defect, each of another seed, model, data and size, were run as well: "
        f"{found}.{again if num_repeated else ''}"
    )


def _columns(part: Shown) -> list[str]:
    caught_by = part.who_caught.replace(_NOT_CAUGHT, f"**{_NOT_CAUGHT}**")
    return [part.exhibit.key, part.exhibit.defect, part.exhibit.claim, caught_by, part.naive, part.says]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _lines_of(exhibit: Exhibit) -> str:
    lines = [f"**{exhibit.key}**", ""]
    for mutation in exhibit.mutations:
        lines += ["```diff", f"# {mutation.file}", f"- {mutation.old}", f"+ {mutation.new}", "```"]
    lines += [f"`{key}: {value}` in params.yaml" for key, value in exhibit.params]
    if exhibit.scenario != "train":
        lines += ["", _SCENARIOS[exhibit.scenario]]
    return "\n".join([*lines, ""])


_SCENARIOS = {
    "resume both": "Both cells have trained the first range without the defect; the second range follows with it.",
    "resume 2proc": "`2proc` has trained the first range without the defect; the second range follows with it.",
    "two jobs": "Nothing is changed: the stage is started twice.",
}

_DOCUMENT = """\
# Museum of wrong speedups

Written by `make museum`; do not edit.

{paragraphs}

| mutant | defect | published with it | caught by | naive speedup | what is said instead |
|---|---|---|---|---|---|
{rows}

## Other workloads, and 16 bit

The same mutants and comparisons without a defect on other trainings, each two processes against one in fast mode, with
the certificate made as in any comparison. A mutant counts as caught where a stage refused or any gate failed. The
ResNet18 learns with SGD and momentum, so that two right trainings of it soon part. What has no row here was not
run yet.

{kinds}

## What no gate sees

- **A wait of equal length in every step of the baseline**, in the measured blocks and in the training alike, while the
  speedup stays below linear: nothing else says how long that step ought to take. Above linear the verdict names a
  suspect, and beyond 1.1 times linear a gate fails.
- **A baseline that another micro-batch or another number of threads would make faster.** All cells share both, so that
  the comparison is equal; whether the settings are good ones is what the advice tries.
- **A mistake in what both computations share:** which rows of a step are in which micro-batch, how they are padded, and
  the tokens that the slices hold. The order of the rows and the learning rates are computed a second time.
- **Clocks or power limits that somebody changes between the blocks of one arm and those of another.** Arms take turns
  within seconds, so that a change in between hits all of them.
- **Held-out texts that stand in the training rows once more under another number.** They are counted, and the report
  says how many, since all cells share them.
- **Whoever may write to the folder.** The files of the stages are what the gates judge by; a results.json that was
  edited by hand is rendered as it stands until DVC makes it anew.

## The lines

{lines}"""

_PARAGRAPHS = """\
Each row is a defect that made a published speedup wrong, or that training loops are known for, put into our own trainer
or pipeline by one line. The comparison is then run for real: one process against two, over gloo, on the CPU, with a
Qwen2-architecture model of 0.3 million parameters. The naive speedup is what a reader of the log would compute: seconds
of the one process / seconds of the two, in that very run; where the trainer refused, of the steps until then. Beside it
stands what the report says.

Of {num_mutants} mutants {num_caught} are caught; not caught: {missed}. {clean}

Measured on {date} on one machine ({machine}; {load}). The steps take tens of milliseconds, so the ratios vary a lot
from run to run and say nothing about speed. What does not vary is who catches which defect.

"Trainer's check removed" means that a second line takes out the check inside the trainer that caught the defect first,
so that the gate behind it has to. No mutant is caught merely by being other code: the digest of the code is held the
same in both cells. The update-equivalence certificate is made with the defect where it is named as the gate; elsewhere
it is the one of the clean trainer, so that another gate has to see the defect.
"""
