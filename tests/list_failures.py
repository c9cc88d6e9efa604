"""A plugin of pytest: writes the name of every test that fails, a line each, to the file that the environment names."""

import os
from pathlib import Path

import pytest

FAILED_FILE = "DDP_COMPARE_FAILED"
"""Variable of the environment: where to."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test whose set-up, call or tear-down failed, or whose worker ended."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[FAILED_FILE]).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")
