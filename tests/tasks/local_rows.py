"""Comparisons on rows that stand in the current folder, for tests of the stages that read them."""

import functools
import json
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

import tasks.slice
from tasks.download import download_rows
from tasks.params import Params, load_params
from tests.conftest import PROJECT

RAW = Path("data/raw")
TEXTS = [f"Text {number} of the data set, in its own words." for number in range(40)]


@functools.cache
def read_defaults():
    """Return the embedded preset."""
    return load_params(PROJECT / "presets" / "embedded.yaml").model_dump(mode="json")


def ask(dataset=None, **changes):
    """Return the default comparison of rows 0-20 and 20-30, with another data set."""
    changed = {**read_defaults(), "ranges": ["0-20"], "heldout": "20-30", **changes}
    return Params.model_validate(changed | ({} if dataset is None else {"dataset": dataset}))


def jsonl(lines, name="rows.jsonl"):
    """Write the lines; return the section `dataset`."""
    written = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    Path(name).write_bytes(b"".join(line + b"\n" for line in written))
    return {"source": f"path:{name}"}


def write_columns(kind, columns):
    """Write a data set as `jsonl`, `csv` or `parquet`; return the section `dataset`."""
    if kind == "jsonl":
        return jsonl(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    if kind == "csv":
        csv.write_csv(pa.table(columns), "rows.csv")
        return {"source": "path:rows.csv"}
    pq.write_table(pa.table(columns), "rows.parquet", row_group_size=7)
    return {"source": "path:rows.parquet"}


def download(params):
    """Return the rows and the manifest that the stage writes."""
    download_rows(params, RAW, source_digest=None)
    return pq.read_table(RAW / "rows.parquet").to_pylist(), json.loads((RAW / "manifest.json").read_text())


def cut(params, base_model):
    """Run the stage `slice` on what was downloaded; return the manifest of the slices."""
    Path("params.yaml").write_text(params.model_dump_json())  # JSON is YAML
    told = ["slice", "--raw", str(RAW), "--base-model", str(base_model), "--slices", "data/slices"]
    with mock.patch("sys.argv", told):
        tasks.slice._main()
    return json.loads(Path("data/slices/manifest.json").read_text())
