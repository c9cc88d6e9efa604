"""Preloaded by the process that tests/museum/stage_process.py forks from; a test run's children import pytest again."""

from tests.warm.imports import HEAVY, import_ahead

import_ahead([*HEAVY, "pytest"])
