"""The tokens of texts, by the tokenizer of the base model."""

import hashlib
import importlib.metadata
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.data.row_tokenizer import RowTokenizer, load_tokenizer
from tasks.data.sources.row_policy import CUT, QUARANTINED, Row, describe_faults, read_rows
from tasks.params import Params
from tasks.params.choices import has_labels
from tasks.params.sources import RowRange
from tasks.process.failure import DataError
from tasks.process.progress import show_progress
from tasks.records.manifests import ROWS, RawManifest

_FORMAT = 2
"""Counts up when the same rows and tokenizer would give another array than before."""
SPECIAL, CUT_RESPONSE = "special", "cut_response"


def open_rows(params: Params, *, raw: Path, base_model: Path) -> "Texts":
    """Return the texts of the data set, with the base model's tokenizer."""
    about, is_labelled = RawManifest.read(raw), has_labels(params.workload)
    tokenizer = load_tokenizer(base_model, is_framed=about.add_special_tokens, has_labels=is_labelled)
    class_names = about.class_names if is_labelled else []
    return Texts(rows=raw / ROWS, tokenizer=tokenizer, workload=params.workload, class_names=class_names)


@dataclass(frozen=True, kw_only=True)
class Texts:
    """The texts of a data set, whose slices become tokens."""

    rows: Path
    """The parquet file."""
    tokenizer: RowTokenizer
    workload: str
    """The ML problem."""
    class_names: Sequence[str] = ()
    """The classes that rows may have, in the order of their numbers; none where rows have no class."""

    @property
    def identity(self) -> dict[str, Any]:
        """What the arrays depend on, beside the rows."""
        return {
            "format": _FORMAT,
            "is_framed": self.tokenizer.is_framed,
            "tokenizer": self.tokenizer.digest,
            "vocab_size": self.tokenizer.vocab_size,
            "workload": self.workload,
            **{name: importlib.metadata.version(name) for name in ("tokenizers", "transformers")},
            **({"class_names": list(self.class_names)} if self.class_names else {}),
        }

    @property
    def about(self) -> dict[str, Any]:
        """What the list of all slices says of them."""
        tokenizer = self.tokenizer
        return {
            "tokenizer_digest": tokenizer.digest,
            "vocab_size": tokenizer.vocab_size,
            "eos_token_id": tokenizer.eos_token_id,
        }

    def digest_rows(self, part: RowRange) -> str:
        """Return the sha256 of what the slice's rows say, their faults and classes."""
        digest = hashlib.sha256()
        for _, batch in read_rows(self.rows, part.start, part.end):
            for row in batch:
                digest.update(row.content + b"\0" + (row.fault or "").encode() + b"\0")
                if row.label is not None:
                    digest.update(row.label.encode() + b"\0")
        return digest.hexdigest()

    def write(self, part: RowRange, folder: Path) -> dict[str, Any]:
        """Write tokens.npy, offsets.npy, row_ids.npy and what else rows have; return what the manifest says.

        Memory holds one batch of rows at a time.
        """
        # Not lists, which take several times as much per row.
        lengths, row_ids, more = array("q"), array("q"), defaultdict[str, "array[int]"](lambda: array("q"))
        counts: Counter[str] = Counter()
        with (
            (folder / "tokens.npy").open("wb") as file,
            show_progress(f"slice {part}: rows", part.end - part.start) as advance,
        ):
            _write_header(file, 0)
            for first, batch in read_rows(self.rows, part.start, part.end):
                kept = {row_id: row for row_id, row in enumerate(batch, start=first) if row.fault not in QUARANTINED}
                encoded = self.encode(kept)
                file.write(b"".join(tokens.tobytes() for tokens in encoded.tokens.values()))
                lengths.extend(map(len, encoded.tokens.values()))
                row_ids.extend(encoded.tokens)
                for name, numbers in encoded.more.items():
                    more[name].extend(numbers)
                counts.update(row.fault for row in batch if row.fault is not None)
                counts.update(encoded.counts)
                advance(len(batch))
            # numpy pads the header so that a longer length fits in the same place.
            file.seek(0)
            _write_header(file, sum(lengths))
        quarantined = {fault: counts[fault] for fault in QUARANTINED if counts[fault]}
        if not row_ids:
            why = describe_faults(quarantined)
            raise DataError(f"slice {part}: every row of it is left out as no good text ({why}); choose other rows")
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        np.save(folder / "offsets.npy", offsets)
        for name, column in {"row_ids": row_ids, **more}.items():
            np.save(folder / f"{name}.npy", np.frombuffer(column, dtype=np.int64))
        return {
            "num_rows": len(lengths),
            "num_tokens": sum(lengths),
            "quarantined": quarantined,
            "num_cut_rows": counts[CUT],
            "num_special_token_rows": counts[SPECIAL],
            "num_cut_responses": counts[CUT_RESPONSE],
            "class_names": list(self.class_names),
        }

    def encode(self, rows: Mapping[int, Row]) -> "Encoded":
        """Return what the rows become; those that are left out then are not among them."""
        texts = [row.text for row in rows.values()]
        numbers = {name: number for number, name in enumerate(self.class_names)}
        more = {"labels": [numbers[row.label] for row in rows.values() if row.label is not None]} if numbers else {}
        special = sum(map(self.tokenizer.has_special_token, texts))
        tokens = dict(zip(rows, self.tokenizer.rows(texts, row_ids=list(rows)), strict=True))
        return Encoded(tokens, more, Counter({SPECIAL: special}))


@dataclass(frozen=True)
class Encoded:
    """Rows as they are written."""

    tokens: Mapping[int, np.ndarray]
    """Row id -> (length,) int32, in the order of the data set."""
    more: Mapping[str, Sequence[int]]
    """Name of an array -> one number for each of them."""
    counts: Mapping[str, int]
    """How many rows name a special token, or are left out, by their fault."""


def _write_header(file: Any, num_tokens: int) -> None:
    header = {"descr": "<i4", "fortran_order": False, "shape": (num_tokens,)}
    np.lib.format.write_array_header_1_0(file, header)
