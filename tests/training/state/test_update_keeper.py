"""What is kept of each update for the equivalence certificate."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.tiny import make_config
from tests.training.conftest import parsed
from training.config import UPDATES_FOLDER
from training.data.batches import open_slice
from training.data.plan import plan_segment
from training.loop import train
from training.model.weights import compute_tensor_checksum, load_tensors
from training.process.distributed import Ranks
from training.process.events import EventStream
from training.process.stop_request import StopRequest
from training.workloads import causal_lm


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _train(work: Path, model: Path, slices: list[Path], alone: Ranks, *, keeps_updates: bool) -> Path:
    config = parsed(make_config(work, model, slices[:1]), work.parent)
    events = EventStream(work / "steps.jsonl", rank=0)
    train(config, alone, stop=StopRequest(), events=events, keeps_updates=keeps_updates)
    return work / "segments" / config.segments[0].fingerprint


def test_the_kept_gradient_is_that_of_the_mean_loss_before_clipping_and_the_weights_are_those_before_the_update(
    tiny_model: Path, slices: list[Path], alone: Ranks, tmp_path: Path
) -> None:
    _train(tmp_path / "work", tiny_model, slices, alone, keeps_updates=True)
    files = sorted((tmp_path / "work" / UPDATES_FOLDER).iterdir())
    assert [file.name for file in files] == [f"step-{number:08d}.pt" for number in range(1, 7)]
    kept = load_tensors(files[0])
    source = open_slice(slices[0])
    plan = plan_segment(
        source.lengths(32), seed=1, epoch=1, rows="0-45", global_batch_size=8, micro_batch_size=2
    )  # fmt: skip
    model = causal_lm.load_model(tiny_model)
    batch = source.collate(plan.order[:8].tolist(), seq_len=32)
    (causal_lm.loss_sum(model, batch) / batch.num_tokens).backward()
    expected = {name: part.grad for name, part in model.named_parameters()}
    assert kept["gradient"].keys() == expected.keys()
    for name, part in expected.items():
        torch.testing.assert_close(kept["gradient"][name], part, rtol=1e-4, atol=1e-6)
        assert torch.equal(kept["weights"][name], model.get_parameter(name))
    assert kept["gradient_checksums"] == [compute_tensor_checksum(kept["gradient"])]
    assert kept["weight_checksums"] == [compute_tensor_checksum(kept["weights"])]
    second = load_tensors(files[1])
    assert any(not torch.equal(part, kept["weights"][name]) for name, part in second["weights"].items())


def test_keeping_it_changes_no_bit_of_the_training_and_a_training_keeps_none(
    tiny_model: Path, slices: list[Path], alone: Ranks, tmp_path: Path
) -> None:
    with_file = _train(tmp_path / "a" / "work", tiny_model, slices, alone, keeps_updates=True)
    without = _train(tmp_path / "b" / "work", tiny_model, slices, alone, keeps_updates=False)
    name = "tiny_0-45-epoch-1.pt"
    weights, plain = load_tensors(with_file / name), load_tensors(without / name)
    assert all(torch.equal(part, plain[name]) for name, part in weights.items())
    assert not (tmp_path / "b" / "work" / UPDATES_FOLDER).exists()
