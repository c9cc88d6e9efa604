"""What tests of every room share: the project, an environment that starts at once, ranks, a browser."""

import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from tasks.process.logs import switch_off_telemetry
from tests.flows.toy_project import wait_for
from tests.processes import open_browser
from tests.tiers import is_long
from tests.warm.environment import warm_environment

PROJECT = Path(__file__).resolve().parent.parent
_SHARED = "DDP_COMPARE_WARM"

switch_off_telemetry()
# The same examples in every run, so that what fails has to do with the change that is tested. Others are drawn with
# `--hypothesis-profile default`.
settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.load_profile("same")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# `evaluate` takes a thread for every core. Threads that wait by running in circles keep a busy machine from the others:
# beside one other test, it takes three times the processor time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Kernels of compiled layers are few here: processes that compile them side by side take longer to start than they do.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # The lock of the machine is a file there: two workers are two machines to each other.
    _scratch = tempfile.TemporaryDirectory(prefix=f"{os.environ['PYTEST_XDIST_WORKER']}-")
    os.environ["TMPDIR"] = tempfile.tempdir = _scratch.name


@pytest.hookimpl(tryfirst=True)  # before `-m` is asked
def pytest_collection_modifyitems(items):
    """Mark what is long, and put files first that have most slow tests: begun last, one would be left to one worker."""
    for item in items:
        if is_long(item.path.relative_to(PROJECT / "tests"), item.name):
            item.add_marker("long")
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -num_slow[item.path])
    # What is imported by now stays. To look for garbage among it took a second, each time that the product does.
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Have the interpreter end as it always does."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def project():
    """The root of the checkout under test."""
    return PROJECT


@pytest.fixture(scope="session")
def warm():
    """The folder `bin` of an environment whose stages and ranks start at once; `make test` has one for all."""
    if shared := os.environ.get(_SHARED):
        wait_for(Path(shared).exists, seconds=300, what="there is an environment whose processes start at once")
        yield Path(Path(shared).read_text())
    else:
        with warm_environment() as programs:
            yield programs


@pytest.fixture
def starts_warm(warm, monkeypatch):
    """Have torchrun and ranks, which this process starts with its own interpreter, start at once."""
    monkeypatch.setattr(sys, "executable", str(warm / "python"))


@pytest.fixture(scope="session")
def ranks(request):
    """A process that real ranks are forked from: itself a fork of what `make test` has for all, where it is."""
    from tests.training.forked_ranks import ForkedRanks

    launcher = ForkedRanks(request.getfixturevalue("warm") / "python" if _SHARED in os.environ else None)
    yield launcher
    launcher.close()


@pytest.fixture
def small_disk(tmp_path, request):
    """A disk of a megabyte, or of as many bytes as a test is given; skips where none can be mounted."""
    folder, size = tmp_path / "disk", getattr(request, "param", 2**20)
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]).returncode:
        pytest.skip("no small tmpfs can be mounted here")
    yield folder
    # Lazily: what a test has opened there may be open still.
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module")
def browser():
    """Chromium, for one file's tests: as long as it is open, asyncio counts this thread's loop as running."""
    with open_browser() as browser:
        if not browser:
            pytest.skip("no chromium: install the distribution's package or set CHROMIUM")
        yield browser
