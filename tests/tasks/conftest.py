"""The built-in model, and the comparison written by hand with what the report makes of it, made once for all tests."""

import itertools

import pytest

from tasks.data.builtin.corpus import read_corpus
from tasks.data.builtin.tiny_models import write_tiny_qwen2
from tasks.reporting.collect import collect_results
from tests.tasks.reporting.comparison import edit_segment, outputs_of, write_comparison
from tests.tasks.reporting.measured import write_measurement
from tests.tiny import with_manifest

NUM_ROWS = 300
"""Fewer than the product trains its tokenizer on, to save seconds: enough for the whole vocabulary."""

_OTHERS = {"parameter_checksums": ["05" * 8, "bb"]}
"""Of a segment whose ranks differ."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty project folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def builtin_rows():
    """The first rows of the built-in corpus."""
    return list(itertools.islice(read_corpus(), NUM_ROWS))


@pytest.fixture(scope="session")
def tiny_qwen2(tmp_path_factory, builtin_rows):
    """A folder with the built-in model, as data/base_model has it. Read only."""
    folder = tmp_path_factory.mktemp("tiny_qwen2")
    write_tiny_qwen2(folder, builtin_rows)
    return with_manifest(folder, num_parameters=0, model_type="qwen2")


@pytest.fixture
def params(tmp_path):
    """What params.yaml holds; the comparison's files are in tmp_path."""
    return write_comparison(tmp_path)


@pytest.fixture
def read(tmp_path, params):
    """Return a function that reads these files as the report does."""
    return lambda: outputs_of(tmp_path, params)


@pytest.fixture
def collect(read):
    """Return a function that gives the results of these files."""
    return lambda: collect_results(read())


def _collect(folder, *, is_measured, **changes):
    params = write_comparison(folder)
    if is_measured:
        write_measurement(folder)
    if changes:
        edit_segment(folder, "2proc", "8-16", **changes)
    return collect_results(outputs_of(folder, params))


@pytest.fixture(scope="session")
def clean_results(tmp_path_factory):
    """The results of the comparison as written, where every gate passes."""
    return _collect(tmp_path_factory.mktemp("clean"), is_measured=False)


@pytest.fixture(scope="session")
def measured_results(tmp_path_factory):
    """The results of the comparison as written, with a measurement."""
    return _collect(tmp_path_factory.mktemp("measured"), is_measured=True)


@pytest.fixture(scope="session")
def withheld_measured_results(tmp_path_factory):
    """Both."""
    return _collect(tmp_path_factory.mktemp("withheld-measured"), is_measured=True, **_OTHERS)
