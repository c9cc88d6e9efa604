"""The resume certificate: killed after any step, each once, and resumed, a run is the undisturbed run to the bit."""

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ledgers import read_ledger
from tests.tiny import make_config, make_slice, make_tiny_model
from tests.training.conftest import are_bitwise_equal, events_in, facts_of, weights_at_end
from tests.training.forked_ranks import ForkedRanks, last_words

pytestmark = pytest.mark.slow

_NUM_STEPS = 20
_STEPS_PER_EPOCH = 10
_NUM_ROWS = 78
"""10 steps of 8 rows, the last of 6; two epochs."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with dropout, and a ragged slice."""
    folder = tmp_path_factory.mktemp("certificate")
    model = make_tiny_model(folder / "model", dropout=0.1)
    return model, make_slice(folder / "slice", num_rows=_NUM_ROWS)


def _config(work_dir: Path, work: tuple[Path, Path], **changes: Any) -> dict[str, Any]:
    return make_config(
        work_dir, work[0], [work[1]], epochs=2,
        **{"cell": "cell", "strategy": "ddp", "micro_batch_size": 1, "log_every_steps": 4, **changes},
    )  # fmt: skip


def _kill_after_every_step(
    ranks: ForkedRanks, config: dict[str, Any], world_sizes: Iterator[int]
) -> list[tuple[int, int]]:
    """Launch, kill one rank after the first step; launch, kill after the second; and so on; then let it end.

    Every launch has the next number of ranks. Return, for each, the steps from which and after which it was killed.
    """
    seen = []
    for step, world_size in zip(range(1, _NUM_STEPS + 1), world_sizes, strict=False):
        killed = step % world_size
        launch = {**config, "world_size": world_size}
        codes = ranks.launch(launch, fault=f"rank={killed},step={step},kind=sigkill")
        assert codes[killed] == -signal.SIGKILL, last_words(launch)
        assert all(code != 0 for code in codes), "a rank without its peer must not end as if all were well"
        events = events_in(Path(config["work_dir"]) / "steps.jsonl")
        started = [event for event in events if event["event"] == "segment_started"][-1]
        seen.append((started["first_step"] + started["resumed_at_step"], step))
    ranks.train({**config, "world_size": next(world_sizes)})
    return seen


def _folder(config: dict[str, Any], segment: int) -> Path:
    return Path(config["work_dir"]) / "segments" / config["segments"][segment]["fingerprint"]


def _assert_equals(config: dict[str, Any], clean: dict[str, Any]) -> None:
    """Hold a run against the undisturbed one: weights to the bit, every step once, every sample once."""
    for index in range(2):
        assert are_bitwise_equal(weights_at_end(config, index), weights_at_end(clean, index))
        ours, theirs = (events_in(_folder(each, index) / "steps.jsonl") for each in (config, clean))
        assert [line["segment_step"] for line in ours] == list(range(1, _STEPS_PER_EPOCH + 1))
        same = ("step", "num_tokens", "num_samples", "learning_rate", "grad_norm")
        assert [[line[key] for key in same] for line in ours] == [[line[key] for key in same] for line in theirs]
        # The sum over ranks is rounded in another order.
        assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-12)
        ledgers = [read_ledger(_folder(each, index)) for each in (config, clean)]
        done, planned = (sorted(zip(one["step"].tolist(), one["row_id"].tolist(), strict=True)) for one in ledgers)
        assert done == planned
        assert sorted(row for _, row in done) == list(range(_NUM_ROWS))
        first = index * _STEPS_PER_EPOCH + 1
        assert sorted({step for step, _ in done}) == list(range(first, first + _STEPS_PER_EPOCH))


def test_killed_after_any_of_20_steps_two_ranks_resume_to_the_same_bits(
    ranks: ForkedRanks, work: tuple[Path, Path], tmp_path: Path
) -> None:
    clean = ranks.train(_config(tmp_path / "clean", work, world_size=2))
    config = _config(tmp_path / "killed", work, world_size=2, checkpoint_every_steps=3)
    seen = _kill_after_every_step(ranks, config, itertools.repeat(2))
    assert [step for _, step in seen] == list(range(1, _NUM_STEPS + 1))
    assert all(0 <= step - begun <= 3 for begun, step in seen), "lost more than the steps since the last checkpoint"
    assert any(step > begun for begun, step in seen), "no step was ever done again"
    _assert_equals(config, clean)
    # A launch that is killed before it has saved anything leaves no trace: each segment had 3 checkpoints.
    assert [facts_of(config, index)["num_resumes"] for index in range(2)] == [3, 3]


def test_killed_after_any_of_20_steps_and_resumed_by_1_2_4_ranks_in_turn_an_exact_run_has_the_same_bits(
    ranks: ForkedRanks, work: tuple[Path, Path], tmp_path: Path
) -> None:
    clean = ranks.train(_config(tmp_path / "clean", work, world_size=1, exact=True))
    config = _config(tmp_path / "killed", work, world_size=1, exact=True, checkpoint_every_steps=1)
    seen = _kill_after_every_step(ranks, config, itertools.cycle([1, 2, 4]))
    assert [step for _, step in seen] == list(range(1, _NUM_STEPS + 1))
    assert all(0 <= step - begun <= 1 for begun, step in seen)
    _assert_equals(config, clean)


def test_a_fast_run_is_not_resumed_by_another_number_of_ranks(
    ranks: ForkedRanks, work: tuple[Path, Path], tmp_path: Path
) -> None:
    config = _config(tmp_path / "work", work, world_size=2, checkpoint_every_steps=1)
    ranks.launch(config, fault="rank=0,step=3,kind=sigkill")
    for world_size in (1, 4):
        other = {**config, "world_size": world_size}
        assert ranks.launch(other) == [3] * world_size
        assert f"saved by 2 ranks, this run has {world_size}; allowed: 2 ranks, or exact: true" in last_words(other)
        assert "Traceback" not in last_words(other)
    ranks.train(config)
    assert ranks.launch({**config, "world_size": 4}) == [3] * 4
