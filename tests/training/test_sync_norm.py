"""Batch normalisation over the rows of all ranks: exactly that of one process, layer by layer and run by run."""

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tasks.data.builtin.image_networks import write_image_network
from tasks.equivalence.updates import compare_with_one_process, judge
from tasks.strategies import Work, find_profile
from tests.images import CLASS_NAMES, make_image_slice
from tests.tiny import make_config, with_manifest
from tests.training.conftest import are_bitwise_equal, events_in, facts_of, parsed, relative_l2, weights_at_end
from tests.training.forked_ranks import ForkedRanks, last_words
from training.model.sync_norm import SyncBatchNorm, list_statistics
from training.model.weights import compute_parameter_checksum
from training.process.distributed import Ranks
from training.process.failure import UnfitModelError
from training.strategies import find_strategy
from training.workloads import image_classification as workload

_GROUP = 4
"""Rows that are normalised together: one rank's micro-batch, or two ranks' of 2."""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in ResNet18 with batch normalisation, for three classes."""
    folder = tmp_path_factory.mktemp("normed") / "model"
    folder.mkdir()
    write_image_network(folder, "resnet18", CLASS_NAMES, norm="sync_batch")
    return with_manifest(folder, num_parameters=0, model_type="resnet18")


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """6, 2 and 14 images of 64 x 64: one step, one in which a rank of two has no row, and two steps.

    Few steps of images that are not too small: over the fewest values a rounding becomes 30 times as much in each.
    """
    root, sizes = tmp_path_factory.mktemp("normed"), ((0, 6), (6, 2), (8, 14))
    return [make_image_slice(root / f"{first}", num_rows=num, size=64, first_row=first) for first, num in sizes]


def _config(work: Path, model_dir: Path, slices: list[Path], **changes: Any) -> dict[str, Any]:
    world_size = changes.get("world_size", 1)
    return make_config(
        work, model_dir, slices,
        **{
            "workload": "image_classification", "optimizer": "sgd", "learning_rate": 0.01, "max_grad_norm": 5.0,
            "strategy": "single" if world_size == 1 else "ddp", "micro_batch_size": _GROUP // world_size,
            "statistics_rows": _GROUP, "augment": "flip_shift", **changes,
        },
    )  # fmt: skip


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
def test_one_and_two_ranks_train_the_same_weights_and_statistics_with_ddp_and_zero1(
    ranks: ForkedRanks, model_dir: Path, slices: list[Path], tmp_path: Path
) -> None:
    start = dict(workload.load_model(model_dir).state_dict())
    statistics = list_statistics(workload.load_model(model_dir))
    assert len(statistics) == 40
    for strategy, index, num_forwards in (("ddp", 1, 1), ("ddp", 0, 2), ("zero1", 0, 2)):
        rows = slices[index : index + 1]
        wanted = weights_at_end(ranks.train(_config(tmp_path / f"{index}", model_dir, rows)))
        cell = {"strategy": strategy, "world_size": 2}
        two = ranks.train(_config(tmp_path / f"{strategy}-{index}", model_dir, rows, **cell))
        found, facts = weights_at_end(two), facts_of(two)
        counts = {name for name in wanted if name.endswith(".num_batches_tracked")}
        assert all(found[name] == wanted[name] == num_forwards for name in counts)
        for names in (statistics.keys(), wanted.keys() - statistics.keys() - counts):
            own, other, first = ({name: one[name] for name in names} for one in (found, wanted, start))
            # Where each rank normalises its own rows they differ by as much as is trained. The certificate is sharper.
            assert relative_l2(own, other) < 0.03 * relative_l2(first, other) > 1e-8
        assert len(facts["parameter_checksums"]) == 2
        assert len(set(facts["parameter_checksums"])) == 1
        # Of 20 layers, forward and backward.
        counted = facts["traffic"]["statistic"]
        assert counted["number"] == num_forwards * 20 * 2
        assert facts["exchange"]["statistic_channels"] == [
            part.num_features for part in workload.load_model(model_dir).modules() if isinstance(part, SyncBatchNorm)
        ]
        profile = find_profile(strategy)
        assert profile is not None
        work = Work(
            world_size=2, num_steps=1, num_rounds=(num_forwards,) * 2, gradient_bytes=0, exchange=facts["exchange"]
        )
        expected = profile.compute_expected_traffic(work)["statistic"]
        assert (expected.number.least, expected.num_bytes.least) == (counted["number"], counted["num_bytes"])
        recorded = facts["recorded_exchanges"]
        assert recorded["num_bytes"] == recorded["counted_bytes"] > 0


@pytest.mark.slow
def test_a_stopped_run_of_two_ranks_resumes_to_the_same_weights_and_statistics_to_the_bit(
    ranks: ForkedRanks, model_dir: Path, slices: list[Path], tmp_path: Path
) -> None:
    cell = {"world_size": 2, "checkpoint_every_steps": 1}
    whole = ranks.train(_config(tmp_path / "whole", model_dir, slices[2:], **cell))
    config = _config(tmp_path / "killed", model_dir, slices[2:], **cell)
    assert ranks.launch(config, fault="rank=1,step=2,kind=sigkill") != [0, 0], last_words(config)
    ranks.train(config)
    resumed = [event for event in events_in(tmp_path / "killed/steps.jsonl") if event["event"] == "segment_started"]
    assert resumed[-1]["resumed_at_step"] == 1
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(whole))
    assert facts_of(config)["parameter_checksums"] == facts_of(whole)["parameter_checksums"]


@pytest.mark.slow
def test_the_certificate_passes_statistics_of_all_ranks_and_no_others(
    ranks: ForkedRanks, model_dir: Path, slices: list[Path], tmp_path: Path
) -> None:
    for entry, wanted in (("keeping", "passed"), ("keeping_apart", "failed")):
        config = _config(tmp_path / entry, model_dir, slices[2:], world_size=2)
        codes = ranks.launch(config, entry=f"tests.training.{entry}")
        told = parsed(config, tmp_path)
        updates, problems = compare_with_one_process(told, on_update=lambda: None)
        verdict, why = judge(updates, problems)
        assert verdict == wanted, (why, last_words(config))
        if entry == "keeping":
            assert codes == [0, 0], last_words(config)
            assert all(one.statistics is not None for one in updates)
            assert len(updates) == 2
    # Of right ranks whose checkpoint somebody has changed.
    config = _config(tmp_path / "keeping", model_dir, slices[2:], world_size=2)
    (file,) = (tmp_path / "keeping").glob("segments/*/tiny_*.pt")
    weights = torch.load(file, weights_only=True)
    torch.save({**weights, "layer1.0.bn1.running_var": weights["layer1.0.bn1.running_var"] * 1.001}, file)
    verdict, why = judge(*compare_with_one_process(parsed(config, tmp_path), on_update=lambda: None))
    assert (verdict, "other running statistics than the last update left" in str(why)) == ("failed", True)


def test_warming_up_and_looking_at_a_gradient_leave_the_statistics(
    alone: Ranks, model_dir: Path, slices: list[Path], tmp_path: Path
) -> None:
    config = parsed(_config(tmp_path, model_dir, slices), tmp_path)
    model = workload.load_model(model_dir)
    before = {name: part.clone() for name, part in model.state_dict().items()}
    checksum = compute_parameter_checksum(model)
    strategy = find_strategy("single").build(model, workload, config, alone)
    part = workload.open_slice(slices[0]).collate(range(4), seq_len=2)
    strategy.warm_up(part)
    assert strategy.gives_finite_gradient([part], num_targets=4)
    assert strategy.sum_losses([part]) > 0
    assert are_bitwise_equal(dict(model.state_dict()), before)
    list_statistics(model)["bn1.running_mean"][3] += 1e-3
    assert compute_parameter_checksum(model) != checksum
    assert strategy.digest().parameters == [compute_parameter_checksum(model)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"statistics_rows": 8}, "norm: sync_batch over 8 rows with micro_batch_size 4 x 1 ranks"),
        ({"strategy": "fsdp2"}, "norm: sync_batch is not available for the strategy fsdp2; use norm: group"),
        ({"strategy": "pipeline"}, "norm: sync_batch is not available for the strategy pipeline"),
        ({"strategy": "ddp", "exact": True}, "norm: sync_batch is not available for exact: true"),
    ],
)
def test_what_cannot_have_batch_normalisation_is_refused_in_one_line(
    alone: Ranks, model_dir: Path, slices: list[Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = parsed(_config(tmp_path / "work", model_dir, slices, **changes), tmp_path)
    with pytest.raises(UnfitModelError, match=message):
        find_strategy(config.strategy).build(workload.load_model(model_dir), workload, config, alone)
