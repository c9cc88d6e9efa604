"""data/fingerprint/: what decides numbers, and what a run begins with."""

from typing import Any, ClassVar

from tasks.records.facts import MachineFacts, Record
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
    """Package that computes the update of one of its cells -> version."""
