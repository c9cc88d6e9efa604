"""What all ranks do when one of them goes wrong in mid-training: together, and with its name."""

from pathlib import Path
from typing import Any

import pytest

from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.forked_ranks import ForkedRanks, last_words
from training.process.failure import FAILURES, read_failures

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and a slice of 15 steps."""
    root = tmp_path_factory.mktemp("faults")
    return make_tiny_model(root / "model"), make_slice(root / "slice", num_rows=240, min_len=8)


def _config(work: Path, inputs: tuple[Path, Path], **changes: Any) -> dict[str, Any]:
    model, slice_dir = inputs
    return make_config(
        work, model, [slice_dir],
        **{"strategy": "ddp", "world_size": 2, "global_batch_size": 16, "checkpoint_every_steps": 1} | changes,
    )  # fmt: skip


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("kind=nan", "diverged at step 6: loss is nan on rank 1; nothing of it was saved"),
        ("kind=inf", "diverged at step 6: loss is inf on rank 1; nothing of it was saved"),
        ("kind=nan,section=backward", "diverged at step 6: gradient norm is nan on every rank"),
    ],
)
def test_numbers_that_are_not_finite_on_one_rank_stop_all_at_that_step_with_its_name(
    fault: str, says: str, exact: bool, ranks: ForkedRanks, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    config = _config(tmp_path / "work", inputs, exact=exact)
    assert ranks.launch(config, fault=f"rank=1,step=6,{fault}") == [5, 5], last_words(config)
    failures = read_failures(tmp_path / "work" / FAILURES)
    assert sorted(failure["rank"] for failure in failures) == [0, 1]
    for failure in failures:
        assert failure["reason"].startswith(says)
        assert "loss" in says or failure["reason"].endswith("it comes from rank 1")
    newest = max((tmp_path / "work" / "partial").glob("*/step-*"))
    assert newest.name == "step-00000005"
    assert "Traceback" not in last_words(config)


def test_a_bad_step_between_log_points_is_named_as_well(
    ranks: ForkedRanks, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    config = _config(tmp_path / "work", inputs, checkpoint_every_steps=0, log_every_steps=5)
    assert ranks.launch(config, fault="rank=0,step=7,kind=nan") == [5, 5], last_words(config)
    reasons = {failure["reason"] for failure in read_failures(tmp_path / "work" / FAILURES)}
    assert len(reasons) == 1
    assert reasons.pop().startswith("diverged at step 7: loss is nan on rank 0; ")
