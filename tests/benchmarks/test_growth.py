"""The benchmark of growth: its fit by hand, its made-up comparison, and every part at a small size."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.growth import __main__ as growth
from benchmarks.growth.finished import outputs_of, write_finished
from benchmarks.growth.parts import PARTS, rows_file
from tasks.reporting.collect import collect_results
from training.data.batches import open_slice


def test_the_exponent_of_a_power_is_that_power() -> None:
    assert growth.exponent([1, 10, 100], [2.0, 20.0, 200.0]) == pytest.approx(1)
    assert growth.exponent([10, 100, 1_000], [3.0, 300.0, 30_000.0]) == pytest.approx(2)
    assert growth.exponent([1, 10], [5.0, 5.0]) == pytest.approx(0)
    with pytest.raises(ValueError, match="two or more"):
        growth.exponent([10, 10], [1.0, 2.0])


def test_the_made_up_comparison_passes_all_gates(tmp_path: Path) -> None:
    write_finished(tmp_path, num_rows=50, epochs=3)
    results = collect_results(outputs_of(tmp_path))
    assert [gate.name for gate in results.gates if gate.verdict == "failed"] == []
    assert [len(cell.epochs) for cell in results.cells] == [3, 3]
    assert not any(cell.is_withheld for cell in results.cells)


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
