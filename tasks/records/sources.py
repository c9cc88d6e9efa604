"""manifest.json of data/raw and data/base_model: what has been downloaded."""

from typing import Any, ClassVar

from tasks.records.facts import BaseModelFacts, DatasetFacts
from tasks.records.stage_file import StageFile

ROWS = "rows.parquet"
"""The rows of a data set, beside their manifest."""
HELDOUT = "heldout"
"""The folder beside them of held-out rows with a source of their own, as a data set of its own."""


class RawManifest(DatasetFacts, StageFile):
    """data/raw/manifest.json: the rows, up to the last one that is asked for."""

    NAME: ClassVar[str] = "manifest.json"

    kind: str
    """builtin, hub or path."""
    quarantined: dict[str, int] = {}
    """Rows that are left out of every slice, by their fault."""
    num_cut_rows: int = 0
    """Rows that were cut to 1,000,000 characters."""
    add_special_tokens: bool = True
    """Whether a text has what the tokenizer puts around it; of an instruction the prompt does."""
    class_names: list[str] = []
    """The classes of the rows, in the order of their numbers; empty where rows have none."""
    image_size: int | None = None
    """Images only: pixels of a side."""
    template: str | None = None
    """Instructions only: the text that makes a prompt of each; null for the tokenizer's own."""
    source_digest: str | None = None
    """sha256 of the local source; null for any other."""
    rows_sha256: str = ""
    """sha256 of rows.parquet, which is often one file with its store and with DVC's copy of it."""


class StoredManifest(StageFile):
    """manifest.json in .work/download/: the first rows of a data set, at least as many as were asked for."""

    NAME: ClassVar[str] = "manifest.json"

    num_rows: int
    """Rows that are there."""
    license: str | None = None
    """As the data set's card on the Hub names it; null where that is not known."""
    languages: list[str] = []
    """Likewise; empty where they are not known."""
    config: str | None = None
    """Which of the configs of its source it is; null where that has none."""
    class_names: list[str] = []
    """Images only: the classes, in the order of their numbers."""
    identity: dict[str, Any]
    """Everything that the rows depend on, apart from how many of them are asked for."""
    files: dict[str, str]
    """Name -> sha256."""


class BaseModelManifest(BaseModelFacts, StageFile):
    """data/base_model/manifest.json: the model from which every cell starts."""

    NAME: ClassVar[str] = "manifest.json"

    kind: str
    """builtin, hub or path."""
    class_names: list[str] = []
    """Images only: the classes that it tells apart."""
    files: dict[str, str] = {}
    """Name of a file of the folder -> its sha256."""
