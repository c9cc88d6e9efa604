"""A checkpoint that the disk does not take: exit code 4, one line with the numbers, and the one before it whole."""

import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import make_config
from tests.training.conftest import are_bitwise_equal, events_in, weights_at_end
from tests.training.forked_ranks import ForkedRanks, last_words
from training.process.failure import EXIT_NO_RESOURCES, FAILURES, UnwritableError, read_failures

Launch = Callable[..., list[dict[str, Any]]]

_CHECKPOINT_BYTES = 82_000 * 4 * 3
"""Weights and two moments of the tiny model, at least."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for two checkpoints and no third; skips where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    size = f"size={int(_CHECKPOINT_BYTES * 2.8)}"
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", size, "tmpfs", folder], capture_output=True).returncode
    ):
        pytest.skip("no small tmpfs can be mounted here")
    yield folder
    # Lazily: the event stream of a launch in this process is still open.
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def clean(tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch) -> dict[str, Any]:
    """An undisturbed run."""
    config = make_config(tmp_path / "clean", tiny_model, slices[:1])
    train_here(config)
    return config


def _partials(config: dict[str, Any]) -> list[str]:
    folder = Path(config["work_dir"]) / "partial" / config["segments"][0]["fingerprint"]
    return sorted(path.name for path in folder.iterdir())


def test_on_a_full_disk_the_run_ends_with_needed_and_free_bytes_and_resumes_once_there_is_room(
    small_disk: Path, tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch, clean: dict[str, Any]
) -> None:
    config = make_config(small_disk / "work", tiny_model, slices[:1], checkpoint_every_steps=1)
    with pytest.raises(UnwritableError, match="No space left on device") as caught:
        train_here(config)
    assert caught.value.exit_code == EXIT_NO_RESOURCES == 4
    numbers = re.search(r"a checkpoint needs ([\d,]+) bytes, ([\d,]+) are free", str(caught.value))
    assert numbers is not None
    needed, free = (int(number.replace(",", "")) for number in numbers.groups())
    assert needed >= _CHECKPOINT_BYTES
    assert free < needed
    assert "\n" not in str(caught.value)
    assert _partials(config) == ["step-00000001", "step-00000002"]

    roomy = {**config, "work_dir": str(shutil.copytree(small_disk / "work", tmp_path / "roomy"))}
    events = train_here(roomy)
    assert next(event for event in events if event["event"] == "segment_started")["resumed_at_step"] == 2
    assert are_bitwise_equal(weights_at_end(roomy), weights_at_end(clean))


def test_a_log_on_the_full_disk_costs_the_words_and_not_the_exit_code(
    tmp_path: Path, tiny_model: Path, slices: list[Path]
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    config = make_config(tmp_path / "work", tiny_model, slices[:1], checkpoint_every_steps=1)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    room = (_CHECKPOINT_BYTES // 2,) * 2
    with Path("/dev/full").open("wb") as log:
        ended = subprocess.run(
            [sys.executable, "-m", "training", "--config", file],
            stdout=log, stderr=log, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, room),
        )  # fmt: skip
    assert ended.returncode == EXIT_NO_RESOURCES
    (failure,) = read_failures(tmp_path / "work" / FAILURES)
    assert "a checkpoint needs" in failure["reason"]


def test_a_checkpoint_that_breaks_off_in_mid_file_leaves_the_one_before_it(
    tmp_path: Path, tiny_model: Path, slices: list[Path], train_here: Launch, clean: dict[str, Any]
) -> None:
    config = make_config(tmp_path / "work", tiny_model, slices[:1], checkpoint_every_steps=4)
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    work = Path(config["work_dir"])

    # Room for the weights, not for the state of the optimizer, which is written next.
    resource.setrlimit(resource.RLIMIT_FSIZE, (_CHECKPOINT_BYTES // 2, whole[1]))
    try:
        with pytest.raises(UnwritableError, match="File too large: a checkpoint needs"):
            train_here(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, whole)
    assert _partials(config) == []
    assert [event["step"] for event in events_in(work / "steps.jsonl") if event["event"] == "step"] == [1, 2, 3, 4]
    train_here(config)
    assert are_bitwise_equal(weights_at_end(config), weights_at_end(clean))


@pytest.mark.slow
def test_all_ranks_end_with_exit_code_4_and_one_line(
    small_disk: Path, ranks: ForkedRanks, tiny_model: Path, slices: list[Path], tmp_path: Path
) -> None:
    # Where the log is on the full disk, too, a rank may find no room for its last word.
    (small_disk / "work").mkdir()
    for rank in range(2):
        (small_disk / "work" / f"rank-{rank}.log").symlink_to(tmp_path / f"rank-{rank}.log")
    config = make_config(
        small_disk / "work", tiny_model, slices[:1], strategy="ddp", world_size=2, checkpoint_every_steps=1
    )
    assert ranks.launch(config) == [4, 4], last_words(config)
    assert last_words(config).count("No space left on device: a checkpoint needs") == 2
    assert "Traceback" not in last_words(config)
    last = events_in(Path(config["work_dir"]) / "steps.jsonl")[-1]
    assert (last["event"], last["exit_code"]) == ("failed", 4)
