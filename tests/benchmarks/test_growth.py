"""The benchmark of growth: its fit by hand, its made-up comparison, and every part at a small size."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.growth import __main__ as growth
from benchmarks.growth.parts import PARTS, rows_file
from training.data.batches import open_slice


@pytest.mark.slow
def test_every_part_runs_at_a_small_size_and_is_measured_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    growth.ready(tmp_path, 100)
    for name in growth._BY_ROWS[:-1]:
        PARTS[name](tmp_path, 100)()
    assert len(open_slice(tmp_path / "slice")) == 100
    assert list(tmp_path.glob("checkpoints/segments/*/receipt.json"))
    (steps,) = tmp_path.glob("checkpoints/segments/*/steps.jsonl")
    lines = [json.loads(line) for line in steps.read_text().splitlines()]
    PARTS["log_points"](tmp_path, 7)()
    told = [json.loads(line) for line in (tmp_path / "log_points.jsonl").read_text().splitlines()]
    # 100 rows, 16 per step; both are lines of a real training.
    assert ([line["step"] for line in lines], [line["step"] for line in told]) == ([*range(1, 8)], [*range(1, 8)])
    assert set(lines[0]) == set(told[0])
    assert len(lines[0]) == 18
    points = {"report_epochs": {2: growth.measure("report_epochs", tmp_path, 2)}}
    assert set(points["report_epochs"][2]) == {"seconds", "memory_mib"}
    assert (tmp_path / "reports" / "index.html").is_file()


@pytest.mark.slow
def test_a_file_of_a_hundred_megabytes_is_placed_in_the_memory_of_a_small_one(tmp_path: Path) -> None:
    memory = {}
    for num_rows in (1_000, 100_000):
        work = tmp_path / str(num_rows)
        work.mkdir()
        # One row group, as whoever saves a table at once writes it.
        texts = pa.table({"text": [random.randbytes(500).hex() for _ in range(num_rows)]})
        pq.write_table(texts, rows_file(work), row_group_size=num_rows, compression="none", use_dictionary=False)
        memory[num_rows] = growth.measure("download", work, num_rows)["memory_mib"]
    # A decoder keeps 20 to 35 MiB for itself, by the machine, of 100,000 rows as of 300,000. Read whole, they took 420.
    assert memory[100_000] < memory[1_000] + 96, memory
