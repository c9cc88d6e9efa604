"""Comparisons on rows that stand in the current folder, for tests of the stages that read them."""

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tasks.download import download_rows
from tasks.params import Params, load_params
from tests.conftest import PROJECT


@functools.cache
def read_defaults() -> dict[str, Any]:
    """Return the embedded preset."""
    return load_params(PROJECT / "presets" / "embedded.yaml").model_dump(mode="json")


def ask(dataset: dict[str, Any] | None = None, **changes: Any) -> Params:
    """Return the default comparison of rows 0-20 and 20-30, with another data set."""
    changed = {**read_defaults(), "ranges": ["0-20"], "heldout": "20-30", **changes}
    return Params.model_validate(changed | ({} if dataset is None else {"dataset": dataset}))


def jsonl(lines: Iterable[Any], name: str = "rows.jsonl") -> dict[str, str]:
    """Write the lines; return the section `dataset`."""
    written = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    Path(name).write_bytes(b"".join(line + b"\n" for line in written))
    return {"source": f"path:{name}"}


def download(params: Params) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows and the manifest that the stage writes."""
    download_rows(params, Path("data/raw"), source_digest=None)
    manifest = json.loads(Path("data/raw/manifest.json").read_text())
    return pq.read_table("data/raw/rows.parquet").to_pylist(), manifest
