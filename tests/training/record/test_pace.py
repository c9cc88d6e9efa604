"""What a rank does alone, told from what it does with the others."""

import time
from pathlib import Path

import torch

from tests.tiny import batches_in_order
from training.data.batches import open_slice
from training.process.heartbeat import StepSection
from training.record.window import Pace, count_own_positions


def test_seconds_run_from_one_exchange_to_the_last_backward_before_the_next() -> None:
    began, spans = time.perf_counter(), []
    pace = Pace(torch.device("cpu"))
    for seconds in (0.01, 0.02):
        pace.enter(StepSection.FORWARD)
        pace.enter(StepSection.BACKWARD)
        time.sleep(seconds)  # an earlier micro-batch's backward
        pace.enter(StepSection.FORWARD)
        pace.enter(StepSection.BACKWARD)
        spans.append(time.perf_counter() - began)
        time.sleep(0.05)  # the last one's, with the exchange inside
        began = time.perf_counter()
        pace.enter(StepSection.UPDATE)
    first, second = pace.seconds()
    assert 0.01 <= first <= spans[0]
    assert 0.02 <= second <= spans[1]
    pace.restart()
    assert pace.seconds() == []


def test_their_work_is_every_forward_and_every_backward_but_the_last(slices: list[Path]) -> None:
    batches = list(batches_in_order(open_slice(slices[0]), batch_size=4, seq_len=32))[:3]
    sizes = [batch.input_ids.numel() for batch in batches]
    assert count_own_positions(batches) == 3 * sizes[0] + 3 * sizes[1] + sizes[2]
    assert count_own_positions(batches[:1]) == sizes[0]
