"""How noisy gradients are at one point of the training: what decides how large a batch still teaches in full."""

from typing import ClassVar

from pydantic import Field

from tasks.records.facts import Record
from tasks.records.stage_file import StageFile


class NoiseScale(Record):
    """The gradient noise scale of the baseline at one point, with a 95 % interval; in samples of a batch."""

    range: str
    """The range whose rows the gradients are of."""
    epoch: int
    """The epoch after which the weights were so; 0: the base model's, before any training."""
    value: float | None
    """Trace of the covariance of a sample's gradient / squared norm of the mean; null where noise hides that norm."""
    low: float
    """Lower end."""
    high: float | None
    """Upper end; null where the squared norm may be 0, so that there is none."""
    squared_norm: float
    """Of the mean gradient, estimated without bias: below 0 where noise hides it."""
    trace: float
    """Of the covariance of one sample's gradient, estimated without bias."""
    num_batches: int
    """Batches that it was estimated from, each apart."""
    batch_size: int
    """Samples of each."""
    num_parts: int
    """Parts of each, whose gradients were held against their mean."""


class NoiseScaleFile(StageFile):
    """The same, as it is kept for the next run."""

    NAME: ClassVar[str] = "noise_scale.json"

    points: list[NoiseScale] = Field(max_length=1)
    """The one point; none where there was nothing to estimate from."""
