"""A gate: one automatic check that a cell has to pass before its speedup is printed."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_validator

from ddp_audit.process.findings import Outcome
from ddp_audit.process.wording import Number, Reason

State = Literal["proven", "unproven", "withheld", "not measured"]
"""What may be believed of a speedup."""

QUIET_TURNS = "Quiet enough to tell"
"""The gate that fails for want of turns in which nobody else used the machine: noise, and no defect."""
BORNE_OUT = "Training bears out the blocks"
"""The gate that fails, too, where noise was in one of the two that it compares."""
_CONFIG = ConfigDict(extra="forbid", frozen=True)


class CellFinding(BaseModel):
    """What a gate found of one cell."""

    model_config = _CONFIG

    cell: str
    """Name of the cell."""
    outcome: Outcome
    """`not checked` is no pass: `compared` then says why nothing could be compared."""
    code: str = ""
    """Which problem it is, or why it was not checked; `passed`. Empty in results of an earlier version."""
    compared: str
    """The numbers that were compared, in plain words that name the cell, so that it can stand alone."""
    numbers: dict[str, Number | str | list[Number | str]] = {}
    """The same for machines: of the problem that `code` is of, and what else was compared."""
    problems: list[Reason] = []
    """One by one those that `compared` tells, the first is that of `code`; none if it passed."""
    true_figure: str | None = None
    """Where it failed and it can be told: the figure once the difference is taken out."""
    remedy: str | None = None
    """What to do about it, where that is the same for every cell; null if `compared` says it, or nothing helps."""


class Gate(BaseModel):
    """One check and what it found of every cell; what report, tracker and model card read."""

    model_config = _CONFIG

    name: str = Field(pattern=r"^[A-Za-z0-9 -]+$")
    """What holds if it passed; letters, digits, spaces and dashes, as a tracker's tags allow."""
    question: str
    """What it asks, in plain words."""
    findings: list[CellFinding]
    """In the order of `cells`; a cell that it says nothing about, as one against itself, is not among them."""

    @model_validator(mode="before")
    @classmethod
    def _drop_outcome(cls, content: Any) -> Any:
        return {key: value for key, value in content.items() if key != "outcome"} if "outcome" in content else content

    @computed_field  # type: ignore[prop-decorator]
    @property
    def outcome(self) -> Outcome:
        """`failed` if one cell failed, `passed` if there are findings and all passed; it follows from `findings`."""
        outcomes = {finding.outcome for finding in self.findings}
        if "failed" in outcomes:
            return "failed"
        return "passed" if outcomes == {"passed"} else "not checked"

    @property
    def compared(self) -> str:
        """What was compared of the cells that decided the outcome."""
        deciding = [finding.compared for finding in self.findings if finding.outcome == self.outcome]
        return "; ".join(dict.fromkeys(deciding)) or "no cell that it could say anything about"

    @property
    def hints(self) -> list[str]:
        """What else is to be known of the cells that failed: true figures and remedies, each once."""
        said = [hint for finding in self.findings for hint in (finding.true_figure, finding.remedy) if hint]
        return list(dict.fromkeys(said))

    def find_cell_finding(self, cell: str) -> CellFinding | None:
        """Return what was found of the cell; None if the gate says nothing about it."""
        return next((finding for finding in self.findings if finding.cell == cell), None)


class Standing(BaseModel):
    """What may be believed of a cell's speedup."""

    model_config = _CONFIG

    state: State
    """withheld: a gate of the cell or of the baseline failed. not measured: the speed was not timed in turns. unproven:
    a gate of one of them was not checked, or the interval holds 1 and is wide. proven: none of these."""
    gates: list[str] = []
    """The gates that decided, the one first that `reason` is of; none if proven, or if the interval decided."""
    reason: str | None = None
    """What that gate compared, or the interval, in plain words; null if proven."""
