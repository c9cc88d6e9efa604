"""Python loads this first where its folder stands in PYTHONPATH: the product is patched as it is imported."""

import os
import sys
from pathlib import Path

_ROOT = str(Path(__file__).resolve().parents[3])

sys.path.insert(0, _ROOT)
from tests.mutants.patching import VARIABLE, find_patches, install  # noqa: E402

install(find_patches(os.environ.get(VARIABLE, "")))
sys.path.remove(_ROOT)
