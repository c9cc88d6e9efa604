"""Stage `slice`: the tokens of every range and of the held-out rows, once, as arrays that can be memory-mapped.

A finished slice stays in .work/slices/ under the digest of what went into it: one more range tokenises only that one.
"""

import hashlib
import importlib.metadata
import logging
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tasks.data.linked_slices import link_slices
from tasks.data.slicing.tokens import RowTokenizer, load_tokenizer
from tasks.data.sources.parquet import read_groups
from tasks.data.sources.row_policy import CUT, QUARANTINED, Row, describe_faults
from tasks.inputs.damage import require_digest
from tasks.inputs.snapshot import Snapshot, make_parser
from tasks.params import Params
from tasks.params.choices import has_labels
from tasks.params.sources import RowRange
from tasks.process.failure import ConfigurationError, DataError, exit_with_one_line
from tasks.process.progress import show_progress
from tasks.records.slices import SliceManifest, SlicesManifest
from tasks.records.sources import ROWS, RawManifest
from tasks.store.kept import fill_folder, is_kept
from training.process.files import digest_file, digest_json
from training.registry import has_file, import_file

_log = logging.getLogger(__name__)

_STORE = Path(".work/slices")
_FORMAT = 2
"""Counts up when the same rows and tokenizer would give another array than before."""
_BATCH_ROWS = 1_000
_SPECIAL = "special"


def check_extent(params: Params, num_rows: int) -> None:
    """Raise ConfigurationError if a slice overlaps another or ends beyond the data set's `num_rows` rows."""
    parts = [*params.ranges, params.heldout]
    for index, part in enumerate(parts):
        if part.end > num_rows:
            raise ConfigurationError(
                f"params.yaml: ranges and heldout: {part} ends beyond the {num_rows} rows of {params.dataset.source}; "
                f"allowed: 0-{num_rows}"
            )
        for other in parts[:index]:
            if part.overlaps(other):
                raise ConfigurationError(
                    f"params.yaml: ranges and heldout: {part} overlaps {other}; allowed: slices without a common row"
                )


def store_slice(
    part: RowRange, rows: Path, tokenizer: RowTokenizer, *, workload: str, class_names: Sequence[str] = ()
) -> Path:
    """Return the folder of the slice's arrays and manifest, tokenised only if it is not stored whole yet.

    `class_names`: the classes that rows may have, in the order of their numbers; none where rows have no class.
    Raises DataError if no row of it is left to train on.
    """
    key = digest_json(
        {
            "format": _FORMAT,
            "range": str(part),
            "rows": _digest_rows(rows, part),
            "tokenizer": tokenizer.digest,
            "vocab_size": tokenizer.vocab_size,
            "workload": workload,
            "tokenizers": importlib.metadata.version("tokenizers"),
            **({"class_names": list(class_names)} if class_names else {}),
        }
    )
    folder = _STORE / key[:32]
    if is_kept(folder):
        _log.info("slice %s: reused, its rows and the tokenizer are unchanged", part)
        return folder
    with fill_folder(folder) as partial:
        manifest = _tokenise(part, rows, tokenizer, class_names, partial)
    _log.info("slice %s: tokenised %d rows, %d tokens", part, manifest.num_rows, manifest.num_tokens)
    if manifest.quarantined:
        _log.warning("slice %s: left out %s", part, describe_faults(manifest.quarantined))
    return folder


