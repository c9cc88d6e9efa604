"""The texts of a data set, read in order and only as far as asked, in batches, whatever they come from."""

import errno
import glob
import itertools
import logging
import re
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.data.builtin.corpus import read_corpus_by_package, read_instructions
from tasks.data.sources.row_policy import MAX_CHARACTERS
from tasks.params.local_files import CSV, IN_GIT_LFS, PACKED, SAVED, find_builder, list_saved_files
from tasks.params.prompts import COLUMNS, CONTEXT
from tasks.params.sources import DatasetParams
from tasks.process.failure import ConfigurationError, DataError, ResourceError, StageError
from tasks.services.hub_calls import bound_requests, find_status_code, is_caused_by, is_transient, name_error

BATCH_ROWS = 1_000
_CACHE = Path(".work/download/datasets")
"""Where `datasets` notes what it read here; a home may be closed."""
_MAX_BATCH_CHARACTERS = 32_000_000
_BEGINNINGS = {
    b"\x1f\x8b": "is compressed by gzip: give it a name that ends in .gz",
    b"\xff\xfe": "is UTF-16: save it as UTF-8",
    b"\xfe\xff": "is UTF-16: save it as UTF-8",
    b"PAR1": "is parquet: give it a name that ends in .parquet",
    b"PK\x03\x04": "is a zip archive: unpack it",
    b"<!DOCTYPE": "is a web page: download the file itself",
    IN_GIT_LFS: "is what Git LFS has in its place: type git lfs pull",
}
_MOST_OF_BEGINNING = 32
_UNNAMED = "__index_level_"
"""What pandas calls the first fields of rows that have more fields than there are names."""
_EMPTY = "BatchSize must be greater than 0"
"""What the reader says of a parquet file without rows; of others it only stops."""


def read_source_values(
    dataset: DatasetParams, num_rows: int, *, commit: str | None, notes: dict[str, str]
) -> Generator[list[Sequence[Any]], None, None]:
    """Yield batches, of bounded size, of what the first `num_rows` rows hold, unchecked, in the order of the source.

    Text, perhaps with its class, or instruction, context and response. Fewer come if the source has fewer. Files behind
    the last one are not looked at. `notes` gets `config`: which of the configs of a Hub data set or a folder is read.

    Raises DataError if the source cannot be read or has no such column, ResourceError if the Hub is away.
    """
    rows: Iterator[Sequence[Any]] = _read_rows(dataset, commit, notes)
    if dataset.kind == "builtin":
        number = 1 if dataset.label is None else 2
        rows = ((text, package)[:number] for package, text in read_corpus_by_package())
        rows = read_instructions() if dataset.holds_instructions else rows
    batch: list[Sequence[Any]] = []
    num_characters = 0
    for values in itertools.islice(rows, num_rows):
        batch.append(values)
        num_characters += sum(len(part) for part in values if isinstance(part, str))
        if len(batch) == BATCH_ROWS or num_characters > _MAX_BATCH_CHARACTERS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _choose_columns(
    dataset: DatasetParams, there: Collection[str], rows: Any, features: Mapping[Any, Any]
) -> list[str | None]:
    """Return which of the columns are read: text and class, or instruction, context (None: there is none) and response.

    Raises DataError if one is not there, or of several types.
    """
    chosen = list[str | None]()
    names = [name for name in there if not name.startswith(_UNNAMED)]
    if rows.info.builder_name == "csv" and len(names) < len(there):
        raise DataError(
            f"{dataset.place}: rows have more fields than the first line has names ({names}); allowed: "
            "commas between fields, and quotes around texts that hold one"
        )
    for key, column in dataset.named_columns.items():
        candidates = COLUMNS[key] if column is None else (column,)
        chosen.append(next((name for name in candidates if name in there), None))
        if chosen[-1] is None and (column is not None or key != CONTEXT):
            wanted, listed = " or ".join(map(repr, candidates)), ", ".join(map(repr, sorted(there)))
            raise DataError(
                f"{dataset.place}: no column {wanted}; the columns there are: {listed or 'none'}; set dataset.{key}"
            )
        # As JSON, texts of an array are in quotes, and "0" is 0; the first text of lines that is none is found later.
        if type(features.get(chosen[-1])).__name__ == "Json" and (key == "label" or rows.features is None):
            raise DataError(f"{dataset.place}: column {chosen[-1]!r} has values of several types; allowed: one type")
    return chosen


