"""The held-out loss in mid-training: what it is, and that nothing else comes of it."""

from pathlib import Path

import pytest
import torch

from tests.tiny import make_slice
from tests.training.conftest import are_bitwise_equal, facts_of, folder_of, steps_of, weights_at_end
from training.data.batches import open_slice
from training.process.failure import StoppedError
from training.workloads.causal_lm import load_model, loss_sum


@pytest.fixture(scope="module")
def looking(tmp_path_factory):
    """Looks at rows of other lengths, of which ranks and micro-batches have unequal shares."""
    folder = make_slice(tmp_path_factory.mktemp("heldout") / "72-83", num_rows=11, first_row=72, seed=7)
    return {"eval_every_steps": 4, "heldout_dir": str(folder), "heldout_digest": "rows"}


def _points(config):
    """Return step -> held-out loss, of the finished segments' own records."""
    lines = [line for line in steps_of(config) if "heldout_loss" in line]
    assert {line["heldout_rows"] for line in lines} == {"rows"}
    return {line["step"]: line["heldout_loss"] for line in lines}


def test_the_held_out_loss_is_that_of_the_weights_after_the_step_without_dropout(toy, looking, train_here, trained):
    # Step 6 is the last of the first segment, whose weights are on disk.
    told = {"model": "dropout", "num_slices": 2}
    config = toy.tell(**told, **{**looking, "eval_every_steps": 3})
    with pytest.raises(StoppedError):
        train_here(config, stop_after_step=4)
    events = train_here(config)
    found = _points(config)
    assert list(found) == [3, 6, 9]
    (weights,) = folder_of(config, 0).glob("tiny_*.pt")
    model, source = load_model(toy.models("dropout"), checkpoint=weights), open_slice(Path(looking["heldout_dir"]))
    with torch.no_grad():
        rows = [source.collate([row], seq_len=32) for row in range(len(source))]
        total = sum(float(loss_sum(model.eval(), row)) for row in rows)
    assert found[6] == pytest.approx(total / sum(row.num_targets for row in rows), rel=1e-6)
    assert [event["heldout_loss"] for event in events if "heldout_loss" in event] == [found[6], found[9]]
    assert facts_of(config)["heldout_seconds"] > 0
    # Dropout is on again after it, and draws what it would have drawn.
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(trained(**told)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"packing": True}, {"strategy": "fsdp2", "options": {"reshard_after_forward": False}}], ids=str
)
def test_looking_at_held_out_rows_changes_neither_weights_nor_traffic(changes, looking, trained):
    without, config = trained(world_size=2, **changes), trained(world_size=2, **changes, **looking)
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(without))
    found, other = facts_of(config), facts_of(without)
    assert [found[key] for key in ("traffic", "num_tokens")] == [other[key] for key in ("traffic", "num_tokens")]
    if (recorded := found["recorded_exchanges"]) is not None:
        assert (recorded["number"], recorded["num_bytes"]) == (recorded["counted_number"], recorded["counted_bytes"])
    points = _points(config)
    assert list(points) == [4]
    assert points == pytest.approx(_points(trained(**looking)), rel=1e-5)
