"""ML problems: one file per workload, found by its name in params.yaml; each offers what Workload says.

A module elsewhere that offers as much is a workload too, for a config that names it whole.
"""

from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from training.config import SegmentConfig, TrainingConfig
from training.data.batches import MicroBatch, Rows
from training.data.plan import SegmentPlan, make_segment_plan
from training.registry import import_file


class Workload(Protocol):
    """What a file of this folder offers: model, rows and loss of an ML problem."""

    UNIT: str
    """What throughput counts: token, image."""
    HAS_LABELS: bool
    """Whether every row has a class (labels.npy of a slice), whose names stand in its manifest."""

    HAS_PROMPTS: bool
    """Whether every row begins with a prompt, which is read and not learned (prompts.npy of a slice)."""

    def open_slice(self, folder: Path) -> Rows:
        """Return the rows of a folder that the slice stage wrote."""

    def augment_rows(self, rows: Rows, config: TrainingConfig, segment: SegmentConfig) -> Rows:
        """Return the rows of a slice as a segment trains on them; an evaluation sees them as they are."""

    def make_dummy_micro_batch(self, seq_len: int) -> MicroBatch:
        """Return a micro-batch that costs little and weighs nothing, for a rank that has nothing left in a step."""

    def load_model(self, model_dir: Path, *, checkpoint: Path | None = None) -> nn.Module:
        """Return the base model in fp32 on the CPU, or with the weights of a checkpoint file."""

    def outline_model(self, model_dir: Path) -> nn.Module:
        """Return a model as `load_model` does, of whatever numbers: of the folder config.json alone is read."""

    def prepare(self, model: nn.Module, config: TrainingConfig) -> None:
        """Make the model, once and before training, take what the config asks for.

        Raises UnfitModelError for one that cannot be trained so.
        """

    def can_pack(self, model: nn.Module, config: TrainingConfig) -> bool:
        """Return whether `prepare` would take the model for packed micro-batches; leaves it as it is."""

    def has_dropout(self, model: nn.Module) -> bool:
        """Return True if the model draws random numbers while training."""

    def loss_sum(
        self,
        model: nn.Module,
        micro_batch: MicroBatch,
        *,
        scale: Tensor | None = None,
        chunk_rows: int = 1,
    ) -> Tensor:
        """Return the sum (not the mean) of the loss over the micro-batch's labels: () float32.

        `scale`, () float32: what it will be multiplied by before the backward; `chunk_rows`: labels whose logits
        may be in memory at once. Both are for a loss that can make use of them.
        """

    def metrics(self, model: nn.Module, micro_batch: MicroBatch) -> dict[str, Tensor]:
        """Return sums over the rows of one forward pass: `loss`, and `correct...` where rows have a class.

        The stage `evaluate` adds them up over all held-out rows after every epoch; `correct...` / labels is
        `accuracy...`.
        """


def find_workload(name: str) -> Workload:
    """Return the file of this folder with that name or, of a name with dots, that module."""
    package, _, file = name.rpartition(".")
    workload: Workload = import_file(package or "training.workloads", file)
    return workload


def open_segment(workload: Workload, config: TrainingConfig, segment: SegmentConfig) -> tuple[Rows, SegmentPlan]:
    """Return a segment's rows as it trains on them (an evaluation sees those of `open_slice`), and its steps."""
    rows = workload.augment_rows(workload.open_slice(segment.slice_dir), config, segment)
    return rows, make_segment_plan(rows, config, segment)
