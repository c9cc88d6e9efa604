"""Headers and archives that claim more than they hold: refused at once, in bounded memory."""

import io
import json
import os
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.conftest import PROJECT
from tests.hostile.payloads import saved, with_entries
from tests.processes import run_python
from tests.tiny import make_tiny_model

MAX_SECONDS = 20.0
"""Of the processor: 5 on the machine of docs/faults.md. One that goes off takes minutes, or all memory."""
MAX_MIB = 500.0
GIGABYTE = 10**9

FOLDERS = ["config of 1 GB", "a billion layers"]
"""Of models."""
BOMBS = [
    *FOLDERS, "ledger of a report", "ledger of a checkpoint", "array of 2^60 rows", "zeros.pt", "overlapping.pt",
    "pickle.pt", "stride.pt", "line.jsonl", "page.parquet", "shared.parquet", "understated.parquet",
]  # fmt: skip


def _sparse(file, num_bytes, start=b""):
    """Write a file of that size that takes no room on the disk."""
    file.write_bytes(start)
    os.truncate(file, num_bytes)


def _models(folder):
    whole = make_tiny_model(folder / "whole")
    files = {file.name: file.read_bytes() for file in whole.iterdir() if file.name != "manifest.json"}
    for file in whole.iterdir():
        file.unlink()
    whole.rmdir()
    for name in FOLDERS:
        (folder / name).mkdir()
        for file, content in files.items():
            (folder / name / file).write_bytes(content)
    _sparse(folder / "config of 1 GB" / "config.json", GIGABYTE, b"{")
    config = json.loads(files["config.json"])
    (folder / "a billion layers" / "config.json").write_text(
        json.dumps(config | {"num_hidden_layers": 10**9, "layer_types": None})
    )


def _archives(folder):
    zeros = saved({"weight": torch.zeros(1)})
    (folder / "zeros.pt").write_bytes(
        with_entries(zeros, {"data/0": bytes(GIGABYTE // 4)}, compression=zipfile.ZIP_DEFLATED)
    )
    (folder / "pickle.pt").write_bytes(with_entries(zeros, {"data.pkl": b"\x80\x02" + b"]" * 8_000_000 + b"."}))
    (folder / "stride.pt").write_bytes(saved({"weight": torch.zeros(1).expand(2**40)}))
    (folder / "overlapping.pt").write_bytes(_overlapping(2_000))
    for name in ("report", "checkpoint"):
        (folder / f"ledger of a {name}").mkdir()
        _sparse(folder / f"ledger of a {name}" / "ledger.int32", GIGABYTE + 8)
    (folder / "ledger of a report" / "receipt.json").write_text(
        '{"files": {"ledger.int32": {"sha256": "0", "num_bytes": 1}}}'
    )
    (folder / "array of 2^60 rows").mkdir()
    for name in ("tokens", "offsets", "row_ids"):
        (folder / "array of 2^60 rows" / f"{name}.npy").write_bytes(_npy_header(2**60))


def _npy_header(num_rows):
    stream = io.BytesIO()
    header = {"descr": "<i8", "fortran_order": False, "shape": (num_rows,)}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + b"\0" * 64


def _overlapping(times):
    """Return a zip whose entries are all the same megabyte."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data/0", bytes(2**20))
        (entry,) = archive.filelist
        archive.filelist *= times
        assert entry.header_offset == 0
    return stream.getvalue()


def _data_sets(folder):
    _sparse(folder / "line.jsonl", GIGABYTE, b'{"text": "')
    pq.write_table(pa.table({"text": ["x" * (GIGABYTE // 10)]}), folder / "page.parquet", compression="zstd")
    # A kilobyte each, and the rows are 10 GB: all of them name the one value of the column's dictionary.
    one = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int32()), pa.array(["x" * (GIGABYTE // 100)]))
    pq.write_table(pa.table({"text": one}), folder / "shared.parquet", compression="zstd", store_schema=False)
    (folder / "understated.parquet").write_bytes(_understated(GIGABYTE * 3 // 2))


def _understated(num_bytes):
    """Return a parquet file of one page of that size, whose footer says that it is 100 bytes."""
    stream = io.BytesIO()
    pq.write_table(
        pa.table({"text": ["x" * num_bytes]}), stream, compression="zstd", use_dictionary=False, write_statistics=False
    )
    raw = stream.getvalue()
    start = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    footer = raw[start:]
    stated = pq.read_metadata(io.BytesIO(raw)).row_group(0).column(0).total_uncompressed_size
    assert _varint(stated) in footer
    return raw[:start] + footer.replace(_varint(stated), _varint(100, length=len(_varint(stated))))


def _varint(value, *, length=1):
    """Return the number as Thrift's compact protocol writes it, in at least that many bytes."""
    rest, out = 2 * value, []
    while rest or len(out) < length:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*out[:-1], out[-1] & 0x7F])


@pytest.fixture(scope="module")
def met(tmp_path_factory):
    """How each bomb was met, by its name."""
    folder = tmp_path_factory.mktemp("bombs")
    for make in (_models, _archives, _data_sets):
        make(folder)
    workspace = tmp_path_factory.mktemp("project")
    done = run_python("-m", "tests.hostile.bombs", folder, folder=workspace, PYTHONPATH=str(PROJECT))
    assert done.returncode == 0, done.stderr[-3000:]
    return {answer["bomb"]: answer for answer in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_at_once_in_bounded_memory(bomb, met):
    assert set(met) == set(BOMBS)
    answer = met[bomb]
    assert answer["kind"] in ("DataError", "BadCheckpointError", "ConfigurationError"), answer
    assert answer["code"] == (2 if bomb == "page.parquet" else 3), answer
    assert answer["seconds"] < MAX_SECONDS, answer
    assert answer["mib"] < MAX_MIB, answer
    assert len(answer["said"]) < 700, answer
