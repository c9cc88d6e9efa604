"""How noisy gradients are at one point of the training: what decides how large a batch still teaches in full."""

from typing import ClassVar, Literal

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
    second_moments: Literal["training", "batches"] | None = None
    """null: it is of the gradient itself. Else it is of AdamW's coordinates, the gradient / the root of the root of its
    second moments; training: as they stand beside the checkpoint; batches: of a few batches at these weights alone."""
    instead: str | None = None
    """Why those of batches stand for the training's; null where they do not, or at the base model, which has none."""
    weights_digest: str | None = None
    """Of the weights that the gradients were taken at: sha256 of the checkpoint, or the digest of the base model."""

    @property
    def point(self) -> str:
        """What messages call the point."""
        return f"{self.range} epoch {self.epoch}" if self.epoch else "the base model"

    @property
    def coordinates(self) -> str:
        """In which it is, and by what."""
        if self.second_moments is None:
            return "of the gradient itself"
        if self.second_moments == "training":
            return "in AdamW's coordinates, by the training's second moments"
        why = "" if self.instead is None else f", since {self.instead}"
        return f"in AdamW's coordinates, by second moments of a few batches there{why}"


class NoiseScaleFile(StageFile):
    """The same, as it is kept for the next run."""

    NAME: ClassVar[str] = "noise_scale.json"

    points: list[NoiseScale] = Field(max_length=1)
    """The one point; none where there was nothing to estimate from."""
