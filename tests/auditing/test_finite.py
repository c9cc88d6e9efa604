"""Parameters that become NaN while the losses that are read stay numbers."""

from math import nan
from pathlib import Path

import pytest

from ddp_audit.asked import parse_request
from ddp_audit.findings import finite
from ddp_audit.launched import Audit, Launched
from ddp_audit.rank_record import RankRecord


@pytest.mark.parametrize(
    ("begun", "left", "verdict"), [(1.0, 1.0, "passed"), (1.0, nan, "failed"), (nan, nan, "passed")]
)
def test_parameters_that_become_no_numbers_fail_though_every_loss_is_one(
    begun: float, left: float, verdict: str
) -> None:
    step = {"micros": [{"loss": 2.0}], "start": {"l2": begun}, "weights": {"l2": left}}
    rank = RankRecord(0, steps=[{**step, "step": number} for number in (1, 2)])
    launched = Launched("1proc", Path(), [rank], 0)
    request = parse_request({"SCRIPT": "-m train", "CELLS": "1"})
    found = finite.find(Audit(request, {"1proc": [launched]}), "1proc")
    assert found is not None
    assert found.verdict == verdict
