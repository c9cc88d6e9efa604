"""A warm environment: what runs in it does what it does when it is started anew."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.toy_project import living, wait_for

pytestmark = pytest.mark.slow

_SECONDS = 60.0
"""For what takes a moment: less than a stage waits that nobody has ended."""

_TOLD = """
import atexit, json, os, pathlib, sys
atexit.register(print, "at the end")
facts = {"folder": os.getcwd(), "words": sys.argv[1:], "said": os.environ["SAID"], "read": sys.stdin.read()}
seen = [pathlib.Path(f"/proc/self/{name}").read_text().split("\\0") for name in ("cmdline", "environ")]
facts |= {"seen": [word for word in seen[0] if word], "is in the environment": f"SAID={facts['said']}" in seen[1]}
print(json.dumps(facts | {"python": sys.executable, "is warm": "torch" in sys.modules}))
sys.exit(int(os.environ["SAID"]))
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a stage of its own."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").touch()
    (tmp_path / "tasks" / "told.py").write_text(_TOLD)
    (tmp_path / "tasks" / "waits.py").write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    return tmp_path


def _run(python, project, **environment):
    return subprocess.run(
        [python, "-m", "tasks.told", "a word", "--and", "another"],
        cwd=project, env={**os.environ, "SAID": "7", **environment}, input="given", capture_output=True, text=True,
    )  # fmt: skip


def test_a_stage_has_its_words_folder_environment_files_and_exit_code_and_has_torch_already(warm, project):
    cold, forked = _run(Path(sys.executable), project), _run(warm / "python", project)
    assert (forked.returncode, forked.stderr) == (cold.returncode, cold.stderr) == (7, "")
    changed = cold.stdout.replace(sys.executable, str(warm / "python")).replace('warm": false', 'warm": true')
    assert forked.stdout == changed
    assert '"seen": ["' in changed
    assert '"is in the environment": true' in changed
    assert forked.stdout.endswith("at the end\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_stage_and_who_started_it_is_told(warm, project, number):
    started = subprocess.Popen([warm / "python", "-m", "tasks.waits"], cwd=project, stdout=subprocess.PIPE, text=True)
    pid = int(started.stdout.readline())
    started.send_signal(number)
    # It held the other end, and nobody else.
    said, _ = started.communicate(timeout=_SECONDS)
    assert (said, started.returncode) == ("", -number)
    wait_for(lambda: not living([pid]), seconds=_SECONDS, what="it is gone")
