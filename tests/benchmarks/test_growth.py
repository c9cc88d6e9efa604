"""What the benchmark of growth finds of one part, at a small size."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.growth import __main__ as growth
from benchmarks.growth.parts import rows_file


@pytest.mark.slow
def test_a_file_of_fifty_megabytes_is_placed_in_the_memory_of_a_small_one(tmp_path):
    memory = {}
    for num_rows in (1_000, 50_000):
        work = tmp_path / str(num_rows)
        work.mkdir()
        # One row group, as whoever saves a table at once writes it.
        texts = pa.table({"text": [random.randbytes(500).hex() for _ in range(num_rows)]})
        pq.write_table(texts, rows_file(work), row_group_size=num_rows, compression="none", use_dictionary=False)
        memory[num_rows] = growth.measure("download", work, num_rows)["memory_mib"]
    # A decoder keeps 20 to 35 MiB for itself, by the machine, of 100,000 rows as of 300,000. Whole, 100,000 took 420.
    assert memory[50_000] < memory[1_000] + 96, memory
