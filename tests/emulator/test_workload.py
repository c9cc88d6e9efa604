"""The emulated device: what it is told is what it takes, and all but its time is real."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.emulator import WORKLOAD, workload
from tests.emulator.device import EmulatedDevice, expected_step_seconds, write_device
from tests.emulator.rank import EmulatedLoader, EmulatedRank, _Times
from tests.emulator.steps import Step, step_seconds
from tests.tiny import make_config
from tests.training.conftest import facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks, last_words
from training.data.batches import open_slice
from training.model.weights import compute_parameter_checksum
from training.process.distributed import Ranks
from training.strategies import ddp

_DEVICE = EmulatedDevice(num_layers=8, forward_ms=1.0, backward_ms=2.0, gradient_mib_per_layer=10.0)
"""24 ms per micro-batch; DDP's buckets hold 3, 3 and 2 of its layers."""
_NO_TIME = dataclasses.replace(_DEVICE, forward_ms=0.0, backward_ms=0.0)


# ------------------------------------------------------------------ what is real


@pytest.mark.parametrize(("bucket_mib", "layers"), [(None, [3, 3, 2]), (40.0, [4, 4]), (5.0, [1] * 8), (1000.0, [8])])
def test_ddp_fills_its_buckets_by_the_emulated_bytes(
    tmp_path: Path, slices: list[Path], alone: Ranks, bucket_mib: float | None, layers: list[int]
) -> None:
    model_dir = write_device(tmp_path / "device", _NO_TIME)
    config = make_config(tmp_path, model_dir, slices[:1], strategy="ddp", options={"bucket_mib": bucket_mib})
    strategy: Any = ddp.build(workload.load_model(model_dir), workload, parsed(config, tmp_path), alone)
    micro_batch = open_slice(slices[0]).collate([0, 1], seq_len=32)
    strategy.warm_up(micro_batch)
    strategy.train_step([micro_batch], num_targets=10, learning_rate=1e-3)
    assert strategy.describe()["bucket_bytes"] == [4 * 2048 * part for part in layers]
    assert _NO_TIME.layers_per_bucket(bucket_mib) == layers


@pytest.mark.slow
def test_training_on_two_ranks_is_the_training_on_one_and_learns(
    ranks: ForkedRanks, tmp_path: Path, slices: list[Path]
) -> None:
    model_dir = write_device(tmp_path / "device", _NO_TIME)
    configs = []
    for strategy, world_size in (("single", 1), ("ddp", 1), ("ddp", 2)):
        config = make_config(
            tmp_path / f"{strategy}-{world_size}", model_dir, slices[:1], epochs=4, learning_rate=5e-2,
            workload=WORKLOAD, strategy=strategy, world_size=world_size,
        )  # fmt: skip
        configs.append(ranks.train(config))
    single, wrapped, two = (facts_of(config) for config in configs)
    assert relative_l2(weights_at_end(configs[2]), weights_at_end(configs[0])) < 2e-6
    assert two["loss"] == pytest.approx(single["loss"], rel=1e-5)
    assert two["loss"] < 0.5 * facts_of(configs[2], segment=0)["loss"]
    assert len(set(two["parameter_checksums"])) == 1
    assert single["traffic"] == {}
    assert [part["traffic"]["all_reduce"]["number"] for part in (wrapped, two)] == [3 * 6, 3 * 6]
    assert two["traffic"]["all_reduce"]["num_bytes"] == 6 * 8 * 2048 * 4
    start = workload.load_model(model_dir)
    assert relative_l2(weights_at_end(configs[2]), start.state_dict()) > 0.01
    loaded = workload.load_model(model_dir, checkpoint=_checkpoint(configs[2]))
    assert compute_parameter_checksum(loaded) == two["parameter_checksums"][0]


