"""The best cell by card, recomputed by hand from the figures of measured.py.

15.5 tokens in 68 ms are 4,387 µs each; 1.619 (1.579 to 1.660) times as fast 2,710 µs. 18 GiB with 5 % in pieces and
1 GiB of CUDA are 21.4 GB, and 30 GiB are 34.9 GB.
"""

import pytest

from tasks.records.gate import Standing
from tasks.reporting.charts.frontier import find_best, list_places
from tests.tasks.reporting.measured import arm, measure_again, measurement, memory
from tests.tasks.reporting.rendered import markdown_of


def find(results, card):
    best = find_best(list_places(results), card)
    return None if best is None else best.cell


def test_the_best_of_a_card_is_the_fastest_that_has_room_and_whose_gates_all_passed(measured_results):
    assert [find(measured_results, card) for card in (21.3, 21.5, 34.8, 35.0)] == [None, "1proc", "1proc", "2proc"]
    first, second = measured_results.cells
    unproven = Standing(state="unproven", gates=["A gate"], reason="not looked at")
    results = measured_results.model_copy(update={"cells": [first, second.model_copy(update={"standing": unproven})]})
    assert find(results, 80) == "1proc"
    assert "Never named as the best, since its speedup is unproven: 2proc." in markdown_of(results)


def test_on_a_gpu_what_torch_reserved_decides(measured_results):
    (rank,) = memory("1proc").ranks
    for reserved, best in ((20.0, "1proc"), (22.0, None)):
        on_gpu = memory("1proc", device="cuda", ranks=[rank.model_copy(update={"reserved_gib": reserved})])
        assert find(measure_again(measured_results, measurement(memory=[on_gpu])), 24) == best


def test_the_fastest_cell_is_the_one_with_the_largest_speedup_though_its_turns_were_slower(measured_results):
    # Its own turns say that it is slower than the first cell, those that both had that it is 1.6 times as fast.
    first = 15.5 / 0.068
    found = measurement(arm("1proc", 1), arm("2proc", 2, tokens_per_second=first / 2))
    best = find_best(list_places(measure_again(measured_results, found)), 80)
    assert best.cell == "2proc"
    assert 1 / best.seconds_per_token.low == pytest.approx(68 / 42 * 1.025 * first)
