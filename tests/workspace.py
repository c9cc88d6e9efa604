"""A scratch copy of the project in which a test may run, kill and edit what it likes."""

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

_COPIED = """
ddp_audit flows tasks training presets dvc.yaml params.yaml prefect.toml prefect.yaml
.dvcignore .gitignore data/README.md reports/README.md .dvc/config .dvc/.gitignore .dvc/plots
"""
_NOT_COPIED = shutil.ignore_patterns("*.pyc.*")
"""Compiled files that are being written; the others hold for the copies, which have the same date and size."""

_NOT_INHERITED = ("PREFECT_", "MLFLOW_", "HF_", "MAKE", "MFLAGS")

SMALL = YAML(typ="safe", pure=True).load("""
name: small
description: A small comparison for tests.
ranges: [0-64, 64-128]
heldout: 128-160
train.epochs: 1
train.global_batch_size: 8
train.micro_batch_size: 4
train.seq_len: 24
train.warmup_steps: 2
verify: {updates: 2}
measure.max_seconds: 1
measure.burn_in_seconds: 0
measure.block_seconds: 0.05
measure.waterfall_seconds: 0
measure.others_share: 1
measure.advice: false
measure.memory: false
""")
"""Changes to the default comparison that make it train in seconds: 2 ranges of 8 optimizer steps.

Tests run beside each other, so that no turn is quiet, and all count.
"""


def set_values(params, changes):
    """Set values in what params.yaml holds; a key names its place with dots, and None takes it away."""
    for key, value in changes.items():
        *path, last = key.split(".")
        section = params
        for part in path:
            section = section.setdefault(part, {})
        section[last] = copy.deepcopy(value)  # which others may share
        if value is None:
            del section[last]


class Workspace:
    """A project folder with DVC and git set up, whose commands run as a user would type them."""

    def __init__(self, folder, *, programs=None):
        """`programs`: the folder `bin` of the environment; by default that of the tests (tests/warm/environment.py)."""
        self.folder = folder
        self._programs = programs or Path(sys.executable).parent
        self._yaml = YAML(typ="rt", pure=True)

    @classmethod
    def create(cls, folder, *, project, changes, programs=None):
        """Copy the project's sources from `project` into the new `folder` and change its params.yaml."""
        folder.mkdir(parents=True)
        for name in _COPIED.split():
            source = project / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=_NOT_COPIED)
            else:
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copy(source, folder / name)
        subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
        for key in ("name", "email"):  # DVC's experiments are commits, too
            subprocess.run(["git", "config", f"user.{key}", "a@b"], cwd=folder, check=True)
        workspace = cls(folder, programs=programs)
        workspace.change(changes)
        workspace.commit("first")
        return workspace

    def commit(self, title, *paths):
        """Commit these paths, by default all that git does not ignore."""
        subprocess.run(["git", "add", *(paths or ("--all",))], cwd=self.folder, check=True)
        subprocess.run(["git", "commit", "--quiet", "-m", title], cwd=self.folder, check=True)

    def copy(self, folder, *, programs=None):
        """Return an independent copy, hard links between work folder, cache and outputs included."""
        subprocess.run(["cp", "-a", self.folder, folder], check=True)
        return Workspace(folder, programs=programs)

    def change(self, changes):
        """Set values in params.yaml; a key names its place with dots."""
        file = self.folder / "params.yaml"
        params = self._yaml.load(file)
        set_values(params, changes)
        self._yaml.dump(params, file)

    def environment(self, **more):
        """Return the environment of a user who has activated the virtual environment, in this folder."""
        scratch = self.folder.parent / f"{self.folder.name}-tmp"
        scratch.mkdir(exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
        path = f"{self._programs}{os.pathsep}{kept['PATH']}"
        # A lock of its own: tests may run beside a comparison.
        return {**kept, "PATH": path, "TMPDIR": str(scratch), "OMP_NUM_THREADS": "1", **more}

    def run(self, *command, ok=True, **environment):
        """Run a command here to its end; with `ok`, fail the test with its output unless it succeeds."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert not ok or done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout[-6000:]}"
        return done

    def flow(self, **environment):
        """Run the flow to its end and return its output."""
        return self.run("python", "-m", "flows", **environment).stdout

    def repro(self, *targets, **options):
        """Run `dvc repro`; for the options see `run`."""
        return self.run("dvc", "repro", *targets, **options)

    def launches(self, cell):
        """Return how many times ranks were started for the cell."""
        logs = self.folder / ".work" / "runs" / cell / "logs"
        return len(list(logs.iterdir())) if logs.is_dir() else 0

    def checkpoint(self, cell, segment):
        """Return the semantic checkpoint of a segment such as `0-64-epoch-1`."""
        (file,) = (self.folder / "data" / "runs" / cell / "segments" / segment).glob(f"*_{segment}.pt")
        return file