def test_a_rank_whose_peer_died_ends_and_does_not_wait(ranks: ForkedRanks, tmp_path: Path, slices: list[Path]) -> None:
    model_dir = write_device(tmp_path / "device", _NO_TIME)
    for dead, left in ((1, 0), (0, 1)):
        config = make_config(
            tmp_path / f"{dead}-dies", model_dir, slices[:1],
            workload=WORKLOAD, strategy="ddp", world_size=2, log_every_steps=2,
        )  # fmt: skip
        # After step 3, no log point: the other learns of it in the exchange of step 4.
        codes = ranks.launch(config, fault=f"rank={dead},step=3,kind=sigkill")
        assert codes[dead] == -9
        # -9: the launcher had to kill it.
        assert codes[left] == 6, last_words(config)


def _checkpoint(config: dict[str, Any]) -> Path:
    return next((Path(config["work_dir"]) / "segments" / config["segments"][-1]["fingerprint"]).glob("tiny_*.pt"))


# ------------------------------------------------------------------ what it takes


@pytest.fixture(scope="module")
def timed(
    ranks: ForkedRanks, tmp_path_factory: pytest.TempPathFactory, slices: list[Path]
) -> tuple[dict[str, Step], dict[str, Any], dict[str, Any]]:
    """Steps on two ranks, how long they took, and how long two on one rank took: of 2 micro-batches in all."""
    folder = tmp_path_factory.mktemp("timed")
    shared = {"contention": 0.5, "shared_folder": str(folder / "shared")}

    def on(is_alone: bool = False, has_copy: bool = False, communicates: bool = True, **changes: Any) -> Step:
        device = dataclasses.replace(_DEVICE, **changes)
        return Step(device=device, communicates=communicates, is_alone=is_alone, has_copy=has_copy)

    slow_link = {"link_latency_ms": 1.0, "link_gib_per_second": 2.0}
    steps = {
        "plain": on(),
        "link": on(**slow_link),
        "link left out": on(**slow_link, communicates=False),
        "wrapper": on(wrapper_ms=5.0),
        "wrapper, link left out": on(wrapper_ms=5.0, **slow_link, communicates=False),
        "optimizer": on(optimizer_ms=12.0),
        "fixed": on(fixed_ms=12.0),
        "copy": on(copy_ms=12.0, has_copy=True),
        "straggler": on(straggler_ms=12.0),
        "contention": on(**shared),
        "alone": dataclasses.replace(on(**shared, is_alone=True), strategy="single"),
    }
    two = step_seconds(ranks, folder, slices[0], steps, world_size=2)
    one = {
        "plain": Step(device=_DEVICE, num_micro_batches=2, strategy="single"),
        "wrapped": Step(device=dataclasses.replace(_DEVICE, **slow_link), num_micro_batches=2),
        "straggler": Step(device=dataclasses.replace(_DEVICE, straggler_ms=48.0), num_micro_batches=2),
    }
    return steps, two, step_seconds(ranks, folder, slices[0], one, world_size=1)


@pytest.mark.alone
def test_two_ranks_without_a_link_are_nearly_twice_as_fast(timed: Any) -> None:
    _, two, one = timed
    assert 1.7 < one["plain"] / two["plain"] < 2.05


@pytest.mark.alone
def test_neither_a_link_nor_a_straggler_is_there_for_one_rank(timed: Any) -> None:
    _, _, one = timed
    assert one["wrapped"] / one["plain"] < 1.25
    assert one["straggler"] / one["plain"] < 1.25


@pytest.mark.alone
@pytest.mark.parametrize(
    "cause", ["link", "wrapper", "wrapper, link left out", "optimizer", "fixed", "copy", "straggler", "contention"]
)
def test_each_cause_lengthens_the_step_by_what_it_says(timed: Any, cause: str) -> None:
    steps, two, _ = timed
    true = _true_seconds(steps[cause]) / _true_seconds(steps["plain"])
    assert true >= 1.4
    assert 1 + 0.6 * (true - 1) < two[cause] / two["plain"] < 1 + 1.5 * (true - 1)


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["link left out", "alone"])
def test_what_is_not_exchanged_and_who_is_alone_take_as_long_as_without_the_cause(timed: Any, kind: str) -> None:
    _, two, _ = timed
    assert two[kind] / two["plain"] < 1.25


