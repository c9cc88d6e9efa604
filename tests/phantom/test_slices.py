"""A card cut into slices (MIG), which is not there: a slice is trained on as a card with its memory and its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.phantom.cards import CARDS
from tests.phantom.counts import read_counts
from tests.phantom.test_fingerprint import SLICE
from tests.tiny import make_config, make_tiny_workload
from tests.training.conftest import facts_of, start_ranks, weights_at_end

pytestmark = pytest.mark.slow

_CARD = CARDS["H100-80"]
_NAME = f"{_CARD.name} MIG 1g.10gb"
_OTHER_SLICE = SLICE.replace("0200", "0100")


@pytest.fixture
def counts(on_phantom: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Choose the second of three slices of a card, as a user would; return the folder of what is counted."""
    monkeypatch.setenv("PHANTOM_SLICES", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{SLICE},{_OTHER_SLICE}")
    return on_phantom()


def _train(folder: Path, **changes: Any) -> tuple[int, dict[str, Any], str]:
    """Train a tiny model's cell under torchrun; return how it ended, its config and what its ranks said."""
    model, slices = make_tiny_workload("causal_lm", folder)
    config = make_config(folder / "work", model, slices, device="cuda", precision="bf16", packing=True, **changes)
    code = start_ranks(config).wait(timeout=300)
    said = (folder / "work" / "output.log").read_text()
    assert "phantom:" not in said, said[-6000:]
    return code, config, said


@pytest.mark.parametrize(
    ("cell", "backend"),
    [({"strategy": "single"}, None), ({"strategy": "ddp", "world_size": 2, "oversubscribe": True}, "gloo")],
    ids=["1 rank", "2 ranks that share it"],
)
def test_ranks_on_a_slice_train_to_their_checkpoint_and_record_its_name(
    cell: dict[str, Any], backend: str | None, counts: Path, tmp_path: Path
) -> None:
    code, config, said = _train(tmp_path, **cell)
    assert code == 0, said[-6000:]
    assert weights_at_end(config)
    facts = facts_of(config)
    assert facts["backend"] == backend
    assert {setting["device"] for setting in facts["settings"]} == {_NAME}
    assert all(one.devices == {0} for one in read_counts(counts) if one.devices)
