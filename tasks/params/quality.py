"""The section `quality` of params.yaml: what is asked of the models, and how it is told."""

from pydantic import Field

from tasks.params.section import Finite, Section


class QualityParams(Section):
    """What is asked of the training itself."""

    target_loss: Finite | None = Field(default=None, gt=0)
    """Training loss (nats per label) until which the report counts each cell's seconds; null: the baseline's last."""
    target_accuracy: Finite | None = Field(default=None, gt=0, le=1)
    """Share of the held-out rows in the right class, until which it does so too; null: the baseline's last."""
    target_heldout_loss: Finite | None = Field(default=None, gt=0)
    """Held-out loss (nats per label) until which cells that are another training are timed; null: the highest that a
    seed of the baseline ends with."""
    seeds: int = Field(default=1, ge=1, le=100)
    """How often each cell is trained, each time from another seed, where a cell is another training; an interval takes
    three."""
    noise_batches: int = Field(default=16, ge=0, le=10_000)
    """Batches, at most, from which the gradient noise scale is measured, at the start and after each segment; 0: it is
    not measured."""
