"""The comparison written by hand, and what the report makes of it."""

from pathlib import Path
from typing import Any

import pytest

from tasks.reporting.collect import collect_results
from tasks.reporting.results import Results
from tests.tasks.reporting.comparison import edit_segment, outputs_of, write_comparison
from tests.tasks.reporting.measured import write_measurement


@pytest.fixture
def params(tmp_path: Path) -> dict[str, Any]:
    """What params.yaml holds; the comparison's files are in tmp_path."""
    return write_comparison(tmp_path)


@pytest.fixture(scope="session")
def clean_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of the comparison as written, where every gate passes."""
    folder = tmp_path_factory.mktemp("clean")
    return collect_results(outputs_of(folder, write_comparison(folder)))


@pytest.fixture(scope="session")
def withheld_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of the same comparison with ranks whose parameters differ."""
    folder = tmp_path_factory.mktemp("withheld")
    params = write_comparison(folder)
    edit_segment(folder, "2proc", "8-16", parameter_checksums=["05" * 8, "bb"])
    return collect_results(outputs_of(folder, params))


@pytest.fixture(scope="session")
def measured_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of the comparison as written, with a measurement."""
    folder = tmp_path_factory.mktemp("measured")
    params = write_comparison(folder)
    write_measurement(folder)
    return collect_results(outputs_of(folder, params))


@pytest.fixture(scope="session")
def withheld_measured_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results of the same comparison with ranks whose parameters differ."""
    folder = tmp_path_factory.mktemp("withheld-measured")
    params = write_comparison(folder)
    write_measurement(folder)
    edit_segment(folder, "2proc", "8-16", parameter_checksums=["05" * 8, "bb"])
    return collect_results(outputs_of(folder, params))
