"""ML problems: one file per workload, found by its name in params.yaml.

Each file offers what Workload says, and may offer more:

- `HAS_LABELS = True`: every row has a class (labels.npy of a slice), whose names stand in its manifest;
- `metrics(model, micro_batch)`: sums over the rows, {"loss": ..., "correct": ...}, of one forward pass, which the stage
  `evaluate` adds up over all held-out rows after every epoch; `correct...` / labels is `accuracy...`;
- `augmented(rows, config, segment)`: the rows as a segment trains on them, where an evaluation sees them otherwise;
- `prepare(model, config)`, called once before training: it raises UnfitModelError for a model that cannot be trained as
  the config asks for;
- `tied_weight(model)`: the matrix that is both embedding and head, or None.

A module elsewhere that offers as much is a workload too, for a config that names it whole (training/plug.py).
"""

from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from training.data import MicroBatch
from training.rows import Rows


class Workload(Protocol):
    """What a file of this folder offers: model, rows and loss of an ML problem."""

    UNIT: str
    """What throughput counts: token, image."""

    def open_slice(self, folder: Path) -> Rows:
        """Return the rows of a folder that the slice stage wrote."""
        ...

    def dummy_micro_batch(self, seq_len: int) -> MicroBatch:
        """Return a micro-batch that costs little and weighs nothing, for a rank that has nothing left in a step."""
        ...

    def load_model(self, model_dir: Path, *, checkpoint: Path | None = None) -> nn.Module:
        """Return the base model in fp32 on the CPU, or with the weights of a checkpoint file."""
        ...

    def has_dropout(self, model: nn.Module) -> bool:
        """Return True if the model draws random numbers while training."""
        ...

    def loss_sum(
        self,
        model: nn.Module,
        micro_batch: MicroBatch,
        *,
        scale: Tensor | None = None,
        chunk_rows: int = 1,
        head_weight: Tensor | None = None,
    ) -> Tensor:
        """Return the sum (not the mean) of the loss over the micro-batch's labels: () float32.

        `scale`, () float32: what it will be multiplied by before the backward; `chunk_rows`: labels whose logits
        may be in memory at once; `head_weight`: what stands in for the weight that `tied_weight` gave. All are for a
        loss that can make use of them.
        """
        ...
