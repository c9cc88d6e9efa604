"""Packages of `make extras`: a test without its package is skipped by name, and none is imported to find that out.

What is imported stays in the process: Ray reads its environment then, and DeepSpeed adds to it.
"""

import importlib.util

import pytest


def skip_without(package):
    """Skip this test, or at the head of a file all of its tests, where the package is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed; `make extras` installs it", allow_module_level=True)
