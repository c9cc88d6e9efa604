"""A stage of a scratch project in a process of its own, forked from one that has imported torch already.

Imports nothing of the project: each process takes `tasks` and `training` from its scratch project.
"""

import contextlib
import gc
import importlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from unittest import mock

from tests.mutants.patching import find_patches, install, make_environment

_TIMEOUT_SECONDS = 180.0
_LOG = "stages.log"
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.warm.for_stages"])


class StageFailedError(Exception):
    """A stage ended with another exit code than 0."""

    def __init__(self, stage, exit_code, project):
        self.stage, self.exit_code = stage, exit_code
        self.words = ((project / _LOG).read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        """Its last line."""
        super().__init__(f"{stage} ended with exit code {exit_code}: {self.words}")


class StageProcess:
    """A running stage; its output is added to a file in the project.

    `first` is Python that runs before anything of the project is imported; with it, nothing is left out of the stage.
    """

    def __init__(self, project, stage, *arguments, first=""):
        self._stage, self._project = stage, project
        self._process = _CONTEXT.Process(target=_be_stage, args=(project, stage, arguments, first))
        self._process.start()
        self.pid = self._process.pid

    def finish(self):
        """Wait for the end; raises StageFailedError with the last line unless it ended well."""
        self._process.join(_TIMEOUT_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        if self._process.exitcode:
            raise StageFailedError(self._stage, self._process.exitcode, self._project)


def run_stages(project, stages):
    """Run stages with their arguments, one after another, up to the first that fails; raises StageFailedError then.

    Each runs in a process of its own, forked from one that has imported the project's sources for all of them.
    """
    ended = project / f"{_LOG}.ended"
    ended.unlink(missing_ok=True)
    process = _CONTEXT.Process(target=_be_stages, args=(project, stages, ended))
    process.start()
    process.join(len(stages) * _TIMEOUT_SECONDS)
    if process.exitcode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    codes = [int(code) for code in ended.read_text().split()] if ended.exists() else []
    if codes == [0] * len(stages):
        return
    if not codes or codes[-1] == 0:
        # The next one did not come to its end, or could not even be imported.
        codes.append(process.exitcode or 1)
    raise StageFailedError(stages[len(codes) - 1][0], codes[-1], project)


def run_elsewhere(function, *arguments):
    """Run a function in a fork, so that this process need not import torch; AssertionError unless it succeeds."""
    process = _CONTEXT.Process(target=function, args=arguments)
    process.start()
    process.join(_TIMEOUT_SECONDS)
    assert process.exitcode == 0, f"{function.__name__} ended with {process.exitcode}"


def _be_stage(project, stage, arguments, first):
    _enter(project)
    exec(first, {})
    _run(stage, arguments, has_services=bool(first))


def _be_stages(project, stages, ended):
    """Fork a process for each stage, and write down its exit code when it has ended."""
    os.setsid()
    _enter(project)
    for stage, arguments in stages:
        importlib.import_module(f"tasks.{stage}")
        gc.freeze()
        sys.stdout.flush()
        process = multiprocessing.get_context("fork").Process(target=_run, args=(stage, arguments))
        process.start()
        process.join()
        with ended.open("a") as file:
            file.write(f"{process.exitcode}\n")
        if process.exitcode:
            return


def _enter(project):
    """Make of this process, a fresh fork, one that runs in the project and says what it says in the log."""
    assert "tests.warm.files_of_modules" in sys.modules, "not all was imported ahead: every process would take seconds"
    # A look through all that was imported ahead takes half a second, and a copy of its memory.
    gc.freeze()
    with (project / _LOG).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    taken = [name for name in sys.modules if name.partition(".")[0] in ("flows", "tasks", "training")]
    assert not taken, f"{taken} were imported before the scratch project's own"
    os.chdir(project)
    sys.path.insert(0, str(project))
    # A lock of the project's own: the museum may be open beside a comparison.
    os.environ["TMPDIR"] = str(project)
    # With a fixed one, no process would salt its hashes.
    os.environ.pop("PYTHONHASHSEED", None)
    tempfile.tempdir = None
    if (patches := project / "patches").exists():
        keys = patches.read_text(encoding="utf-8")
        os.environ.update(make_environment(keys))
        install(find_patches(keys))


def _run(stage, arguments, *, has_services=False):
    if not has_services:
        _leave_out_services(stage)
    sys.argv = [stage, *arguments]
    sys.modules.pop(f"tasks.{stage}", None)
    runpy.run_module(f"tasks.{stage}", run_name="__main__", alter_sys=True)


def _leave_out_services(stage):
    """Take MLflow, the charts and the link's probe out of a stage: they say nothing about a defect and take seconds."""
    if stage == "measure":
        from tasks.measuring import session

        session._measure_links = lambda *_: []
    if stage not in ("train", "report"):
        return
    from tasks.services import tracker

    tracker.follow_cell = lambda *_, **__: contextlib.nullcontext(mock.Mock())
    if stage == "report":
        from tasks.reporting import drawing

        tracker.log_report = lambda *_, **__: None
        drawing.draw_svg = lambda *_: "<svg/>"
