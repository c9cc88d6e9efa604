"""`make test`: which failures are run once more, and what becomes of them."""

from pathlib import Path

import pytest

from tests.__main__ import run_parts

pytestmark = pytest.mark.slow

_STEADY = "def test_passes(): pass\n"
_FAILS = "def test_fails(): assert False\n"
_ONCE = """
from pathlib import Path
def test_fails_once():
    seen = Path(__file__).with_name("seen")
    was_seen = seen.exists()
    seen.touch()
    assert was_seen
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, project, monkeypatch):
    """A folder of other tests as the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(project))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run_on(text):
    Path("test_0.py").write_text(text, encoding="utf-8")
    return run_parts([()])


def test_what_passes_only_when_run_once_more_is_named_unsteady(capfd):
    assert run_on(_ONCE + _STEADY) == 0
    assert "UNSTEADY, passed only when run once more: test_0.py::test_" in capfd.readouterr().out


def test_what_fails_twice_has_failed(capfd):
    assert run_on(_STEADY + _FAILS) == 1
    out = capfd.readouterr().out
    assert "Once more, with nothing beside: test_0.py::test_fails" in out
    assert "UNSTEADY" not in out
