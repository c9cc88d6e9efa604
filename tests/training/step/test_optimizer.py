"""AdamW and SGD: the update by hand, what a checkpoint keeps of it, and a first step that is not finite."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.equivalence.reference.update import OneProcess, order_as_one_rank
from tests.tiny import make_config
from tests.training.conftest import are_bitwise_equal, facts_of, parsed, relative_l2, weights_at_end
from training.data.batches import open_slice
from training.data.plan import make_micro_batches, plan_segment
from training.model.weights import collect_weights
from training.process.distributed import Ranks
from training.process.failure import StoppedError
from training.step.optimizer import build_optimizer
from training.step.replica import Replica


def _config(work: Path, model: Path, slices: list[Path], **changes: Any) -> dict[str, Any]:
    return make_config(
        work, model, slices, **{"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 0.05, **changes}
    )


def test_updates_of_sgd_are_those_of_its_formula(tmp_path: Path, tiny_model: Path, slices: list[Path]) -> None:
    config = parsed(_config(tmp_path, tiny_model, slices), tmp_path)
    gradients = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    part = torch.nn.Parameter(torch.arange(4.0))
    weight, kept = part.detach().clone(), torch.zeros(4)
    optimizer = build_optimizer([{"params": [part], "weight_decay": 0.05}], config)
    for number, gradient in enumerate(gradients, start=1):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / number
        part.grad = gradient.clone()
        optimizer.step()
        kept = 0.9 * kept + gradient + 0.05 * weight
        weight = weight - 0.1 / number * kept
        torch.testing.assert_close(part.detach(), weight)


def test_updates_of_adamw_are_those_of_its_formula_with_the_betas_asked_for(
    tmp_path: Path, tiny_model: Path, slices: list[Path]
) -> None:
    asked = {"optimizer": "adamw", "adam_beta1": 0.8, "adam_beta2": 0.95}
    config = parsed(_config(tmp_path, tiny_model, slices, **asked), tmp_path)
    gradients = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    part = torch.nn.Parameter(torch.arange(4.0))
    weight, mean, square = part.detach().clone(), torch.zeros(4), torch.zeros(4)
    optimizer = build_optimizer([{"params": [part], "weight_decay": 0.05, "lr": 0.1}], config)
    for number, gradient in enumerate(gradients, start=1):
        part.grad = gradient.clone()
        optimizer.step()
        mean, square = 0.8 * mean + 0.2 * gradient, 0.95 * square + 0.05 * gradient**2
        direction = mean / (1 - 0.8**number) / ((square / (1 - 0.95**number)).sqrt() + 1e-8)
        weight = weight * (1 - 0.1 * 0.05) - 0.1 * direction
        torch.testing.assert_close(part.detach(), weight)


def test_a_first_step_that_is_not_finite_leaves_no_momentum(
    tmp_path: Path, tiny_model: Path, slices: list[Path], alone: Ranks
) -> None:
    config = parsed(_config(tmp_path, tiny_model, slices), tmp_path)
    workload: Any = importlib.import_module("training.workloads.causal_lm")
    source = open_slice(slices[0])
    plan = plan_segment(source.lengths(32), seed=1, epoch=1, rows="0-45", global_batch_size=8, micro_batch_size=2).step(
        1
    )
    parts = list(make_micro_batches(source, plan, rank=0, world_size=1, seq_len=32, seed=(1, 1)))
    ends = []
    for is_poisoned in (False, True):
        replica = Replica(workload.load_model(tiny_model), workload, config, torch.device("cpu"))
        if is_poisoned:
            # Memory that was used before and is handed out again, as it would be to a momentum without a value.
            used = [torch.full_like(part, 1e9) for part in replica.parameters]
            del used
            replica.add(replica.module, parts[0], weight=float("nan"))
            replica.step(0.1)
        replica.add(replica.module, parts[0], weight=0.1)
        replica.step(0.1)
        ends.append(collect_weights(replica.module))
    assert are_bitwise_equal(ends[1], ends[0])


@pytest.mark.parametrize(
    "changes",
    [{}, {"optimizer": "adamw", "learning_rate": 2e-3, "adam_beta1": 0.8, "adam_beta2": 0.95, "schedule_floor": 0.5}],
)
def test_the_second_computation_of_the_updates_has_the_same_optimizer(
    changes: dict[str, Any], tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Callable[..., Any]
) -> None:
    told = _config(tmp_path / "work", tiny_model, slices[:1], **changes)
    train_here(told)
    config = parsed(told, tmp_path)
    one_process = OneProcess(config)
    wanted = one_process.update(order_as_one_rank, on_step=lambda: None).weights
    got, start = weights_at_end(told), one_process.start_weights
    assert relative_l2({name: got[name] for name in wanted}, wanted) < 1e-6
    assert relative_l2(start, wanted) > 1e-2, "the updates are too small to tell anything"


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_a_stopped_run_of_sgd_goes_on_to_the_same_bits(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Callable[..., Any], momentum: float
) -> None:
    whole, stopped = (
        _config(tmp_path / name, tiny_model, slices[:1], momentum=momentum) for name in ("whole", "stopped")
    )
    train_here(whole)
    with pytest.raises(StoppedError):
        train_here(stopped, stop_after_step=3)
    (partial,) = (tmp_path / "stopped").glob("partial/*/step-*/state.pt")
    kept = torch.load(partial, weights_only=True)["optimizer"]["state"]
    assert {name for moments in kept.values() for name in moments} == ({"momentum_buffer"} if momentum else set())
    train_here(stopped)
    assert facts_of(stopped)["num_resumes"] == 1
    assert are_bitwise_equal(weights_at_end(stopped), weights_at_end(whole))


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path, tiny_model: Path, slices: list[Path]) -> None:
    workload: Any = importlib.import_module("training.workloads.causal_lm")
    sgd, adamw = (
        Replica(workload.load_model(tiny_model), workload, parsed(told, tmp_path), torch.device("cpu"))
        for told in (_config(tmp_path, tiny_model, slices), _config(tmp_path, tiny_model, slices, optimizer="adamw"))
    )
    assert sgd.list_state_differences(sgd.state()) == []
    lines = sgd.list_state_differences({**adamw.state(), "without_moments": []})
    assert any(line.startswith("momentum_buffer of ") for line in lines)
