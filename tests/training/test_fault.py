"""Planned faults."""

import signal

import pytest

from training.failure import TrainingError
from training.fault import Fault, planned_fault


def test_nothing_is_planned_unless_the_environment_says_so_and_only_for_its_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FAULT", raising=False)
    assert planned_fault(0) is None
    monkeypatch.setenv("FAULT", "rank=1,step=7,kind=sigkill")
    assert planned_fault(0) is None
    assert planned_fault(1) == Fault(step=7, number=signal.SIGKILL)


@pytest.mark.parametrize("text", ["1", "rank=0,step=7", "rank=0,step=x,kind=sigkill", "rank=0,step=7,kind=fire"])
def test_a_fault_of_another_form_is_refused_in_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", text)
    with pytest.raises(TrainingError, match="allowed: rank=0,step=7,kind=sigkill"):
        planned_fault(0)


def test_a_fault_strikes_at_its_step_and_no_other() -> None:
    struck: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: struck.append(number))
    try:
        fault = Fault(step=2, number=signal.SIGUSR1)
        for step in (1, 2, 3):
            fault.strike(step)
            assert len(struck) == int(step >= 2)
    finally:
        signal.signal(signal.SIGUSR1, before)
