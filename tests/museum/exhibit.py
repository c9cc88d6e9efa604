"""What the museum shows: a defect, the functions that make it, and who has to catch it."""

from dataclasses import dataclass
from typing import Any, Literal

from tests.mutants.patching import Patch

Scenario = Literal["train", "resume both", "resume 2proc", "two jobs", "search"]

_OF_TEXT = {"training.data.batches", "training.workloads.causal_lm", "training.step.staged"}
"""Modules that other workloads than the language model do not run."""
_NO_FP16 = {"zero1", "fsdp2", "pipeline"}
"""Strategies that refuse it."""


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One defect."""

    key: str
    """Short name, as in the table."""
    defect: str
    """What is wrong, in one plain sentence."""
    caught_by: str
    """The gate that has to fail, or `train: WORDS` if that stage has to refuse with these words."""
    patches: tuple[Patch, ...]
    """What makes it, and takes out a check inside the trainer, so that the gates stand alone; (): the user does it."""
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
    """A precision in which nothing is changed."""

    def applies_to(self, workload: str, precision: str) -> bool:
        """Return whether this workload runs what is changed, and it does something in this precision."""
        if self.scenario == "search":
            return (workload, precision) == ("causal_lm", "fp32")
        spread = [value.get("strategy") for _, value in self.params if isinstance(value, dict)]
        if precision == self.no_defect_in or (precision == "fp16" and _NO_FP16.intersection(spread)):
            return False
        is_of_text = self.has_dropout or any(part.module in _OF_TEXT for part in self.patches)
        if self.is_of_layers and workload == "image_classification":
            return False
        return workload in ("causal_lm", "instruction") or not is_of_text


def show(key: str, defect: str, caught_by: str, *patches: Patch, **more: Any) -> Exhibit:
    """Return an exhibit."""
    return Exhibit(key=key, defect=defect, caught_by=caught_by, patches=patches, **more)
