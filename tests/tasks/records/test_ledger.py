"""What a ledger comes to, and how two differ: recomputed by counting."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.records.ledger import Samples, compare_rows, compare_steps, digest_rows, make_ledger
from tests.processes import run_python

entries = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=40)
rows = st.lists(st.integers(0, 12), max_size=30)


def parts(found):
    """Yield the entries as a ledger has them, five at a time; row r has r + 1 tokens."""
    for first in range(0, len(found), 5):
        some = np.array(found[first : first + 5], dtype=np.int32)
        yield Samples(np.zeros(len(some), dtype=np.int32), some[:, 0], some[:, 1], some[:, 1] + 1)


def test_a_ledger_comes_to_its_samples_tokens_rows_and_steps_in_any_order():
    found = [(2, 7), (1, 3), (1, 0), (2, 3)]
    ledger = make_ledger(parts(found))
    assert (ledger.num_samples, ledger.num_tokens) == (4, 8 + 4 + 1 + 4)
    assert make_ledger(parts(found[::-1])) == ledger


@given(mine=entries, its=entries)
@settings(max_examples=60, deadline=None)
def test_other_steps_are_counted_as_often_as_they_occur_and_the_first_is_named(mine, its):
    is_same = make_ledger(parts(mine)).steps_digest == make_ledger(parts(its)).steps_digest
    excess = (Counter(mine) - Counter(its)) + (Counter(its) - Counter(mine))
    assert is_same == (not excess)
    if excess:
        other = compare_steps(parts(mine), parts(its))
        assert other.num_samples == excess.total()
        assert (other.first_step, other.first_row) == min(excess)


@given(used=rows, expected=rows)
@settings(max_examples=60, deadline=None)
def test_each_expected_row_has_to_be_there_once(used, expected):
    def some():
        return (np.array(expected[first : first + 4]) for first in range(0, len(expected), 4))

    found = [(1, row) for row in used]
    is_same = make_ledger(parts(found)).rows_digest == digest_rows(some())
    assert is_same == (sorted(used) == sorted(set(expected)))
    other = compare_rows(parts(found), some())
    assert other.num_expected == len(set(expected))
    assert other.num_left_out == len(set(expected) - set(used))
    assert other.num_repeated == sum(count > 1 for count in Counter(used).values())
    assert other.num_foreign == len(set(used) - set(expected))


_MILLION = """
import sys
from pathlib import Path
import numpy as np
from benchmarks.growth.finished import outputs_of, write_finished, write_ledger
from benchmarks.growth.parts import resident_mib
from tasks.gates import comparability

folder, num_rows = Path.cwd(), 1_000_000
write_finished(folder, num_rows=1_000, epochs=1)
np.save(folder / "slices/0-1000/row_ids.npy", np.arange(num_rows))
np.save(folder / "slices/0-1000/offsets.npy", 9 * np.arange(num_rows + 1))
places, rows = np.arange(num_rows, dtype=np.int32), np.random.default_rng(1).permutation(num_rows).astype(np.int32)
for cell in (1, 2):
    # Within a step the rows stand in another order.
    shown = rows if cell == 1 else rows.reshape(-1, 16)[:, ::-1].ravel()
    write_ledger(
        folder / f"runs/{cell}proc/segments/0-1000-epoch-1",
        rank=places % cell, step=1 + places // 16, row_id=shown, num_tokens=np.full_like(places, 8),
    )
del places, rows, shown
outputs = outputs_of(folder)
Path("/proc/self/clear_refs").write_text("5")
before = resident_mib("VmRSS")
found = [comparability.check_rows_per_step(outputs, "2proc")]
found += [comparability.check_every_sample_once(outputs, cell) for cell in outputs.runs]
tokens = [comparability.check_equal_tokens(outputs, cell).numbers for cell in outputs.runs]
totals = [one["tokens"] for one in tokens]
print(*(one.outcome for one in found), *totals, tokens[0]["expected"], resident_mib("VmHWM") - before)
"""


def test_ledgers_of_a_million_samples_are_compared_in_the_memory_of_a_few(project, tmp_path):
    *found, mib = run_python("-c", _MILLION, folder=tmp_path, PYTHONPATH=str(project)).stdout.split()
    assert found == ["passed", "passed", "passed", "8000000", "8000000", "8000000"]
    assert float(mib) < 40, mib  # the two ledgers are 31 MiB, read whole and sorted they took 77
