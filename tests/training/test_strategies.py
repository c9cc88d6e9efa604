"""One optimizer step, by hand and by strategy."""

import contextlib
import dataclasses
import gc
import importlib
import io
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tiny import make_config, make_tiny_model
from tests.training.conftest import parsed, weights_at_end
from training.data.batches import open_slice
from training.data.plan import make_micro_batches, plan_segment
from training.process.distributed import Ranks
from training.process.heartbeat import StepSection
from training.step.optimizer import list_moments
from training.step.replicated import Replicated
from training.step.schedule import compute_learning_rate


def _build(config: dict[str, Any], folder: Path, ranks: Ranks) -> Replicated:
    settings = parsed(config, folder)
    workload: Any = importlib.import_module("training.workloads.causal_lm")
    strategies: Any = importlib.import_module(f"training.strategies.{settings.strategy}")
    model = workload.load_model(settings.model_dir)
    strategy: Replicated = strategies.build(model, workload, settings, ranks)
    return strategy


def _first_micro_batches(config: dict[str, Any], slice_dir: Path) -> tuple[list[Any], int]:
    source = open_slice(slice_dir)
    plan = plan_segment(
        source.lengths(config["seq_len"]), seed=config["seed"], epoch=1, rows="0-45",
        global_batch_size=config["global_batch_size"], micro_batch_size=config["micro_batch_size"],
    )  # fmt: skip
    step = plan.step(1)
    parts = make_micro_batches(source, step, rank=0, world_size=1, seq_len=config["seq_len"], seed=(1, 1))
    return list(parts), step.num_tokens


