"""A scratch DVC project with the stage names of the real one and commands that take no time, for the real flow."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from ruamel.yaml import YAML

PROJECT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
_CELLS = "{1proc: {strategy: single, world_size: 1}, 2proc: {strategy: ddp, world_size: 2}}"


@dataclass(frozen=True)
class ToyProject:
    """A copy of tests/flows/toy with the params.yaml, prefect.toml and prefect.yaml of the checkout."""

    folder: Path

    def environment(self, **extra):
        """Return an environment in which no Prefect setting of the caller is left."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        return {**clean, "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]), **extra}

    def run(self, *words, **extra):
        """Run a program of the environment here to its end."""
        return subprocess.run(
            words, cwd=self.folder, env=self.environment(**extra), capture_output=True, text=True, timeout=300
        )

    def flow(self, **extra):
        """Run `python -m flows` to its end."""
        return self.run("python", "-m", "flows", **extra)

    def repro(self, *targets):
        """Bring these stages up to date without a flow, by default all."""
        ran = self.run("python", "-m", "dvc", "repro", "--quiet", *targets)
        assert ran.returncode == 0, ran.stderr

    @contextlib.contextmanager
    def running(self, module, **extra):
        """Start `python -m MODULE`; its output goes to `output.txt`; whatever of it is left in the end is killed."""
        with (self.folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module], cwd=self.folder, env=self.environment(**extra), stdout=output,
                stderr=output,
            )  # fmt: skip
        started = []
        try:
            yield process
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                started = psutil.Process(process.pid).children(recursive=True)
            for left in (process, *started):
                with contextlib.suppress(psutil.NoSuchProcess):
                    left.kill()
            process.wait()

    def output(self):
        """Return what the process of `running` has written so far."""
        return (self.folder / "output.txt").read_text()

    def give_database(self, database):
        """Have a server of this project begin with a copy of the database."""
        (self.folder / ".prefect").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(database, self.folder / ".prefect" / "prefect.db")

    def executed(self):
        """Return the stages whose commands ran since the last call, in order."""
        file = self.folder / "executed.txt"
        lines = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def change(self, file, old, new):
        """Replace the one occurrence of `old` in the file."""
        path = self.folder / file
        text = path.read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        path.write_text(text.replace(old, new))


def make_toy_project(folder):
    """Write the toy project into a new folder, a DVC and git repository."""
    shutil.copytree(Path(__file__).parent / "toy", folder)
    # Under its own name DVC would take it for a part of the project around it.
    (folder / "pipeline.yaml").rename(folder / "dvc.yaml")
    for name in ("params.yaml", "prefect.toml", "prefect.yaml", ".dvc/config"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, folder / name)
    (folder / "flows").symlink_to(PROJECT / "flows")
    (folder / ".dvcignore").write_text("flows\n.prefect\n.work\n")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    # What the tests change, whatever comparison is the active one.
    yaml, file = YAML(), folder / "params.yaml"
    params = yaml.load(file)
    params["train"].update(epochs=1, seed=1)
    params["cells"] = YAML(typ="safe").load(_CELLS)
    yaml.dump(params, file)
    toy = ToyProject(folder)
    toy.change("prefect.toml", "4200", str(free_port()))
    return toy


def free_port():
    """Return a port of the loopback device that nobody has right now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_for(is_so, *, seconds, what):
    """Return once it is so; fails with `what` after that many seconds."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)


def living(processes):
    """Return those that still run; one that has ended and that init has not collected yet does not."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one = psutil.Process(process) if isinstance(process, int) else process
            found += [process] * (one.is_running() and one.status() != psutil.STATUS_ZOMBIE)
    return found
