"""The held-out loss in mid-training: what it is, and that nothing else comes of it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import make_config, make_slice
from tests.training.conftest import are_bitwise_equal, facts_of, weights_at_end
from tests.training.forked_ranks import ForkedRanks
from training.data.batches import open_slice
from training.process.failure import ChangedInputError, StoppedError
from training.workloads.causal_lm import load_model, loss_sum

Launch = Callable[..., list[dict[str, Any]]]
_EVERY = 4
_EVALUATED = [4, 8]
"""Of ten steps; the second segment begins with the seventh."""


@pytest.fixture(scope="module")
def heldout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of other lengths, of which ranks and micro-batches have unequal shares."""
    return make_slice(tmp_path_factory.mktemp("heldout") / "72-83", num_rows=11, first_row=72, seed=7)


def _evaluating(heldout: Path, **changes: Any) -> dict[str, Any]:
    return {"eval_every_steps": _EVERY, "heldout_dir": str(heldout), "heldout_digest": "rows", **changes}


def _points(config: dict[str, Any]) -> dict[int, float]:
    """Return step -> held-out loss, of the finished segments' own records."""
    found = {}
    for part in config["segments"]:
        lines = Path(config["work_dir"], "segments", part["fingerprint"], "steps.jsonl").read_text().splitlines()
        for line in map(json.loads, lines):
            if "heldout_loss" in line:
                assert line["heldout_rows"] == "rows"
                found[line["step"]] = line["heldout_loss"]
    return found


def _compute_loss(model_dir: Path, weights: Path, heldout: Path) -> float:
    """Return the mean loss of all held-out labels, one row at a time."""
    model, source = load_model(model_dir, checkpoint=weights).eval(), open_slice(heldout)
    with torch.no_grad():
        rows = [source.collate([row], seq_len=32) for row in range(len(source))]
        sums = [float(loss_sum(model, row)) for row in rows]
    return sum(sums) / sum(row.num_targets for row in rows)


@pytest.fixture(scope="module")
def plain(
    ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """One process that looks at no held-out rows."""
    return ranks.train(make_config(tmp_path_factory.mktemp("plain") / "work", tiny_model, slices))


def test_the_held_out_loss_is_that_of_the_weights_after_the_step(
    tmp_path: Path, tiny_model: Path, slices: list[Path], heldout: Path, train_here: Launch
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices, **_evaluating(heldout, eval_every_steps=3))
    events = train_here(config)
    # Step 6 is the last of the first segment, whose weights are on disk.
    weights = next(Path(config["work_dir"], "segments", config["segments"][0]["fingerprint"]).glob("tiny_*.pt"))
    found = _points(config)
    assert list(found) == [3, 6, 9]
    assert found[6] == pytest.approx(_compute_loss(tiny_model, weights, heldout), rel=1e-6)
    assert [event["heldout_loss"] for event in events if "heldout_loss" in event] == list(found.values())
    facts = facts_of(config)
    assert facts["heldout_seconds"] > 0
    accounted = sum(facts[name] for name in ("train_seconds", "checkpoint_seconds", "log_seconds", "heldout_seconds"))
    assert accounted <= facts["span_seconds"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "world_size", "changes"),
    [
        ("single", 1, {}),
        ("ddp", 2, {}),
        ("ddp", 2, {"packing": True}),
        ("ddp", 2, {"exact": True}),
        ("zero1", 2, {}),
        ("fsdp2", 2, {}),
        ("fsdp2", 2, {"options": {"reshard_after_forward": False}}),
    ],
    ids=lambda value: "-".join(map(str, value)) or "plain" if isinstance(value, dict) else str(value),
)
def test_looking_at_held_out_rows_changes_neither_weights_nor_traffic(
    strategy: str, world_size: int, changes: dict[str, Any], ranks: ForkedRanks, plain: dict[str, Any],
    tiny_model: Path, slices: list[Path], heldout: Path, tmp_path: Path,
) -> None:  # fmt: skip
    spread = {"strategy": strategy, "world_size": world_size, **changes}
    without = make_config(tmp_path / "without", tiny_model, slices, **spread)
    looking = make_config(tmp_path / "looking", tiny_model, slices, **spread, **_evaluating(heldout))
    for config in (without, looking):
        ranks.train(config)
    assert are_bitwise_equal(weights_at_end(looking), weights_at_end(without))
    for segment in (0, 1):
        found, other = facts_of(looking, segment), facts_of(without, segment)
        assert found["traffic"] == other["traffic"]
        assert found["num_tokens"] == other["num_tokens"]
        if (recorded := found["recorded_exchanges"]) is not None:
            assert (recorded["number"], recorded["num_bytes"]) == (
                recorded["counted_number"], recorded["counted_bytes"],
            )  # fmt: skip
    alone = make_config(tmp_path / "alone", tiny_model, slices, **_evaluating(heldout))
    expected = _points(ranks.train(alone))
    found = _points(looking)
    assert list(found) == list(expected) == _EVALUATED
    assert np.allclose(list(found.values()), list(expected.values()), rtol=1e-5)


def test_dropout_is_off_on_held_out_rows_and_on_again_after_them(
    tmp_path: Path, slices: list[Path], heldout: Path, train_here: Launch
) -> None:
    from tests.tiny import make_tiny_model

    model = make_tiny_model(tmp_path / "dropout", dropout=0.2)
    once = make_config(tmp_path / "once", model, slices[:1])
    looking = make_config(tmp_path / "looking", model, slices[:1], **_evaluating(heldout, eval_every_steps=1))
    for config in (once, looking):
        train_here(config)
    assert are_bitwise_equal(weights_at_end(once), weights_at_end(looking))
    weights = next(Path(looking["work_dir"], "segments", looking["segments"][0]["fingerprint"]).glob("tiny_*.pt"))
    assert _points(looking)[6] == pytest.approx(_compute_loss(model, weights, heldout), rel=1e-6)


def test_a_stopped_run_has_each_look_at_the_held_out_rows_once(
    tmp_path: Path, tiny_model: Path, slices: list[Path], heldout: Path, train_here: Launch
) -> None:
    whole = make_config(tmp_path / "whole", tiny_model, slices, **_evaluating(heldout, eval_every_steps=2))
    train_here(whole)
    stopped = make_config(tmp_path / "stopped", tiny_model, slices, **_evaluating(heldout, eval_every_steps=2))
    with pytest.raises(StoppedError):
        train_here(stopped, stop_after_step=3)
    train_here(stopped)
    assert _points(stopped) == _points(whole)


def test_held_out_rows_that_are_written_to_meanwhile_end_the_run(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_slice(tmp_path / "72-83", num_rows=11, first_row=72, seed=7)
    config = make_config(tmp_path / "work", tiny_model, slices, **_evaluating(folder))
    from training import heldout as module

    before = module.make_micro_batches

    def touch(*arguments: Any, **more: Any) -> Any:
        (folder / "tokens.npy").touch()
        return before(*arguments, **more)

    monkeypatch.setattr(module, "make_micro_batches", touch)
    with pytest.raises(ChangedInputError, match=r"tokens\.npy changed while it was trained on"):
        train_here(config)
