"""Secrets of the environment are in no file, log, report, database or command line, however a run ends."""

import sqlite3

import pytest

from tests.canaries import SECRETS, WORD, CommandLines, files_with_a_secret

pytestmark = pytest.mark.slow

RAISING = """
import os
def _main():
    secrets = {name: os.environ[name] for name in ("HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "HTTPS_PROXY")}
    import logging
    logging.getLogger("httpx").warning("sent %s", secrets)
    raise RuntimeError(f"the server refused {secrets}") from ValueError(secrets["HF_TOKEN"])
"""


def test_a_run_to_the_end_leaves_no_secret_anywhere(finished):
    """The run of the fixture had every secret in its environment."""
    assert (finished.folder / "mlflow.db").stat().st_size > 0
    assert list((finished.folder / ".prefect").rglob("*.db"))
    assert list((finished.folder / ".work" / "runs").rglob("stderr.log"))
    assert files_with_a_secret(finished.folder.parent) == []
    looks, *found = (finished.folder.parent / "command-lines.txt").read_text().splitlines()
    assert int(looks) > 20
    assert found == []


def test_an_exception_with_secrets_in_its_words_leaves_none(workspace):
    stage = workspace.folder / "tasks" / "slice.py"
    source = stage.read_text()
    stage.write_text(source.replace('\nif __name__ == "__main__":', f'{RAISING}\nif __name__ == "__main__":'))
    with CommandLines() as command_lines:
        done = workspace.run("python", "-m", "flows", ok=False, **SECRETS)
    assert done.returncode != 0
    assert "RuntimeError: the server refused" in done.stdout
    assert WORD not in done.stdout
    assert "hf_***" in done.stdout or "***" in done.stdout
    assert files_with_a_secret(workspace.folder) == []
    assert (command_lines.found, command_lines.num_looks > 5) == (set(), True)
    # The failure itself did arrive in Prefect's log.
    (database,) = (workspace.folder / ".prefect").rglob("prefect.db")
    with sqlite3.connect(database) as connection:
        lines = [line for (line,) in connection.execute("select message from log")]
    assert any("the server refused" in line for line in lines)