def _read_rows(dataset: DatasetParams, commit: str | None, notes: dict[str, str]) -> Iterator[Sequence[Any]]:
    """Yield the columns of a data set of the Hub, or of local files, as they stream in; null where a row has none."""
    place = dataset.place + (f" at {commit}" if commit else "")
    try:
        for split in dataset.split.split("+"):
            rows, features = _open(dataset, commit, split, notes)
            columns = list[str | None]()
            # The data set's own names for its numbers; -1 is none.
            names = getattr(features.get(dataset.label), "names", None)
            for batch in rows.iter(batch_size=BATCH_ROWS):
                columns = columns or _choose_columns(dataset, batch, rows, features)
                size = len(next(iter(batch.values())))
                parts = [batch.get(column) or [None] * size for column in columns]
                if names:
                    is_known = range(len(names)).__contains__
                    parts[1] = [names[label] if is_known(label) else None for label in parts[1]]
                # A text of megabytes is cut to one character more than is kept.
                for row in zip(*parts, strict=True):
                    yield [value[: MAX_CHARACTERS + 1] if isinstance(value, str) else value for value in row]
    except Exception as error:  # whatever the reader of the files' format raises
        if is_caused_by(error, MemoryError):
            raise MemoryError from None
        # A file without a row.
        if not isinstance(error, StopIteration) and _EMPTY not in str(error):
            raise _translate_error(error, dataset, place) from None


def _open(dataset: DatasetParams, commit: str | None, split: str, notes: dict[str, str]) -> tuple[Any, dict[Any, Any]]:
    """Return the rows of a split, of which nothing is read yet, and what is known of the types of its columns."""
    import datasets

    datasets.disable_progress_bars()
    bound_requests()
    # Their warnings show addresses with signatures, and errors twice.
    for name in ("huggingface_hub", "datasets"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    source, what = Path(dataset.location), dataset.location
    options: dict[str, Any] = {"name": dataset.config, "split": split}
    if dataset.kind == "hub":
        options["revision"] = commit
    else:
        options["cache_dir"] = str(_CACHE)
        files = glob.escape(str(source.resolve()))
        if (source / SAVED).is_file():
            saved = [f"{files}/{glob.escape(name)}" for name in list_saved_files(source)]
            what, options = "arrow", {**options, "data_files": saved}
        elif not source.is_dir():
            what, own = find_builder(source)
            options |= {"data_files": files, **own}
    rows = datasets.load_dataset(what, streaming=True, **options)
    if rows.info.builder_name == "csv" and dataset.kind == "path" and source.is_dir():
        rows = datasets.load_dataset(what, streaming=True, **options, **CSV)
    if "data_files" not in options:
        notes["config"] = rows.info.config_name
    features = rows.features
    if features is None and rows.info.builder_name == "json":
        # A file that is one array says only where it is read what is in it.
        first = next(iter(rows.with_format("arrow").iter(1)))
        features = datasets.Features.from_arrow_schema(first.schema)
    return rows, features or {}


def _translate_error(error: Exception, dataset: DatasetParams, place: str) -> StageError:
    """Return the one line for what went wrong while a data set was read."""
    if isinstance(error, StageError):
        return error
    if dataset.kind == "hub" and is_transient(error):
        return ResourceError(
            f"{place}: the Hub could not be reached ({name_error(error)}); check the network and run again"
        )
    if find_status_code(error) is not None:
        return DataError(f"{place}: the Hub refused ({name_error(error)}); accept its terms there, or set HF_TOKEN")
    if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS):
        remedy = "set HF_HOME to a folder of yours" if dataset.kind == "hub" else "make it readable (chmod -R u+rX)"
        return ResourceError(f"{place}: {error.filename}: {error.strerror}; {remedy}")
    message = " ".join(str(error).split())[:300]
    if message.startswith(("Bad split", "Unknown split")):
        return ConfigurationError(f"params.yaml: dataset.split: got {dataset.split!r}; {message}")
    if match := re.search(r"(?:available configs|not found\. Available): \[(.*?)\]", message):
        return ConfigurationError(f"params.yaml: dataset.config: got {dataset.config}; allowed: {match[1]}")
    if "Multiple matches for FieldRef" in message:
        return DataError(f"{place}: several columns have one name; allowed: each name once; rename them in the source")
    remedy = "choose another revision, such as refs/convert/parquet" if dataset.kind == "hub" else "write it anew"
    why = _explain_content(error, dataset) or f"cannot be read ({type(error).__name__}: {message}); {remedy}"
    return DataError(f"{place}: {why}")


def _explain_content(error: Exception, dataset: DatasetParams) -> str | None:
    """Return what a local file is that it is not taken for, and what to do; None where that is not seen."""
    own = Path(dataset.location)
    if dataset.kind != "path" or not own.is_file() or own.suffix in PACKED:
        return None
    with own.open("rb") as file:
        start = file.read(_MOST_OF_BEGINNING)
        for beginning, why in _BEGINNINGS.items():
            if start.startswith(beginning):
                return why
        file.seek(0)
        for number, line in enumerate(file if isinstance(error, UnicodeDecodeError) else (), start=1):
            try:
                line.decode()
            except UnicodeDecodeError as wrong:
                return f"line {number}, byte {wrong.start} is not UTF-8; save the file as UTF-8"
    return None
