"""A step takes the memory of the one before it, without asking the kernel for new pages."""

import os
import subprocess
import sys

import pytest

_STEPS = """
import resource, sys
import torch
from training.step.replica import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()

def count_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

torch.set_num_threads(1)
layers = [torch.nn.Linear(64, 64) for _ in range(6)]
rows = torch.ones(16_384, 64)

def step() -> None:
    hidden = rows
    for layer in layers:
        hidden = torch.nn.functional.gelu(layer(hidden))
    hidden.sum().backward()
    for layer in layers:
        layer.zero_grad()

for _ in range(10):
    step()
before = count_faults()
for _ in range(20):
    step()
print(count_faults() - before)
"""


def _count_page_faults(way: str, **environment: str) -> int:
    told = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | environment
    told.pop("GLIBC_TUNABLES", None)
    ran = subprocess.run([sys.executable, "-c", _STEPS, way], env=told, capture_output=True, text=True, check=True)
    return int(ran.stdout)


def test_what_a_step_frees_the_next_one_has_without_the_kernel() -> None:
    left, kept = (_count_page_faults(way) for way in ("left", "kept"))
    assert left > 1_000, "where nothing is returned to the kernel there is nothing to keep"
    # A few pieces of memory, of a thousand pages each, may still be new among twenty steps: where others compute, the
    # thread of the backward frees them a moment after the next step has asked.
    assert kept < left / 5


def test_what_the_environment_says_of_memory_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from training.step.replica import keep_freed_memory

    for name, value in (("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not keep_freed_memory()