def test_trained_weights_equal_a_training_by_hand_row_by_row(
    tiny_model: Path, slices: list[Path], tmp_path: Path, train_here: Callable[..., Any]
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices[:1])
    events = train_here(config)

    from training.workloads.causal_lm import load_model

    model, source = load_model(tiny_model), open_slice(slices[0])
    order = plan_segment(
        source.lengths(32), seed=1, epoch=1, rows="0-45", global_batch_size=8, micro_batch_size=2
    ).order  # fmt: skip
    matrices = [part for part in model.parameters() if part.ndim >= 2]
    vectors = [part for part in model.parameters() if part.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}], foreach=False
    )
    lines = [event for event in events if event["event"] == "step"]
    assert len(lines) == 6
    for index, line in enumerate(lines):
        rows = [source.row(row, 32).astype("int64") for row in order[index * 8 : (index + 1) * 8]]
        num_tokens = sum(len(row) - 1 for row in rows)
        loss = torch.zeros(())
        for row in (torch.tensor(row) for row in rows if len(row) > 1):
            logits = model(input_ids=row[None]).logits[0, :-1]
            loss = loss + nn.functional.cross_entropy(logits, row[1:], reduction="sum")
        (loss / num_tokens).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = compute_learning_rate(index + 1, 6, peak=2e-3, schedule="linear", warmup_steps=2, floor=0.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        assert line["num_tokens"] == num_tokens
        assert line["num_samples"] == len(rows)
        assert line["loss"] == pytest.approx(float(loss.detach()) / num_tokens, rel=1e-5)
        assert line["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
        assert line["learning_rate"] == rate

    from tests.training.conftest import relative_l2

    assert relative_l2(weights_at_end(config), model.state_dict()) < 2e-6


def test_ddp_reduces_every_bucket_once_per_step_whatever_the_number_of_micro_batches(
    slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    # Above 1 MB, DDP's first bucket: more than one bucket, so that the count can be wrong.
    model = make_tiny_model(tmp_path / "wide", hidden_size=128, num_layers=4)
    config = make_config(tmp_path, model, slices[:1], strategy="ddp")
    strategy: Any = _build(config, tmp_path, alone)
    parts, num_tokens = _first_micro_batches(config, slices[0])
    strategy.warm_up(parts[-1])
    assert len(parts) == 4
    results = [strategy.train_step(parts, num_targets=num_tokens, learning_rate=1e-3) for _ in range(3)]
    buckets = strategy.step._wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")
    assert len(buckets) > 1
    assert [result.traffic["all_reduce"].number for result in results] == [len(buckets)] * 3
    assert strategy.describe()["bucket_bytes"] == [int(size) for size in buckets]
    num_bytes = sum(part.numel() * part.element_size() for part in strategy.replica.parameters)
    assert [result.traffic["all_reduce"].num_bytes for result in results] == [num_bytes] * 3

    # A trainer that synchronises every micro-batch is given away by both figures.
    strategy.step._wrapped.no_sync = contextlib.nullcontext
    result = strategy.train_step(parts, num_targets=num_tokens, learning_rate=1e-3)
    assert result.traffic["all_reduce"] == (4 * len(buckets), 4 * num_bytes)


class _CountedCasts(TorchDispatchMode):
    """Counts the copies in another dtype that are made of tensors at these places in memory."""

    def __init__(self, places: Collection[int]) -> None:
        super().__init__()
        self.numbers = dict.fromkeys(places, 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].data_ptr() in self.numbers:
            self.numbers[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["single", "ddp", "zero1"])
def test_in_16_bit_the_weights_of_a_layer_are_cast_once_per_step_and_anew_in_the_next(
    name: str, tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    config = make_config(tmp_path, tiny_model, slices[:1], strategy=name, precision="bf16")
    strategy: Any = _build(config, tmp_path, alone)
    parts, num_tokens = _first_micro_batches(config, slices[0])
    assert len(parts) == 4
    layers = [part for key, part in strategy.module.named_parameters() if "proj.weight" in key]
    with _CountedCasts([part.data_ptr() for part in layers]) as casts:
        for step in range(1, 4):
            strategy.train_step(parts, num_targets=num_tokens, learning_rate=1e-3)
            assert set(casts.numbers.values()) == {step}


def test_ddp_on_one_rank_equals_single_to_the_bit(
    tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    checksums = set()
    for name in ("single", "ddp"):
        config = make_config(tmp_path, tiny_model, slices[:1], strategy=name)
        strategy = _build(config, tmp_path, alone)
        parts, num_tokens = _first_micro_batches(config, slices[0])
        strategy.warm_up(parts[0])
        for _ in range(3):
            strategy.train_step(parts, num_targets=num_tokens, learning_rate=1e-3)
        checksums.add(strategy.replica.parameter_checksum())
    assert len(checksums) == 1


@pytest.mark.parametrize("changes", [
    {}, {"strategy": "ddp", "options": {"bucket_view": False}}, {"strategy": "fsdp2"},
    {"strategy": "ddp", "exact": True}, {"optimizer": "sgd", "momentum": 0.0}, {"global_batch_size": 2},
], ids=str)  # fmt: skip
@pytest.mark.usefixtures("nothing_older")
def test_warming_up_has_in_memory_what_a_step_has_and_no_more(
    tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks, changes: dict[str, Any]
) -> None:
    config = make_config(tmp_path, tiny_model, slices[:1], **changes)
    strategy: Any = _build(config, tmp_path, alone)
    parts, num_tokens = _first_micro_batches(config, slices[0])
    held: list[int] = []
    # When a backward begins there is most in memory: all of the forward's, and whatever else a step needs.
    strategy.on_section = lambda section: held.append(_count_bytes()) if section is StepSection.BACKWARD else None
    before = _count_bytes()
    strategy.warm_up(parts[0])
    warm = max(held) - before
    held.clear()
    alike = [dataclasses.replace(parts[0], place=part.place) for part in parts]
    for _ in range(2):
        strategy.train_step(alike, num_targets=num_tokens, learning_rate=1e-3)
    assert warm == pytest.approx(max(held) - before, rel=0.02)
    weights = sum(part.numel() * part.element_size() for part in strategy.module.parameters())
    # The moments, and where a step has several micro-batches the gradient.
    assert warm > (len(list_moments(parsed(config, tmp_path))) + (len(parts) > 1)) * 0.99 * weights


@pytest.fixture
def nothing_older() -> Iterator[None]:
    """Have Python's collector know what comes from here on alone: all that other tests left is much to look through."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def _count_bytes() -> int:
    """Return the bytes of all tensors that Python knows: gradients too, but no bucket that no gradient lies in."""
    gc.collect()
    known = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    every = [*known, *(one.grad for one in known if one.is_leaf and one.grad is not None)]
    # What is sharded stands there by its parts, too, and what a compiler left behind has no memory.
    memory = [one.untyped_storage() for one in every if not isinstance(one, DTensor | FakeTensor)]
    return sum({one.data_ptr(): one.nbytes() for one in memory}.values())


@pytest.mark.parametrize("name", ["single", "ddp"])
def test_warming_up_changes_nothing(
    tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks, name: str
) -> None:
    config = make_config(tmp_path, tiny_model, slices[:1], strategy=name)
    parts, num_tokens = _first_micro_batches(config, slices[0])
    ends = set()
    for is_warm in (False, True):
        strategy = _build(config, tmp_path, alone)
        before = strategy.replica.parameter_checksum()
        if is_warm:
            strategy.warm_up(parts[0])
        assert strategy.replica.parameter_checksum() == before
        result = strategy.train_step(parts, num_targets=num_tokens, learning_rate=1e-3)
        ends.add((strategy.replica.parameter_checksum(), float(result.loss_sum), float(result.grad_norm)))
    assert len(ends) == 1


def test_a_gradient_that_is_not_finite_changes_no_parameter_and_no_optimizer_state(
    tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    config = make_config(tmp_path, tiny_model, slices[:1])
    strategy = _build(config, tmp_path, alone)
    parts, num_tokens = _first_micro_batches(config, slices[0])
    strategy.train_step(parts, num_targets=num_tokens, learning_rate=1e-3)
    before, moments = strategy.replica.parameter_checksum(), _moments(strategy)
    strategy.replica.add(strategy.replica.module, parts[-1], weight=float("nan"))
    _, grad_norm = strategy.replica.step(1e-3)
    assert not grad_norm.isfinite()
    assert strategy.replica.parameter_checksum() == before
    assert all(torch.equal(one, other) for one, other in zip(_moments(strategy), moments, strict=True))


def test_an_fp16_step_that_overflows_is_skipped_and_the_scale_halved(
    tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks
) -> None:
    config = make_config(tmp_path, tiny_model, slices[:1], precision="fp16")
    strategy = _build(config, tmp_path, alone)
    parts, num_tokens = _first_micro_batches(config, slices[0])
    strategy.train_step(parts, num_targets=num_tokens, learning_rate=1e-3)
    state = strategy.replica.state()
    strategy.replica.load_state({**state, "scaler": {**state["scaler"], "scale": 2.0**60}})
    before = strategy.replica.parameter_checksum()
    result = strategy.train_step(parts, num_targets=num_tokens, learning_rate=1e-3)
    assert not result.grad_norm.isfinite()
    assert strategy.replica.may_overflow()
    assert strategy.replica.parameter_checksum() == before
    assert strategy.replica.state()["scaler"]["scale"] == 2.0**59


@pytest.mark.parametrize(("optimizer", "precision"), [("adamw", "fp32"), ("adamw", "fp16"), ("sgd", "fp32")])
def test_the_optimizer_checksum_tells_states_apart_and_survives_saving(
    tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks, optimizer: str, precision: str
) -> None:
    config = make_config(tmp_path, tiny_model, slices[:1], optimizer=optimizer, momentum=0.9, precision=precision)
    parts, num_tokens = _first_micro_batches(config, slices[0])
    one, other = (_build(config, tmp_path, alone) for _ in range(2))
    fresh = one.replica.optimizer_checksum()
    assert fresh == other.replica.optimizer_checksum()
    # The weights stay what they are at a learning rate of 0, the moments do not.
    one.train_step(parts, num_targets=num_tokens, learning_rate=0.0)
    assert one.replica.parameter_checksum() == other.replica.parameter_checksum()
    assert one.replica.optimizer_checksum() != fresh
    saved = io.BytesIO()
    torch.save(one.replica.state(), saved)
    saved.seek(0)
    other.replica.load_state(torch.load(saved, weights_only=True))
    assert other.replica.optimizer_checksum() == one.replica.optimizer_checksum()


def test_a_state_that_is_not_restored_is_refused(
    tiny_model: Path, slices: list[Path], tmp_path: Path, alone: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(tmp_path, tiny_model, slices[:1])
    parts, num_tokens = _first_micro_batches(config, slices[0])
    one, other = (_build(config, tmp_path, alone) for _ in range(2))
    one.train_step(parts, num_targets=num_tokens, learning_rate=1e-3)
    monkeypatch.setattr(other.replica._optimizer, "load_state_dict", lambda state: None)
    with pytest.raises(ValueError, match="of parameter 0 is not what was saved after it was restored"):
        other.replica.load_state(one.replica.state())


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns_and_keeps_fp32_weights_and_optimizer_state(
    tiny_model: Path, slices: list[Path], tmp_path: Path, train_here: Callable[..., Any], precision: str
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices[:1], epochs=2, precision=precision)
    events = train_here(config)
    finished = [event["loss"] for event in events if event["event"] == "segment_finished"]
    assert finished[1] < finished[0] < 5.5
    assert {part.dtype for part in weights_at_end(config).values()} == {torch.float32}
    folder = Path(config["work_dir"]) / "segments" / config["segments"][-1]["fingerprint"]
    state = torch.load(folder / "state.pt", weights_only=True)
    assert {part.dtype for part in state["optimizer"]["state"][0].values()} == {torch.float32}
    assert ("scale" in state["scaler"]) == (precision == "fp16")


def _moments(strategy: Replicated) -> list[torch.Tensor]:
    states = strategy.replica.state()["optimizer"]["state"].values()
    return [value.clone() for state in states for value in state.values()]
