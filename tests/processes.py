"""A program run to its end; and which processes are left of one: told by a mark in their environment, not by name."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil

MARK = "DDP_COMPARE_TEST_MARK"


def new_mark():
    """Return an environment variable that every descendant inherits, whatever session it is in."""
    return {MARK: uuid.uuid4().hex}


def left_of(mark):
    """Return pid -> command line of every process that lives and has the mark."""
    wanted = f"{MARK}={mark[MARK]}".encode()
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        # Of one that has ended and that nobody has collected yet, the environment is empty.
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(process.name)] = words
    return found


def find(mark, words):
    """Return the pid of the oldest process with the mark and the words in its command line."""
    return min(pid for pid, command in left_of(mark).items() if words in command)


def read_words(process):
    """Return the command line of a process; nothing of one that has ended, which nobody may have collected yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def list_named(folder):
    """Return the processes that have a path below this folder among their words, whoever started them."""
    return [one for one in psutil.process_iter() if any(str(folder) in word for word in read_words(one))]


def list_in(folder):
    """Return the processes whose current directory is in this folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            found += [process] * Path(process.cwd()).is_relative_to(folder)
    return found


def run_python(*words, folder=None, timeout=None, **changes):
    """Return how `python WORDS` ended in the folder, with these changes of its environment, and what it said."""
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env=os.environ | changes, capture_output=True, text=True,
        timeout=timeout,
    )  # fmt: skip


@contextlib.contextmanager
def none_left_of(mark):
    """End what is left when the block is left, so that a test that fails leaves nothing to the next."""
    try:
        yield
    finally:
        for pid in left_of(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def open_browser():
    """Chromium, that of the distribution or of the variable CHROMIUM; None where there is none."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        # Root, as in a container, may not use Chromium's sandbox.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = path and playwright.chromium.launch(executable_path=path, args=options)
        yield browser
        if browser:
            browser.close()
