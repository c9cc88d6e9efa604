"""Where the project and the optional real data stand, for every test."""

import os
from pathlib import Path

import pytest

from tasks.stage.logs import switch_off_telemetry

PROJECT = Path(__file__).resolve().parent.parent

switch_off_telemetry()
os.environ.setdefault("OMP_NUM_THREADS", "1")


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
