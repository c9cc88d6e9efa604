"""A virtual environment whose `python` has imported torch already, for tests in which starting is not what is tested.

Stages, torchrun and ranks run the same code with the same arguments, environment, folder, files and signals as started
anew, and others see them so in /proc; what is saved is the import of torch and transformers, which takes longer than
all else of a small comparison. Whatever is killed is started without it, since it is the child of another process here.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tasks.process.logs import switch_off_telemetry
from tests.warm.imports import HEAVY

_PROJECT = Path(__file__).resolve().parents[2]
_REAL = Path(sys.executable)
_LAUNCHER = Path(__file__).with_name("launcher.py")
_NO_MATTER = (
    "PYTHON", "PYTHONBREAKPOINT", "PYTHONDONTWRITEBYTECODE", "HF_HUB_DISABLE_TELEMETRY", "HF_XET_TELEMETRY_ENABLED",
    "HF_TOKEN",
)  # fmt: skip
"""Of no consequence here: the first is the Makefile's, the second is left behind by Ray where a test connects to it,
every stage sets the telemetry's itself, and the token is looked for when it is used."""
_ROOM_FOR_WORDS, _ROOM_FOR_ENVIRONMENT = "." * 20_000, "." * 60_000
"""What a process shows in /proc is written over what the server was started with, and cannot be longer."""


@contextlib.contextmanager
def warm_environment(given=None, start=subprocess.Popen, *, modules=HEAVY):
    """Yield the environment's folder `bin`; processes that it was asked for end with it.

    `given` stands in the environment when the server starts, for what a process looks at only then. Processes run where
    `start` starts the server: on this host, or on one of two (tests/integration/hosts.py). They have imported
    `modules`.
    """
    # The path of a socket has a hundred characters at most.
    with tempfile.TemporaryDirectory(prefix="warm-", dir="/tmp") as folder:
        path = Path(folder) / "socket"
        server = start(
            [str(_REAL), "-m", "tests.warm.server", str(path), _ROOM_FOR_WORDS], cwd=_PROJECT, text=True,
            stdout=subprocess.PIPE,
            env={
                **os.environ, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE", "ROOM": _ROOM_FOR_ENVIRONMENT,
                "MODULES": " ".join(modules), **(given or {}),
            },
        )  # fmt: skip
        try:
            assert server.stdout.readline() == "ready\n"
            yield _write(Path(folder) / "environment", path, {**os.environ, **(given or {})})
        finally:
            server.kill()
            server.communicate()


def main():
    """Have one environment for several processes: the file that is named tells of its folder, until the input ends."""
    switch_off_telemetry()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with warm_environment() as programs:
        file = Path(sys.argv[1])
        file.with_suffix(".new").write_text(str(programs))
        file.with_suffix(".new").rename(file)
        sys.stdin.read()


def _write(folder, socket, environment):
    """Write what a virtual environment consists of; return its folder `bin`."""
    shutil.copytree(_REAL.parent, folder / "bin", symlinks=True, ignore=shutil.ignore_patterns("python*"))
    shutil.copy(_REAL.parents[1] / "pyvenv.cfg", folder)
    for name in ("lib", "lib64"):
        (folder / name).symlink_to(_REAL.parents[1] / "lib")
    inherited = {name: value for name, value in environment.items() if name.startswith(("PYTHON", "HF_"))}
    for name in _NO_MATTER:
        inherited.pop(name, None)
    if inherited.get("HF_HUB_OFFLINE") == "1":
        inherited.pop("HF_HUB_OFFLINE")
    python = folder / "bin" / "python"
    facts = f"SOCKET, REAL, INHERITED, NO_MATTER = {str(socket)!r}, {str(_REAL)!r}, {inherited!r}, {_NO_MATTER!r}"
    python.write_text(f"#!{_REAL} -ISE\n{facts}\n{_LAUNCHER.read_text()}")
    python.chmod(0o755)
    return folder / "bin"


if __name__ == "__main__":
    main()
