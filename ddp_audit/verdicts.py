"""What was found of a cell, question by question, and what that leaves of its speedup."""

from dataclasses import dataclass
from typing import Literal

from ddp_audit.process.findings import Finding, Verdict


@dataclass(frozen=True)
class Answers:
    """One question, and what it found of every cell that it makes sense of."""

    name: str
    """What holds if it passed."""
    question: str
    """What it asks, in plain words."""
    findings: dict[str, Finding]
    """Cell -> what was found of it."""

    @property
    def verdict(self) -> Verdict:
        """`failed` if one cell failed, `passed` if there are findings and all passed."""
        verdicts = {found.verdict for found in self.findings.values()}
        if "failed" in verdicts:
            return "failed"
        return "passed" if verdicts == {"passed"} else "not checked"


@dataclass(frozen=True)
class Standing:
    """What the findings leave of a cell's speedup."""

    state: Literal["proven", "unproven", "withheld"]
    reason: str = ""
    """Why, by the gravest finding; empty if proven."""
