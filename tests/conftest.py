"""Where the project and the optional real data stand, for every test."""

import os
import tempfile
from pathlib import Path

import pytest

from tasks.stage.logs import switch_off_telemetry

PROJECT = Path(__file__).resolve().parent.parent

switch_off_telemetry()
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # The lock of the machine is a file there: two workers are two machines to each other.
    _scratch = tempfile.TemporaryDirectory(prefix=f"{os.environ['PYTEST_XDIST_WORKER']}-")
    os.environ["TMPDIR"] = tempfile.tempdir = _scratch.name


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the checkout under test."""
    return PROJECT


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real abstracts, tokenizer and pretrained model beside the checkout; skips where there is none."""
    folder = PROJECT.parent / "shared" / "data"
    if not (folder / "arxiv_abstracts.parquet").is_file():
        pytest.skip("no folder ../shared/data with real data beside the checkout")
    return folder