def _tokenise(
    part: RowRange, rows: Path, tokenizer: RowTokenizer, class_names: Sequence[str], folder: Path
) -> SliceManifest:
    """Write tokens.npy, offsets.npy, row_ids.npy and manifest.json, with classes labels.npy.

    Memory holds one batch of rows at a time.
    """
    # Not lists, which take several times as much per row.
    lengths, row_ids, labels = array("q"), array("q"), array("q")
    numbers = {name: number for number, name in enumerate(class_names)}
    counts: Counter[str] = Counter()
    with (
        (folder / "tokens.npy").open("wb") as file,
        show_progress(f"slice {part}: rows", part.end - part.start) as advance,
    ):
        _write_header(file, 0)
        for first, batch in _read_rows(rows, part):
            kept = {row_id: row for row_id, row in enumerate(batch, start=first) if row.fault not in QUARANTINED}
            texts = [row.text for row in kept.values()]
            arrays = tokenizer.rows(texts, row_ids=list(kept))
            file.write(b"".join(array.tobytes() for array in arrays))
            lengths.extend(len(array) for array in arrays)
            row_ids.extend(kept)
            labels.extend(numbers[row.label] for row in kept.values() if row.label is not None)
            counts.update(row.fault for row in batch if row.fault is not None)
            counts[_SPECIAL] += sum(map(tokenizer.has_special_token, texts))
            advance(len(batch))
        # numpy pads the header so that a longer length fits in the same place.
        file.seek(0)
        _write_header(file, sum(lengths))
    if not row_ids:
        raise DataError(f"slice {part}: every row of it is left out as no good text; choose other rows")
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / "row_ids.npy", np.frombuffer(row_ids, dtype=np.int64))
    if class_names:
        np.save(folder / "labels.npy", np.frombuffer(labels, dtype=np.int64))
    files = {file.name: digest_file(file) for file in sorted(folder.glob("*.npy"))}
    manifest = SliceManifest(
        range=str(part),
        num_rows=len(lengths),
        num_tokens=sum(lengths),
        quarantined={fault: counts[fault] for fault in QUARANTINED if counts[fault]},
        num_cut_rows=counts[CUT],
        num_special_token_rows=counts[_SPECIAL],
        class_names=list(class_names),
        digest=digest_json(files),
        files=files,
    )
    manifest.write(folder)
    return manifest


def _write_header(file: Any, num_tokens: int) -> None:
    header = {"descr": "<i4", "fortran_order": False, "shape": (num_tokens,)}
    np.lib.format.write_array_header_1_0(file, header)


def _read_rows(rows: Path, part: RowRange) -> Iterator[tuple[int, list[Row]]]:
    """Yield (first row id, rows) in batches, reading only the row groups that the slice touches."""
    with pq.ParquetFile(rows) as file:
        columns = [name for name in Row._fields if name in file.schema_arrow.names]
        for first, table in read_groups(file, part.start, part.end, columns=columns):
            found = [Row(*values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True)]
            for offset in range(0, len(found), _BATCH_ROWS):
                yield first + offset, found[offset : offset + _BATCH_ROWS]


def _digest_rows(rows: Path, part: RowRange) -> str:
    digest = hashlib.sha256()
    for _, batch in _read_rows(rows, part):
        for row in batch:
            digest.update(row.text.encode() + b"\0" + (row.fault or "").encode() + b"\0")
            if row.label is not None:
                digest.update(row.label.encode() + b"\0")
    return digest.hexdigest()


def _main() -> None:
    arguments = make_parser("slice", __doc__, "raw", "base-model", "slices").parse_args()
    snapshot, params = Snapshot.begin(arguments.inputs)
    require_digest(arguments.raw / ROWS, RawManifest.read(arguments.raw).rows_sha256)
    if has_file("tasks.data.slicing", params.workload):
        own = import_file("tasks.data.slicing", params.workload)
        own.write_slices(params, raw=arguments.raw, base_model=arguments.base_model, slices=arguments.slices)
    else:
        write_slices(params, raw=arguments.raw, base_model=arguments.base_model, slices=arguments.slices)
    snapshot.require_unchanged()


def write_slices(params: Params, *, raw: Path, base_model: Path, slices: Path) -> None:
    """Fill `slices` with the tokens of every range and of the held-out rows, as hard links into the store."""
    rows = raw / ROWS
    check_extent(params, pq.read_metadata(rows).num_rows)
    tokenizer = load_tokenizer(base_model, has_labels=has_labels(params.workload))
    class_names: list[str] = []
    if tokenizer.has_labels:
        class_names = RawManifest.read(raw).class_names
    parts = [*params.ranges, params.heldout]
    stored = {
        str(part): store_slice(part, rows, tokenizer, workload=params.workload, class_names=class_names)
        for part in parts
    }
    SlicesManifest(
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        eos_token_id=tokenizer.eos_token_id,
        workload=params.workload,
        class_names=class_names,
        slices=link_slices(stored, slices),
        heldout=str(params.heldout),
    ).write(slices)


if __name__ == "__main__":
    exit_with_one_line(_main, name="slice")
