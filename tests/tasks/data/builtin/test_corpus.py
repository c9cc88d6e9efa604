import importlib.metadata
import itertools
import re
from collections import Counter, defaultdict

import pytest

from tasks.data.builtin import corpus
from tasks.params.sources import BUILTIN_MAX_ROWS
from tests.processes import run_python

HASH_OF_ROWS = """
import hashlib, itertools
from tasks.data.builtin.corpus import read_corpus
print(hashlib.sha256("\\0".join(itertools.islice(read_corpus(), 60)).encode()).hexdigest())
"""


def first_rows(count):
    return list(itertools.islice(corpus.read_corpus(), count))


@pytest.fixture(scope="module")
def rows():
    """The first 200 rows."""
    return first_rows(200)


def closest_pair(rows):
    """Return the largest Jaccard similarity of the sets of three-word sequences of any two rows, and the two rows."""
    words = [re.findall(r"\w+", row.lower()) for row in rows]
    sequences = [{*zip(row, row[1:], row[2:], strict=False)} for row in words]
    holders = defaultdict(list)
    for index, own in enumerate(sequences):
        for sequence in own:
            holders[sequence].append(index)
    shared = Counter(pair for found in holders.values() for pair in itertools.combinations(found, 2))
    scores = (
        (count / len(sequences[one] | sequences[other]), rows[one], rows[other])
        for (one, other), count in shared.items()
    )
    return max(scores, default=(0.0, "", ""))


def test_rows_depend_neither_on_the_hash_seed_nor_on_the_current_folder(tmp_path, project):
    digests = {
        run_python("-c", HASH_OF_ROWS, folder=folder, PYTHONHASHSEED=seed).stdout
        for seed, folder in (("1", project), ("2", tmp_path))
    }
    assert len(digests) == 1


def test_rows_do_not_depend_on_the_order_in_which_files_are_listed(rows, monkeypatch):
    listed = importlib.metadata.files
    monkeypatch.setattr(corpus.importlib.metadata, "files", lambda name: list(reversed(listed(name) or [])))
    assert first_rows(60) == rows[:60]


def test_no_two_rows_are_nearly_the_same(rows):
    score, one, other = closest_pair(rows)
    assert score < 0.3, (one, other)
    # The check can fail: a row with two words replaced is found.
    words = rows[0].split()
    words[5] = words[-3] = "another"
    assert closest_pair([*rows[:50], " ".join(words)])[0] > 0.6


@pytest.mark.slow
def test_as_many_rows_as_promised_are_there_and_all_are_different(rows):
    every = first_rows(BUILTIN_MAX_ROWS)
    assert len(every) == BUILTIN_MAX_ROWS
    assert every[: len(rows)] == rows
    score, one, other = closest_pair(every)
    assert score < 0.3, (one, other)
