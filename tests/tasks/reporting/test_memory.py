"""Memory in the report, and the best cell by card: recomputed by hand from the figures of measured.py.

15.5 tokens in 68 ms are 4,387 µs each; 1.619 (1.579 to 1.660) times as fast 2,710 µs. 18 GiB with 5 % in pieces and
1 GiB of CUDA are 21.4 GB, and 30 GiB are 34.9 GB.
"""

import re
from typing import Any

import pytest

from tasks.records.gate import Standing
from tasks.reporting.frontier import find_best, list_places
from tasks.reporting.results import Results
from tests.tasks.reporting.measured import measurement, memory
from tests.tasks.reporting.rendered import markdown_of


def _with_memory(results: Results, *found: Any) -> str:
    """Return the section of report.md where this was measured."""
    changed = results.model_copy(update={"measurement": measurement(memory=list(found))})
    return _cut_section(markdown_of(changed))


def _cut_section(markdown: str) -> str:
    _, _, rest = markdown.partition("## How much memory, and what fits?")
    return re.sub(r"[|\\\s]+", " ", rest.partition("\n## ")[0])


def test_on_a_gpu_what_torch_reserved_decides_and_no_cpu_is_spoken_of(measured_results: Results) -> None:
    (rank,) = memory("1proc", 1, 18.0).ranks
    found = []
    for reserved in (20.0, 22.0):
        on_gpu = memory("1proc", 1, 18.0, device="cuda", ranks=[rank.model_copy(update={"reserved_gib": reserved})])
        found.append(_with_memory(measured_results, on_gpu))
    assert "24 GB 1proc" in found[0]
    assert "24 GB none of them fits" in found[1]
    assert "on CPUs" not in found[0]


def test_a_cell_is_named_best_only_if_all_its_gates_passed(measured_results: Results) -> None:
    unproven = Standing(state="unproven", gates=["A gate"], reason="not looked at")
    first, second = measured_results.cells
    results = measured_results.model_copy(update={"cells": [first, second.model_copy(update={"standing": unproven})]})
    section = _cut_section(markdown_of(results))
    assert "80 GB 1proc" in section
    assert "Never named as the best, since a gate was not checked: 2proc." in section


def test_the_fastest_cell_is_the_one_with_the_largest_speedup_though_its_turns_were_slower(
    measured_results: Results,
) -> None:
    measured = measured_results.measurement
    assert measured is not None
    first, second = measured.arms[0], next(arm for arm in measured.arms if arm.arm == "2proc")
    # Its own turns say that it is slower than the first cell, those that both had that it is 1.6 times as fast.
    slower = second.model_copy(update={"tokens_per_second": first.tokens_per_second / 2})
    arms = [slower if arm is second else arm for arm in measured.arms]
    changed = measured_results.model_copy(update={"measurement": measured.model_copy(update={"arms": arms})})
    best = find_best(list_places(changed), 80)
    assert best is not None
    assert best.cell == "2proc"
    assert second.speedup is not None
    assert 1 / best.seconds_per_token.low == pytest.approx(second.speedup.high * first.tokens_per_second)
