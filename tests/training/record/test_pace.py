"""What a rank does alone, told from what it does with the others."""

import time

import torch

from training.process.heartbeat import StepSection
from training.record.window import Pace


def test_seconds_run_from_one_exchange_to_the_last_backward_before_the_next():
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
