"""ML problems: one file per workload, found by its name in params.yaml.

Each file offers what Workload says, and may offer `prepare(model, config)`, called once before training: it raises
UnfitModelError for a model that cannot be trained as the config asks for; and `tied_weight(model)`, the matrix that is
both embedding and head, or None. One that emulates devices (emulated.py) also
says what their links, buckets and updates cost: `gradient_hook`, `bucket_mib`, `before_update`; `emulated_device` is
for whoever loads and copies.
"""

from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from training.data import MicroBatch


class Workload(Protocol):
    """What a file of this folder offers: model and loss of an ML problem."""

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
        """Return the sum (not the mean) of the loss over the micro-batch's label tokens: () float32.

        `scale`, () float32: what it will be multiplied by before the backward; `chunk_rows`: label tokens whose logits
        may be in memory at once; `head_weight`: what stands in for the weight that `tied_weight` gave. All are for a
        loss that can make use of them.
        """
        ...
