"""Rows that have arrived stay in .work/download/rows/, so that a re-run or a smaller question reads no source again."""

import contextlib
import hashlib
import importlib.metadata
import logging
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.data.builtin import corpus
from tasks.data.sources.row_policy import (
    CUT,
    QUARANTINED,
    Row,
    RowCheck,
    list_class_names,
    read_rows,
)
from tasks.data.sources.rows import read_source_values
from tasks.params.local_files import digest_source
from tasks.params.sources import DatasetParams, RowRange
from tasks.process.bounded_child import BoundedChild
from tasks.process.failure import ConfigurationError, DataError
from tasks.process.progress import show_progress
from tasks.records.manifests import ROWS, StoredManifest
from tasks.services import hub
from tasks.store.kept import fill_folder, link_file, read_kept
from training.process.files import digest_file, digest_json, replace_file

_log = logging.getLogger(__name__)

STORE = Path(".work/download/rows")
_FORMAT = 5
"""Counts up when rows are judged otherwise than before, or the file's layout changes."""
_SCHEMA = pa.schema(
    [
        pa.field("row_id", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("fault", pa.string()),
    ]
)
"""A quarantined row keeps its place, with an empty text and its fault; where classes are asked for, `label` follows, of
instructions `context` and `response`."""
_OF_INSTRUCTIONS = ("context", "response")
MAX_CLASSES = 10_000


class RepeatedRows:
    """Takes what each row holds, and counts."""

    def __init__(self, heldout: RowRange | None) -> None:
        """`heldout`: which rows are held out; None: those come later, from a source of their own."""
        self._heldout = range(0) if heldout is None else range(heldout.start, heldout.end)
        self._are_others_trained_on = True
        self._keys = array("q")
        """Of each row 63 bits of its digest, and last whether it is held out."""

    def begin_heldout(self, heldout: RowRange) -> None:
        """What comes from here on are rows of the source that the held-out ones have; others of it count nowhere."""
        self._heldout, self._are_others_trained_on = range(heldout.start, heldout.end), False

    def add(self, row_id: int, content: bytes) -> None:
        """Take a row that is not left out."""
        is_heldout = row_id in self._heldout
        if is_heldout or self._are_others_trained_on:
            key = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big", signed=True)
            self._keys.append(key >> 1 << 1 | is_heldout)

    def count(self) -> dict[str, int]:
        """Return `num_duplicate_rows` and `num_heldout_rows_seen` (tasks/data/sources/row_store.py)."""
        keys = np.sort(np.array(self._keys, dtype=np.int64))
        texts = keys >> 1
        # Of each text the first place, where it is one that is trained on if any is.
        first = np.flatnonzero(np.diff(texts, prepend=~texts[:1]))
        num_heldout = np.add.reduceat(keys & 1, first) if len(keys) else first
        num_seen = int(num_heldout[keys[first] & 1 == 0].sum())
        return {"num_duplicate_rows": len(keys) - len(first), "num_heldout_rows_seen": num_seen}


@dataclass(frozen=True)
class StoredRows:
    """The first rows of a data set in a parquet file, at least as many as were asked for."""

    file: Path
    about: StoredManifest

    @property
    def source_digest(self) -> str | None:
        """sha256 of the local source that the rows were read from; None for other sources."""
        return self.about.identity.get("digest")


def keep_rows(
    store: Path,
    dataset: DatasetParams,
    *,
    identify: Callable[[], dict[str, Any]],
    read: Callable[[Path], dict[str, Any]],
    num_rows: int = 0,
) -> StoredRows:
    """Return rows of the store, of which `read` writes the file, and returns facts, unless so many are there already.

    `identify`: everything that they depend on, apart from how many of them are asked for. Raises DataError if that has
    become another.
    """
    identity = identify()
    folder = store / digest_json(identity)[:32]
    kept = read_kept(folder, StoredManifest)
    if kept is not None and kept.num_rows >= num_rows:
        _log.info("%s: reused the %d rows in %s", dataset.source, kept.num_rows, folder)
    else:
        with fill_folder(folder) as new:
            facts = read(new / ROWS)
            # The store is named after what the source held.
            if identify() != identity:
                raise DataError(f"{dataset.place}: changed while it was read; run again")
            kept = StoredManifest(**facts, identity=identity, files={ROWS: digest_file(new / ROWS)})
            kept.write(new)
        _log.info("%s: read %d rows into %s", dataset.source, kept.num_rows, folder)
    return StoredRows(folder / ROWS, kept)


def store_rows(
    dataset: DatasetParams, num_rows: int, *, commit: str | None = None, child: BoundedChild | None = None
) -> StoredRows:
    """Return the data set's first `num_rows` rows or more, read from the source only if they are not stored yet.

    Raises ConfigurationError if the data set has fewer rows, DataError if too many of them are no good texts. `child`:
    the process that reads them.
    """

    def read(target: Path) -> dict[str, Any]:
        if dataset.kind == "builtin":
            config = _read(dataset, num_rows, commit, target)
        else:
            with contextlib.nullcontext(child) if child else BoundedChild() as reader:
                config = reader.run(_read, dataset, num_rows, commit, target, what=dataset.place, is_endless=True)
        said = (None, []) if commit is None else hub.read_card(dataset.location, commit, kind="dataset")
        return {"num_rows": num_rows, "license": said[0], "languages": said[1], "config": config}

    identify = partial(_make_identity, dataset, commit)
    return keep_rows(STORE, dataset, identify=identify, read=read, num_rows=num_rows)


def place_rows(stored: StoredRows, num_rows: int, *, repeated: RepeatedRows, target: Path) -> dict[str, Any]:
    """Have exactly the first `num_rows` rows at `target`, by a hard link if those are all, and return facts on them.

    The facts: `num_rows`, `digest` (sha256 of what the rows say, and of their classes), `quarantined` (how many rows of
    each fault are left out) and `num_cut_rows`; where rows have classes, `class_names` in their order. `repeated` is
    told of all rows that are not left out.
    """
    digest = hashlib.sha256()
    faults: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    schema = pq.read_schema(stored.file)
    with contextlib.ExitStack() as opened:
        writer = None
        if num_rows < stored.about.num_rows:
            temporary = opened.enter_context(replace_file(target))
            writer = opened.enter_context(pq.ParquetWriter(temporary, schema, compression="zstd"))
        for first, rows in read_rows(stored.file, 0, num_rows):
            if writer is not None:
                writer.write_table(_make_table(first, rows, schema))
            for index, row in enumerate(rows, start=first):
                digest.update(row.content + b"\0")
                if row.label is not None:
                    digest.update(row.label.encode() + b"\0")
                    classes[row.label] += 1
                if row.fault is not None:
                    faults[row.fault] += 1
                if row.fault not in QUARANTINED:
                    repeated.add(index, row.wording)
    if num_rows == stored.about.num_rows:
        link_file(stored.file, target)
    return {
        "num_rows": num_rows,
        "digest": digest.hexdigest(),
        "quarantined": {fault: faults[fault] for fault in QUARANTINED if faults[fault]},
        "num_cut_rows": faults[CUT],
        **({"class_names": list_class_names(classes)} if "label" in schema.names else {}),
    }


def _read(dataset: DatasetParams, num_rows: int, commit: str | None, target: Path) -> str | None:
    """Write the rows; return which of the source's configs they are of."""
    notes: dict[str, str] = {}
    what, key = f"column {dataset.text_column!r}" + f", class {dataset.label!r}" * bool(dataset.label), "text_column"
    more: tuple[str, ...] = () if dataset.label is None else ("label",)
    if dataset.holds_instructions:
        what, key, more = "instruction or response", "instruction_column and dataset.response_column", _OF_INSTRUCTIONS
    check = RowCheck(f"{dataset.place}: {what}", key=key)
    schema = pa.schema([*_SCHEMA, *(pa.field(name, pa.string()) for name in more)])
    first = 0
    with (
        pq.ParquetWriter(target, schema, compression="zstd") as writer,
        show_progress(f"{dataset.source}: rows", num_rows) as advance,
        contextlib.closing(read_source_values(dataset, num_rows, commit=commit, notes=notes)) as batches,
    ):
        for values in batches:
            rows = check.take(values)
            writer.write_table(_make_table(first, rows, schema))
            first += len(values)
            advance(len(values))
    check.finish()
    if first < num_rows:
        raise ConfigurationError(
            f"params.yaml: ranges and heldout: they need {num_rows} rows, and {dataset.source} has {first}; "
            f"allowed: 0-{first}"
        )
    return notes.get("config")


def _make_table(first: int, rows: list[Row], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([{"row_id": index, **row._asdict()} for index, row in enumerate(rows, first)], schema)


def _make_identity(dataset: DatasetParams, commit: str | None) -> dict[str, Any]:
    identity: dict[str, Any] = {"format": _FORMAT, "source": dataset.source, "columns": dataset.named_columns}
    if dataset.kind == "builtin":
        files = sorted(Path(corpus.__file__).parent.glob("*.py"))
        identity["packages"] = corpus.read_package_versions()
        identity["code"] = {file.name: digest_file(file) for file in files}
    elif dataset.kind == "hub":
        # Not what reads it: what has arrived stays.
        identity |= {"commit": commit, "split": dataset.split, "config": dataset.config}
    else:
        identity |= {"digest": digest_source(Path(dataset.location)), "split": dataset.split, "config": dataset.config}
        identity["readers"] = {name: importlib.metadata.version(name) for name in ("datasets", "pandas", "pyarrow")}
    return identity
