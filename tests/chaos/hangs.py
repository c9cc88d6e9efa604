"""Ranks made to hang, and what the watchdog says of it.

Ranks are forked, and trials run a few at a time, since they mostly wait; torchrun's part is tested elsewhere
(tests/tasks/ranks/test_watchdog.py).
"""

import os
import sys
import threading
import time
from typing import NamedTuple

import psutil

from tests.museum.stage_process import _CONTEXT
from tests.tiny import make_config, make_slice, make_tiny_model

STEP = 5
"""The step in which ranks are made to hang; it ends with a log point and a checkpoint, so that it has all sections."""
WATCHDOG_SECONDS = 4


class HangTrial(NamedTuple):
    """One rank made to hang, and what came of it."""

    kind: str
    """hang: sleeps for ever; freeze: the same with the interpreter's lock; stop: SIGSTOP. Others are no hangs; none: no
    fault."""
    rank: int
    """The culprit."""
    section: str
    """Where it hangs."""
    exit_code: int = 0
    """Of the stage."""
    message: str = ""
    """What the stage says."""
    seconds: float = 0.0
    """From the step before until all was ended."""
    stacks: tuple[int, ...] = ()
    """Ranks whose Python stacks are in their logs."""
    num_left: int = 0
    """Processes that still ran afterwards."""

    @property
    def is_right(self):
        """Whether the culprit, its section and its step were named, and all stacks that can be are there.

        A rank that is stopped has none.
        """
        expected = tuple(rank for rank in range(2) if self.kind != "stop" or rank != self.rank)
        named = f"rank {self.rank} hangs in section {self.section} of step {STEP}:"
        return (self.exit_code, self.stacks) == (6, expected) and named in self.message


def work_of(folder, trial):
    """Return the work folder of a trial."""
    return folder / f"{trial.kind.replace(':', '-')}-{trial.rank}-{trial.section}"


def hang_trials(folder, trials):
    """Return the trials with what came of them, each in a fork of a process that has imported torch."""
    config = make_config(
        folder / "work", make_tiny_model(folder / "model"), [make_slice(folder / "slice", num_rows=80)],
        strategy="ddp", world_size=2, checkpoint_every_steps=1,
    )  # fmt: skip
    with _CONTEXT.Pool(4, maxtasksperchild=1) as pool:
        return pool.starmap(_try_hang, [(folder, config, trial) for trial in trials], chunksize=1)


def _try_hang(folder, config, trial):
    """Return what comes of one trial in this process, which must never have computed anything with torch."""
    import tests.museum.forked
    from tasks.process.failure import StageError
    from tasks.ranks.memory import run_within_memory
    from training.config import parse_config

    sys.modules["tasks.ranks.launchers.forked"] = tests.museum.forked
    work = work_of(folder, trial)
    if trial.kind != "none":
        os.environ["FAULT"] = f"rank={trial.rank},step={STEP},kind={trial.kind},section={trial.section}"
        from tests.faults import apply_planned_faults

        apply_planned_faults()
    seen, code, said = [time.monotonic()], 0, ""

    def follow(events):
        if events:
            seen.append(time.monotonic())

    try:
        run_within_memory(
            parse_config({**config, "work_dir": str(work)}), num_shares=2, launcher="forked",
            stop=threading.Event(), follow=follow, watchdog_seconds=WATCHDOG_SECONDS,
        )  # fmt: skip
    except StageError as error:
        code, said = int(error.exit_code), str(error)
    return trial._replace(
        exit_code=code, message=said, seconds=time.monotonic() - seen[-1], stacks=_ranks_with_stacks(work),
        num_left=len(psutil.Process().children(recursive=True)),
    )  # fmt: skip


def _ranks_with_stacks(work):
    logs = max((work / "logs").iterdir())
    says = [(logs / f"{rank}.log").read_text(errors="replace") for rank in range(2)]
    # Of the main thread, down to the entry.
    return tuple(rank for rank, words in enumerate(says) if "most recent call first" in words and "in main" in words)