@pytest.mark.alone
def test_no_step_is_shorter_than_the_truth(timed: Any) -> None:
    steps, two, one = timed
    for name, step in steps.items():
        if not step.is_alone:
            assert two[name] > 0.95 * _true_seconds(step), name
    assert one["plain"] > 0.95 * expected_step_seconds(_DEVICE, 1, 2)


@pytest.mark.alone
def test_ranks_that_exchange_stay_equal_and_ranks_that_do_not_part(timed: Any) -> None:
    _, two, _ = timed
    num_different = {name: len(set(sums)) for name, sums in two["checksums"].items()}
    apart = {"link left out", "wrapper, link left out", "alone"}
    assert num_different == {name: 1 + (name in apart) for name in num_different}


def _true_seconds(step: Step) -> float:
    seconds = expected_step_seconds(step.device, 2, step.num_micro_batches, communicates=step.communicates)
    return seconds if step.has_copy else seconds - step.device.copy_ms * step.num_micro_batches / 1e3


def test_the_loader_takes_its_time_for_every_micro_batch() -> None:
    loader = EmulatedLoader(dataclasses.replace(_DEVICE, data_ms=4.0))
    started = time.monotonic()
    for _ in range(5):
        loader.load_micro_batch()
    assert time.monotonic() - started >= 0.020


def test_jitter_has_the_mean_and_the_spread_it_says_and_is_drawn_by_seed_and_stream() -> None:
    def drawn(seed: int, stream: int) -> np.ndarray:
        times = _Times(dataclasses.replace(_DEVICE, jitter=0.3, seed=seed), [stream])
        return np.array([times.around(2.0) for _ in range(20_000)])

    seconds = drawn(1, 1)
    assert seconds.mean() == pytest.approx(0.002, rel=0.01)
    assert seconds.std() / seconds.mean() == pytest.approx(0.3, rel=0.05)
    assert (seconds == drawn(1, 1)).all()
    assert (seconds != drawn(2, 1)).all()
    assert (seconds != drawn(1, 2)).all()


def test_in_every_step_one_rank_is_the_straggler_and_each_is_one_at_times_or_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch.distributed as dist

    device = dataclasses.replace(_DEVICE, straggler_ms=1.0, seed=3)
    late, always = [], []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    for index in range(4):
        monkeypatch.setattr(dist, "get_rank", lambda index=index: index)
        rank = EmulatedRank(device)
        mine = []
        for step in range(100):
            rank._num_steps = step
            mine.append(rank._is_straggler())
        late.append(mine)
        always.append(EmulatedRank(dataclasses.replace(device, straggler_rank=2))._is_straggler())
    assert (np.sum(late, axis=0) == 1).all()
    assert (np.sum(late, axis=1) > 10).all()
    assert always == [False, False, True, False]


def test_a_trained_loop_runs_on_an_emulated_device(
    tmp_path: Path, slices: list[Path], train_here: Callable[..., Any]
) -> None:
    device = dataclasses.replace(_DEVICE, num_layers=2, forward_ms=0.5, backward_ms=1.0, fixed_ms=2.0, optimizer_ms=3.0)
    config = make_config(tmp_path / "work", write_device(tmp_path / "device", device), slices[:1], workload=WORKLOAD)
    train_here(config)
    facts = facts_of(config)
    # 5 steps of 4 micro-batches and one of 3, all of 3 ms; the first forward of all is that of the warm-up.
    assert facts["num_steps"] == 6
    assert facts["train_seconds"] >= 0.95 * (23 * 0.003 + 6 * 0.003 + 5 * 0.002)
