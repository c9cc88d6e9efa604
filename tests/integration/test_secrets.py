"""Secrets of the environment are in no file, log, report, database or command line."""

import pytest

from tests.canaries import files_with_a_secret

pytestmark = pytest.mark.slow


def test_a_run_to_the_end_leaves_no_secret_anywhere(finished):
    """The run of the fixture had every secret in its environment."""
    assert (finished.folder / "mlflow.db").stat().st_size > 0
    assert list((finished.folder / ".prefect").rglob("*.db"))
    assert list((finished.folder / ".work" / "runs").rglob("stderr.log"))
    assert files_with_a_secret(finished.folder.parent) == []
    looks, *found = (finished.folder.parent / "command-lines.txt").read_text().splitlines()
    assert int(looks) > 20
    assert found == []
