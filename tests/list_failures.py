"""A plugin of pytest: writes the name of every test that fails, and of every file that cannot be read as tests, a line
each, to the file that the environment names."""

import os
from pathlib import Path

import pytest

FAILED_FILE = "DDP_COMPARE_FAILED"
"""Variable of the environment: where to."""


def pytest_configure(config: pytest.Config) -> None:
    """Have failures listed by the process that hears of all of them, and not by workers as well."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Lister(Path(os.environ[FAILED_FILE])))


class _Lister:
    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test whose set-up, call or tear-down failed, or whose worker ended."""
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be imported: none of its tests is run, and beside workers the others are."""
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")
