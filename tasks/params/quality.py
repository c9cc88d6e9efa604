"""The section `quality` of params.yaml: what is asked of the models, and how it is told."""

from pydantic import Field

from tasks.params.section import Finite, Section


class QualityParams(Section):
    """What is asked of the training itself."""

    target_loss: Finite | None = Field(default=None, gt=0)
    """Training loss (nats per label) until which the report counts each cell's seconds; null: the baseline's last."""
