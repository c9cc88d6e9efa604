"""Batch normalisation over the rows of all ranks: exactly that of one process, layer by layer and run by run."""

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.images import make_image_slice
from tests.training.conftest import (
    Toy,
)
from tests.training.forked_ranks import ForkedRanks, last_words
from tests.training.replays import check, launch_checked, list_verdicts, train_checked
from training.model.sync_norm import SyncBatchNorm

_GROUP = 4
"""Rows that are normalised together: one rank's micro-batch, or two ranks' of 2."""


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """6 and 14 images of 64 x 64: one step, in whose second forward a rank of two has no row, and two steps.

    Few steps of images that are not too small: over the fewest values a rounding becomes 30 times as much in each.
    """
    root = tmp_path_factory.mktemp("normed")
    return [make_image_slice(root / f"{num}", num_rows=num, size=64) for num in (6, 14)]


def _tell(slices: list[Path], **changes: Any) -> dict[str, Any]:
    return {
        "workload": "image_classification", "model": "resnet18, normed", "slices": slices, "optimizer": "sgd",
        "learning_rate": 0.01, "max_grad_norm": 5.0, "micro_batch_size": _GROUP // changes.get("world_size", 1),
        "statistics_rows": _GROUP, "augment": "flip_shift", **changes,
    }  # fmt: skip


class _Meeting:
    """Threads in the place of ranks, which meet in every exchange."""

    def __init__(self, num_ranks: int) -> None:
        self._parts: dict[int, Tensor] = {}
        self._barrier = threading.Barrier(num_ranks)

    def gather(self, rank: int, mine: Tensor) -> Tensor:
        self._parts[rank] = mine
        self._barrier.wait()
        found = torch.stack([self._parts[rank] for rank in sorted(self._parts)])
        self._barrier.wait()
        return found


@dataclasses.dataclass
class _Seat:
    """One rank's place in it."""

    meeting: _Meeting
    rank: int

    def gather(self, mine: Tensor) -> Tensor:
        return self.meeting.gather(self.rank, mine)

    def add_up(self, mine: Tensor) -> Tensor:
        return self.meeting.gather(self.rank, mine).sum(0)


def _run_together(runs: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=run, daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a rank waits for another"


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1, 0), (5, 2)])
def test_shares_of_the_rows_give_value_gradient_and_running_statistics_of_all_of_them(sizes: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(sum(sizes), 3, 4, 5, dtype=torch.float64, generator=draw) * 3 + 100
    wanted = torch.randn(rows.shape, dtype=torch.float64, generator=draw)
    whole = nn.BatchNorm2d(3).double()
    whole.weight.data, whole.bias.data = torch.tensor([[0.5, 2.0, -1.0], [1.0, 0.0, 3.0]], dtype=torch.float64)
    layers = [SyncBatchNorm(3).double() for _ in sizes]
    meeting = _Meeting(len(sizes))
    for rank, layer in enumerate(layers):
        layer.load_state_dict(whole.state_dict())
        layer.exchange = _Seat(meeting, rank)
    all_rows = rows.clone().requires_grad_()
    expected = whole(all_rows)
    (expected * wanted).sum().backward()
    mine = [part.clone().requires_grad_() for part in rows.split(sizes)]
    found: dict[int, Tensor] = {}

    def run(rank: int) -> None:
        found[rank] = layers[rank](mine[rank])
        (found[rank] * wanted.split(sizes)[rank]).sum().backward()

    _run_together([lambda rank=rank: run(rank) for rank in range(len(sizes))])  # type: ignore[misc]
    close: dict[str, float] = {"rtol": 1e-10, "atol": 1e-12}
    torch.testing.assert_close(torch.cat([found[rank] for rank in range(len(sizes))]), expected, **close)
    assert all_rows.grad is not None
    gradients = [part.grad for part in mine if part.grad is not None]
    torch.testing.assert_close(torch.cat(gradients), all_rows.grad, **close)
    for name in ("weight", "bias"):
        parts = [layer.get_parameter(name).grad for layer in layers]
        torch.testing.assert_close(sum(parts), whole.get_parameter(name).grad, **close)  # type: ignore[arg-type]
    for layer in layers:
        for name, buffer in whole.named_buffers():
            torch.testing.assert_close(layer.get_buffer(name), buffer, **close)
            assert torch.equal(layer.get_buffer(name), layers[0].get_buffer(name)), "ranks have to agree to the bit"


def test_one_process_runs_the_batch_normalisation_of_torch_and_one_value_becomes_the_bias() -> None:
    layer, torchs = SyncBatchNorm(2), nn.BatchNorm2d(2)
    rows = torch.randn(4, 2, 3, 3)
    assert torch.equal(layer(rows), torchs(rows))
    assert all(torch.equal(layer.get_buffer(name), buffer) for name, buffer in torchs.named_buffers())
    before = layer.running_var.clone()  # type: ignore[union-attr]
    layer.bias.data.fill_(7.0)
    one = torch.full((1, 2, 1, 1), 3.0, requires_grad=True)
    normalised = layer(one)
    normalised.sum().backward()
    assert normalised.flatten().tolist() == [7.0, 7.0]
    assert one.grad is not None
    assert not one.grad.any()
    torch.testing.assert_close(layer.running_var, before * 0.9)


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "verdict"), [("training.__main__", "passed"), ("tests.training.apart", "failed")])
def test_updates_with_statistics_of_all_ranks_pass_and_no_others(
    entry: str, verdict: str, ranks: ForkedRanks, slices: list[Path], toy: Toy
) -> None:
    config = check(toy.tell(**_tell(slices, world_size=2)), 1, 2)
    if verdict == "failed":
        # Their running statistics part, and with them the ranks: nothing is saved.
        assert set(launch_checked(ranks, config, entry=entry)) == {6}, last_words(config)
        assert "update of step 1: failed" in last_words(config)
        return
    updates = train_checked(ranks, config, entry=entry)
    assert list_verdicts(updates) == [("passed", None)] * 3
    assert all("statistics" in one["compared"] for one in updates)
