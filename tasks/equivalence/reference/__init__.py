"""What the ranks' numbers are held against: computed a second time, without the code of training/.

One file per workload, found by its name, which offers what Reference says: rows and their loss one by one, model and
loss of a micro-batch for the gradients of update.py. It shares neither model loading nor loss with training/workloads/,
so that a defect there cannot be in both.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from training.registry import has_file, import_file

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from training.data.batches import MicroBatch


class Reference(Protocol):
    """What a file of this folder that bears a workload's name offers."""

    def read_rows(self, folder: Path, rows: Iterable[int], *, seq_len: int) -> Iterator[Any]:
        """Yield these rows of a slice, each as `compute_rows_loss` takes it.

        Where the workload changes rows as it trains on them, it is also told `augmentation`, which says how.
        """

    def compute_rows_loss(self, model: Any, rows: Iterable[Any]) -> tuple[float, int]:
        """Return the sum of the model's loss over these rows, computed one by one, and the number of labels.

        Where the model has batch normalisation, it is also told `statistics_rows`: how many rows come together.
        """

    def load_model(self, model_dir: Path, *, device: str, is_packed: bool = False) -> Any:
        """Return the base model in fp32; `is_packed`: for micro-batches whose rows lie one after another."""

    def loss_sum(self, model: Any, micro_batch: "MicroBatch", *, chunk_rows: int) -> "Tensor":
        """Return the sum of the loss over a micro-batch's labels, chunk by chunk: ()."""


def has_reference(workload: str) -> bool:
    """Return whether there is a second computation of the workload."""
    return has_file("tasks.equivalence.reference", workload)


def find_reference(workload: str) -> Reference:
    """Return the file of this folder with the workload's name; ModuleNotFoundError if there is none."""
    reference: Reference = import_file("tasks.equivalence.reference", workload)
    return reference
