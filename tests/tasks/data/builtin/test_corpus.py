import importlib.metadata
import itertools
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tasks.data.builtin import corpus
from tasks.params.sources import BUILTIN_MAX_ROWS

FUNCTION_WORDS = set(
    re.findall(r"\w+", "the a an of to in is are be and or for with that this it as by on if not when")
)
HASH_OF_ROWS = """
import hashlib, itertools
from tasks.data.builtin.corpus import read_corpus
print(hashlib.sha256("\\0".join(itertools.islice(read_corpus(), 60)).encode()).hexdigest())
"""


def first_rows(count: int) -> list[str]:
    return list(itertools.islice(corpus.read_corpus(), count))


@pytest.fixture(scope="module")
def rows() -> list[str]:
    """The first 600 rows."""
    return first_rows(600)


def closest_pair(rows: list[str]) -> tuple[float, str, str]:
    """Return the largest Jaccard similarity of the sets of three-word sequences of any two rows, and the two rows."""
    sequences = []
    holders: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        words = re.findall(r"\w+", row.lower())
        own = {" ".join(words[start : start + 3]) for start in range(len(words) - 2)}
        sequences.append(own)
        for sequence in own:
            holders[sequence].append(index)
    shared = Counter(pair for found in holders.values() for pair in itertools.combinations(found, 2))
    scores = (
        (count / len(sequences[one] | sequences[other]), rows[one], rows[other])
        for (one, other), count in shared.items()
    )
    return max(scores, default=(0.0, "", ""))


def faults_of(row: str) -> list[str]:
    """Return why a row would be no English prose, measured otherwise than the corpus measures it."""
    words = row.split()
    function_words = sum(word.lower().strip(".,") in FUNCTION_WORDS for word in words)
    checks = {
        "length": corpus.MIN_CHARACTERS <= len(row) <= corpus.MAX_CHARACTERS,
        "white space": row == row.strip() and not re.search(r"[ \t]{2}|\n{3}|[ \t]\n|(?<!\n)\n(?!\n)|[\t\r\f\v]", row),
        "code or markup": not re.search(r">>>|```|`|https?:|::|\[\d+\]_|:\w+:|\*\*|__init__|[{}\\]", row),
        "letters": sum(character.isalpha() or character.isspace() for character in row) > 0.9 * len(row),
        "function words": function_words > 0.1 * len(words),
        "words of a plain length": 3.0 < sum(map(len, words)) / len(words) < 9.0,
        "sentences": all(re.search(r"[.!?][\"')]?$", paragraph) for paragraph in row.split("\n\n")),
        "capitals": all(paragraph[0].isupper() for paragraph in row.split("\n\n")),
    }
    return [name for name, holds in checks.items() if not holds]


def test_asking_for_more_rows_changes_no_earlier_one(rows: list[str]) -> None:
    assert first_rows(100) == rows[:100]


def test_rows_depend_neither_on_the_hash_seed_nor_on_the_current_folder(tmp_path: Path, project: Path) -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", HASH_OF_ROWS],
            cwd=folder,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(project)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, folder in (("1", project), ("2", tmp_path))
    }
    assert len(digests) == 1


def test_rows_do_not_depend_on_the_order_in_which_files_are_listed(
    rows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = importlib.metadata.files
    monkeypatch.setattr(corpus.importlib.metadata, "files", lambda name: list(reversed(listed(name) or [])))
    assert first_rows(60) == rows[:60]


def test_reading_stops_once_enough_rows_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    docstrings_of = corpus.parse_documented
    monkeypatch.setattr(corpus, "parse_documented", lambda source: read.append(source) or docstrings_of(source))
    first_rows(len(corpus.PACKAGES))
    assert len(read) < 15 * len(corpus.PACKAGES)


def test_rows_come_from_direct_dependencies_alone(project: Path) -> None:
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=!~ ]", line)[0] for line in declared}
    assert set(corpus.PACKAGES) <= names
    assert corpus.read_package_versions() == {name: importlib.metadata.version(name) for name in corpus.PACKAGES}


def test_every_row_is_english_prose(rows: list[str]) -> None:
    assert {row: faults for row in rows if (faults := faults_of(row))} == {}


def test_no_two_rows_are_nearly_the_same(rows: list[str]) -> None:
    score, one, other = closest_pair(rows)
    assert score < 0.3, (one, other)
    # The check can fail: a row with two words replaced is found.
    words = rows[0].split()
    words[5] = words[-3] = "another"
    assert closest_pair([*rows[:50], " ".join(words)])[0] > 0.6


def test_rows_are_many_and_varied(rows: list[str]) -> None:
    assert len({row[:40] for row in rows}) > 0.97 * len(rows)
    words = Counter(word for row in rows for word in re.findall(r"[a-z]+", row.lower()))
    assert len(words) > 4_000
    assert 300 < sum(map(len, rows)) / len(rows) < 600


@pytest.mark.slow
def test_as_many_rows_as_promised_are_there_and_all_are_prose_and_different(rows: list[str]) -> None:
    every = first_rows(BUILTIN_MAX_ROWS)
    assert len(every) == BUILTIN_MAX_ROWS
    assert every[: len(rows)] == rows
    assert {row: faults for row in every if (faults := faults_of(row))} == {}
    score, one, other = closest_pair(every)
    assert score < 0.3, (one, other)
