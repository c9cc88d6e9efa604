"""data/slices/: the rows of every range and the held-out ones, as arrays."""

from typing import ClassVar

from pydantic import Field

from tasks.records.facts import SliceFacts
from tasks.records.stage_file import StageFile


class SliceManifest(SliceFacts, StageFile):
    """data/slices/<start>-<end>/manifest.json"""

    NAME: ClassVar[str] = "manifest.json"

    class_names: list[str] = Field(default_factory=list)
    """The classes that rows may have, in the order of their numbers; empty where rows have none."""
    files: dict[str, str] = Field(default_factory=dict)
    """Name of an array -> its sha256."""


class SlicesManifest(StageFile):
    """data/slices/manifest.json: which slices there are, and what their tokens are of."""

    NAME: ClassVar[str] = "manifest.json"

    tokenizer_digest: str | None = None
    """sha256 over the tokenizer's files; null for images."""
    vocab_size: int | None
    """Rows of the model's embedding; null for images."""
    eos_token_id: int | None
    """The token that closes a row; null for images."""
    workload: str
    """The ML problem that they were made for."""
    class_names: list[str] = Field(default_factory=list)
    """The classes of all rows, in the order of their numbers; empty where rows have none."""
    slices: dict[str, SliceFacts]
    """Range -> what is in it, the held-out rows among them."""
    heldout: str
    """The range that no cell trains on."""
