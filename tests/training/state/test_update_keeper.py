"""What is kept of each update for the equivalence certificate."""

import pytest
import torch

from tests.training.conftest import Toy, are_bitwise_equal, weights_at_end
from training.config import UPDATES_FOLDER
from training.loop import train
from training.model.weights import compute_tensor_checksum, load_tensors
from training.process.events import EventStream
from training.process.stop_request import StopRequest
from training.workloads import causal_lm


@pytest.mark.usefixtures("signals_as_before")
def test_the_kept_gradient_is_that_of_the_mean_loss_before_clipping_and_the_weights_are_those_before_the_update(
    toy: Toy,
) -> None:
    for work in ("keeping", "plain"):
        config = toy.read(work=work)
        events = EventStream(config.work_dir / "steps.jsonl", rank=0)
        train(config, toy.alone, stop=StopRequest(), events=events, keeps_updates=work == "keeping")
    files = sorted((toy.folder / "keeping" / UPDATES_FOLDER).iterdir())
    assert [file.name for file in files] == [f"step-{number:08d}.pt" for number in range(1, 7)]
    kept, second = map(load_tensors, files[:2])
    model, (parts, num_targets) = causal_lm.load_model(toy.models("tiny")), toy.take()
    for part in parts:
        (causal_lm.loss_sum(model, part) / num_targets).backward()
    expected = {name: part.grad for name, part in model.named_parameters()}
    assert kept["gradient"].keys() == expected.keys()
    for name, part in expected.items():
        torch.testing.assert_close(kept["gradient"][name], part, rtol=1e-4, atol=1e-6)
        assert torch.equal(kept["weights"][name], model.get_parameter(name))
    for what in ("gradient", "weight"):
        assert kept[f"{what}_checksums"] == [compute_tensor_checksum(kept["weights" if what == "weight" else what])]
    assert any(not torch.equal(part, kept["weights"][name]) for name, part in second["weights"].items())
    # Keeping it changes no bit of the training, and a training keeps none.
    assert are_bitwise_equal(*(weights_at_end(toy.tell(work)) for work in ("keeping", "plain")))
    assert not (toy.folder / "plain" / UPDATES_FOLDER).exists()
