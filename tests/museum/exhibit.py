"""What the museum shows: a defect, the one line that makes it, and who has to catch it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Scenario = Literal["train", "resume both", "resume 2proc", "two jobs", "search"]

_OF_TEXT = {
    "training/data/batches.py",
    "training/workloads/causal_lm.py",
    "training/strategies/pipeline.py",
    "training/step/staged.py",
}
"""Files whose lines other workloads than the language model do not run."""
_NO_FP16 = {"zero1", "fsdp2", "pipeline"}
"""Strategies that refuse it."""


@dataclass(frozen=True)
class Mutation:
    """One line of the project, or a part of it, and what stands there instead."""

    file: str
    """Relative to the project."""
    old: str
    """Stands exactly once in the file."""
    new: str
    """A single line, too."""

    def apply(self, project: Path) -> None:
        """Change the scratch project's file; AssertionError if the line is not there any more, or not once."""
        path = project / self.file
        text = path.read_text(encoding="utf-8")
        assert text.count(self.old) == 1, f"{self.file} has {text.count(self.old)} times {self.old!r}; needed: once"
        assert self.old != self.new
        assert "\n" not in self.old + self.new
        changed = text.replace(self.old, self.new)
        unknown = subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"],
            input=changed, capture_output=True, text=True,
        )  # fmt: skip
        assert unknown.returncode == 0, f"{self.file}: {self.new!r} is no defect, it only crashes:\n{unknown.stdout}"
        path.write_text(changed, encoding="utf-8")
        # Compiled files are told by second and size, which a mutation may leave alone.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One defect."""

    key: str
    """Short name, as in the table."""
    defect: str
    """What is wrong, in one plain sentence."""
    claim: str
    """What was published with it, or `none known`."""
    mutation: Mutation | None
    """The line that makes it; None: it is made by what the user does."""
    caught_by: str
    """The gate that has to fail, or `train: WORDS` if that stage has to refuse with these words."""
    disarmed: Mutation | None = None
    """A check inside the trainer that is taken out as well, so that the gates stand alone."""
    scenario: Scenario = "train"
    """What is run: both cells from nothing; or a second range after the first one; or two jobs in one
    folder; or `make search`, on built-in data."""
    launcher: Literal["forked", "torchrun"] = "forked"
    """torchrun where the ranks must not be children of one Python process."""
    params: tuple[tuple[str, Any], ...] = ()
    """Changes to params.yaml, by dotted key; made before the training of any cell."""
    is_certified: bool = False
    """Whether the equivalence certificate is made with the defect; else it is the clean one and others have to see."""
    is_timed: bool = False
    """Whether the speed is measured, too; the defect is then in nothing but that, and the trainings are shared."""
    spares_baseline: bool = False
    """Whether one process does exactly what it does without the defect, so that its run can be shared."""

    has_dropout: bool = False
    """Whether the model has dropout; nothing can then be shared with the comparison without a defect."""

    is_of_layers: bool = False
    """Whether it is about the layers that a model's class names; a ResNet18's names none, and is one unit."""

    no_defect_in: str = ""
    """A precision in which the line changes nothing."""

    def applies_to(self, workload: str, precision: str) -> bool:
        """Return whether the lines are ones that this workload runs, and do something in this precision."""
        if self.scenario == "search":
            return (workload, precision) == ("causal_lm", "fp32")
        spread = [value.get("strategy") for _, value in self.params if isinstance(value, dict)]
        if precision == self.no_defect_in or (precision == "fp16" and _NO_FP16.intersection(spread)):
            return False
        is_of_text = self.has_dropout or any(part.file in _OF_TEXT for part in self.mutations)
        if self.is_of_layers and workload == "image_classification":
            return False
        return workload in ("causal_lm", "instruction") or not is_of_text

    @property
    def mutations(self) -> list[Mutation]:
        """Everything that is changed in the sources."""
        return [part for part in (self.mutation, self.disarmed) if part is not None]
