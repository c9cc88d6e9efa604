"""What the museum shows: a defect, the functions that make it, and who has to catch it."""

from dataclasses import dataclass
from typing import Any, Literal

from tests.mutants.patching import Patch

Scenario = Literal["train", "resume both", "resume 2proc", "two jobs", "search"]

_OF_TEXT = {"training.data.batches", "training.workloads.causal_lm", "training.step.staged"}
"""Modules that other workloads than the language model do not run."""
UPDATES = "Update equivalence"
_OF_SECONDS = ("Only steps were timed", "Not data-bound")
_IN_STEPS = {
    *(f"training.step.replica:Replica.{name}" for name in ("add", "forward", "step", "_clip_whole")),
    *(f"training.strategies.ddp:Ddp.{name}" for name in ("_run", "train_step")),
    *(f"training.strategies.fsdp2:Fsdp2.{name}" for name in ("_run", "_clip")),
    *(f"training.data.batches:Slice.{name}" for name in ("row", "collate")),
    *(f"training.loop:{name}" for name in ("make_micro_batches", "_require_same_state")),
    "training.strategies.zero1:Shares.send", "training.strategies.pipeline:Pipeline._add_shared",
    "training.step.staged:StagedSteps.run", "training.data.plan:StepPlan.select_for_rank",
    "training.record.window:Window._make_step_facts", "training.record.segment:SegmentRecord._make_line",
}  # fmt: skip
"""What ranks call in every step, so that it may go wrong from any step on."""
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

    @property
    def begins_anywhere(self) -> bool:
        """Whether it is a defect of training that may begin in any step."""
        names = {part.name for part in self.patches}
        is_of_training = self.scenario == "train" and not self.is_timed and self.caught_by not in _OF_SECONDS
        return is_of_training and bool(names) and names <= _IN_STEPS

    @property
    def late_caught_by(self) -> str:
        """Who has to catch it where it begins later than in step 1."""
        is_early = self.caught_by in ("Loss curves coincide", "Starts from the base model")
        return UPDATES if is_early else self.caught_by

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
