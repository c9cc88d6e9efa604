"""Planned faults: how they are asked for, and that what is asked for comes, where and when it was asked for."""

from typing import Any

import pytest
import torch

from tests.faults import read_planned_faults
from tests.training.conftest import Toy
from training.process.heartbeat import Heartbeat, StepSection
from training.workloads import causal_lm


def test_nothing_is_planned_unless_the_environment_says_so_and_only_for_its_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FAULT", raising=False)
    assert read_planned_faults(0) is None
    monkeypatch.setenv("FAULT", "rank=1,step=7,kind=sigkill;rank=2,step=3,kind=hang,section=data")
    assert [read_planned_faults(rank) is None for rank in range(3)] == [True, False, False]


@pytest.fixture
def step(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `step(fault, number)`: one rank's step with what is planned; its strategy is `step.strategy`."""
    strategy, (parts, num_targets), heartbeat = toy.build(), toy.take(), Heartbeat()

    def run(fault: str, number: int) -> Any:
        if number == 1:
            monkeypatch.setenv("FAULT", fault)
            faults = read_planned_faults(0)
            assert faults is not None
            strategy.replica.on_section = heartbeat.enter
            strategy.replica._workload = faults.inject_into_workload(causal_lm, heartbeat)
            faults.inject_into_strategy(strategy, heartbeat)
        heartbeat.begin(number)
        return strategy.train_step(parts, num_targets=num_targets, learning_rate=1e-3)

    run.strategy, run.heartbeat = strategy, heartbeat  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("section", ["forward", "backward", "update"])
def test_an_error_is_raised_in_its_step_and_section_and_nowhere_else(section: str, step: Any) -> None:
    entered: list[StepSection] = []
    fault = f"rank=0,step=2,kind=raise,section={section}"
    step(fault, 1)
    step.heartbeat.on_enter = entered.append
    with pytest.raises(RuntimeError, match="planned fault"):
        step(fault, 2)
    assert entered[-1].name.lower() == section
    step.strategy.replica.forget_gradient()
    step(fault, 3)


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("section", ["forward", "backward"])
def test_a_step_whose_numbers_are_not_finite_changes_no_parameter_and_no_optimizer_state(
    kind: str, section: str, step: Any
) -> None:
    fault = f"rank=0,step=2,kind={kind},section={section}"
    step(fault, 1)
    before = step.strategy.digest()
    result = step(fault, 2)
    assert not torch.isfinite(result.grad_norm)
    assert bool(torch.isfinite(result.loss_sum)) == (section == "backward")
    assert step.strategy.digest() == before
    step(fault, 3)
    assert step.strategy.digest() != before
