"""tests/gpu: what cannot be shown without a card."""

from collections import Counter
from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parents[2] / "tests" / "gpu"


class _Outcomes:
    """Counts what pytest says of each test, and leaves the counts as they are known."""

    def __init__(self, day):
        self._day, self._number = day, Counter()
        self._failed = []

    def pytest_runtest_logreport(self, report):
        """Count a test once: where it was called, or where it failed or was skipped before."""
        if report.when != "call" and report.outcome == "passed":
            return
        self._number[report.outcome] += 1
        if report.failed:
            self._failed.append(report.nodeid)
        counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(self._number.items()))
        lines = [f"tests/gpu: {counts}", *(f"failed: {name}" for name in self._failed)]
        self._day.write(outcomes=dict(self._number), failed=self._failed, lines=lines)


def run(day):
    """Run them. RuntimeError unless they pass."""
    words = [str(_FOLDER), "-q", *(["-k", "softmax"] if day.is_short else [])]
    code = pytest.main(words, plugins=[_Outcomes(day)])
    if code:
        raise RuntimeError(f"pytest ended with {code!r}")
