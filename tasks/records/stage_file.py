"""What every JSON file is that one stage writes and others read: one class, which names, writes and reads it."""

from collections.abc import Set
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from tasks.process.failure import DataError
from tasks.records.facts import Record
from training.process.files import write_json

Content = TypeVar("Content")


class StageFile(Record):
    """A JSON file of a stage; keys of a version that knew more are passed over, and a missing one is refused."""

    NAME: ClassVar[str]
    """Its name in the folder that dvc.yaml gives it."""
    BESIDE: ClassVar[tuple[str, ...]] = ()
    """Names of files that are written and read with it."""

    file_version: Literal[1] = 1
    """Counts up in a class whose fields mean something else than before; a file of another version is refused."""

    def write(self, place: Path) -> None:
        """Write the file, whole or not at all. `place`: its path, or the folder that it stands in."""
        write_json(self.path_in(place), self.model_dump(mode="json"))

    def content(self, *, exclude: Set[str] = frozenset()) -> dict[str, Any]:
        """Return what is in it, without what is excluded, and without the version of the file itself."""
        return self.model_dump(exclude={"file_version", *exclude})

    @classmethod
    def read(cls, place: Path) -> Self:
        """Return what the file at that place holds; raises DataError in one line if it is missing or damaged."""
        return read_checked(cls.path_in(place), TypeAdapter(cls))

    @classmethod
    def read_if_there(cls, place: Path) -> Self | None:
        """Return the same, or None where there is no such file."""
        return cls.read(place) if cls.path_in(place).exists() else None

    @classmethod
    def path_in(cls, place: Path) -> Path:
        """Return the path of the file in a folder, or the path itself where that is given."""
        return place if place.suffix == ".json" else place / cls.NAME


def read_checked(path: Path, kind: TypeAdapter[Content]) -> Content:
    """Return what the JSON file holds; raises DataError in one line if it is missing or not of this kind.

    Keys of a version that knew more are passed over, wherever in it they stand.
    """
    try:
        return kind.validate_json(path.read_bytes(), extra="ignore")
    except (OSError, ValidationError) as error:
        raise damaged(path, error) from None


def damaged(path: Path, error: Exception) -> DataError:
    """Return the error for a file that cannot be used, with the reason in one line."""
    if isinstance(error, ValidationError):
        first: dict[str, Any] = dict(error.errors(include_url=False)[0])
        reason = f"{'.'.join(str(part) for part in first['loc']) or 'top level'}: {first['msg']}"
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = f"{type(error).__name__}: {error}"
    remedy = "delete it and run" if path.exists() else "run"
    return DataError(f"{path}: {reason}; {remedy} `dvc repro` to make it anew")
