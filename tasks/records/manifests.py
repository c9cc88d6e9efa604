"""What `fingerprint`, `download` and `slice` say of the machine, of what was downloaded and of the rows."""

from typing import Any, ClassVar

from tasks.records.facts import BaseModelFacts, DatasetFacts, MachineFacts, Record, SliceFacts
from tasks.records.stage_file import StageFile


class MachineFile(MachineFacts, StageFile):
    """What this machine is."""

    NAME: ClassVar[str] = "machine.json"

    num_gpus: int
    """GPUs that a process started here may use."""
    architecture: str
    """Of the processor, as the operating system names it."""


class SourceDigest(Record):
    """What a source on this machine held when the run began."""

    digest: str | None
    """sha256 of its content; null where there is none to read."""


class SourcesFile(StageFile):
    """The sources under `path:`; null for any other."""

    NAME: ClassVar[str] = "sources.json"

    model: SourceDigest | None
    """The base model's."""
    dataset: SourceDigest | None
    """The data set's."""
    heldout: SourceDigest | None = None
    """The held-out rows', where they have one of their own."""
    template: SourceDigest | None = None
    """The file's that says how instructions become prompts."""


class TrialFile(StageFile):
    """Which session of measuring this is."""

    NAME: ClassVar[str] = "trial.json"

    trial: str | None
    """What it was called when it was asked for; null before there was any."""


class InputsFile(StageFile):
    """stages/<stage>.json: what one stage may work on in this run."""

    params: dict[str, Any]
    """Key of params.yaml -> value, with defaults."""
    code: dict[str, str]
    """Source file -> sha256."""
    deps: list[str]
    """Files and folders that it depends on."""
    packages: dict[str, str] = {}
    """Package that computes the update of one of its cells, or reads or makes its rows and tokens -> version."""
    environment: dict[str, str] = {}
    """Variable that what the stage keeps depends on -> value."""


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
    made_of: dict[str, Any] = {}
    """Key of params.yaml -> value, of those that say where rows and base model come from."""


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


class SliceManifest(SliceFacts, StageFile):
    """data/slices/<start>-<end>/manifest.json"""

    NAME: ClassVar[str] = "manifest.json"

    class_names: list[str] = []
    """The classes that rows may have, in the order of their numbers; empty where rows have none."""
    files: dict[str, str] = {}
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
    class_names: list[str] = []
    """The classes of all rows, in the order of their numbers; empty where rows have none."""
    slices: dict[str, SliceFacts]
    """Range -> what is in it, the held-out rows among them."""
    heldout: str
    """The range that no cell trains on."""
    made_of: dict[str, Any] = {}
    """That of the rows."""
