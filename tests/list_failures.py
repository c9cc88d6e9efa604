"""A plugin of pytest: writes the name of every test that fails, and of every file that cannot be read as tests, a line
each, to the file that the environment names. Beside workers a name may come twice.
"""

import os

FAILED_FILE = "DDP_COMPARE_FAILED"
"""Variable of the environment: where to."""


def pytest_runtest_logreport(report):
    """Note a test whose set-up, call or tear-down failed, whose worker ended, or a file that cannot be imported."""
    if report.failed:
        with open(os.environ[FAILED_FILE], "a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


pytest_collectreport = pytest_runtest_logreport
