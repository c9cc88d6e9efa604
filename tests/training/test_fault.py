"""Planned faults: how they are asked for, and that what is asked for comes, where and when it was asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import batches_in_order, make_config
from tests.training.conftest import parsed
from training.data.batches import open_slice
from training.fault import read_planned_faults
from training.process.distributed import Ranks
from training.process.failure import TrainingError
from training.process.heartbeat import Heartbeat, StepSection
from training.record.environment import find_lasting_faults
from training.step.replicated import Replicated
from training.strategies import single
from training.workloads import causal_lm


def test_nothing_is_planned_unless_the_environment_says_so_and_only_for_its_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FAULT", raising=False)
    assert read_planned_faults(0) is None
    monkeypatch.setenv("FAULT", "rank=1,step=7,kind=sigkill;rank=2,step=3,kind=hang,section=data")
    assert read_planned_faults(0) is None
    assert read_planned_faults(1) is not None
    assert read_planned_faults(2) is not None


@pytest.mark.parametrize(
    "text",
    [
        "1", "rank=0,step=7", "rank=0,step=x,kind=sigkill", "rank=0,step=7,kind=fire", "rank=0,step=7,kind=slow",
        "rank=0,step=7,kind=hang,section=start", "rank=0,step=7,kind=hang;", "rank=0,step=7,kind=hang,section=lunch",
    ],
)  # fmt: skip
def test_a_fault_of_another_form_is_refused_in_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", text)
    with pytest.raises(TrainingError, match="allowed: rank=0,step=7,kind=sigkill"):
        read_planned_faults(0)


@pytest.mark.parametrize(
    ("text", "lasts"),
    [
        ("", False), ("rank=0,step=7,kind=sigkill", False), ("rank=1,step=2,kind=slow:3", True),
        ("rank=0,step=7,kind=sigkill;rank=1,step=2,kind=slow:1.1", True), ("rank=0,step=1,kind=oom:2", True),
    ],
)  # fmt: skip
def test_a_fault_that_stays_in_a_finished_training_is_told_on_every_rank(
    text: str, lasts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", text)
    assert find_lasting_faults() == (text if lasts else None)


@pytest.fixture
def strategy(alone: Ranks, tiny_model: Path, slices: list[Path], tmp_path: Path) -> Replicated:
    """One rank with the tiny model."""
    config = parsed(make_config(tmp_path / "work", tiny_model, slices[:1]), tmp_path)
    return single.build(causal_lm.load_model(tiny_model), causal_lm, config, alone)


def _step(strategy: Replicated, heartbeat: Heartbeat, slice_dir: Path, step: int) -> Any:
    batches = list(batches_in_order(open_slice(slice_dir), batch_size=4, seq_len=32))[:2]
    heartbeat.begin(step)
    num_tokens = sum(batch.num_tokens for batch in batches)
    return strategy.train_step(batches, num_targets=num_tokens, learning_rate=1e-3)


def _with_fault(strategy: Replicated, text: str, monkeypatch: pytest.MonkeyPatch) -> Heartbeat:
    monkeypatch.setenv("FAULT", text)
    faults, heartbeat = read_planned_faults(0), Heartbeat()
    assert faults is not None
    strategy.on_section = heartbeat.enter
    strategy.replica._workload = faults.inject_into_workload(causal_lm, heartbeat)
    faults.inject_into_strategy(strategy, heartbeat)
    return heartbeat


@pytest.mark.parametrize("section", ["forward", "backward", "update"])
def test_an_error_is_raised_in_its_step_and_section_and_nowhere_else(
    section: str, strategy: Replicated, slices: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat = _with_fault(strategy, f"rank=0,step=2,kind=raise,section={section}", monkeypatch)
    entered: list[StepSection] = []
    heartbeat.on_enter = entered.append
    _step(strategy, heartbeat, slices[0], 1)
    entered.clear()
    with pytest.raises(RuntimeError, match="planned fault"):
        _step(strategy, heartbeat, slices[0], 2)
    assert entered[-1].name.lower() == section
    strategy.replica.forget_gradient()
    _step(strategy, heartbeat, slices[0], 3)


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("section", ["forward", "backward"])
def test_a_step_whose_numbers_are_not_finite_changes_no_parameter_and_no_optimizer_state(
    kind: str, section: str, strategy: Replicated, slices: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat = _with_fault(strategy, f"rank=0,step=2,kind={kind},section={section}", monkeypatch)
    _step(strategy, heartbeat, slices[0], 1)
    before = strategy.replica.parameter_checksum()
    state = [value.clone() for part in _moments(strategy) for value in part.values()]
    result = _step(strategy, heartbeat, slices[0], 2)
    assert not torch.isfinite(result.grad_norm)
    assert bool(torch.isfinite(result.loss_sum)) == (section == "backward")
    assert strategy.replica.parameter_checksum() == before
    assert all(
        torch.equal(now, then)
        for now, then in zip((value for part in _moments(strategy) for value in part.values()), state, strict=True)
    )
    _step(strategy, heartbeat, slices[0], 3)
    assert strategy.replica.parameter_checksum() != before


def _moments(strategy: Replicated) -> list[dict[str, torch.Tensor]]:
    return list(strategy.replica.state()["optimizer"]["state"].values())


def test_memory_runs_out_only_for_more_samples_than_it_holds(
    strategy: Replicated, slices: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    heartbeat = _with_fault(strategy, "rank=0,step=1,kind=oom:3;rank=0,step=2,kind=oom:4", monkeypatch)
    with pytest.raises(torch.OutOfMemoryError):
        _step(strategy, heartbeat, slices[0], 1)
    _step(strategy, heartbeat, slices[0], 2)
