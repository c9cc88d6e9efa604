"""Where the ranks of a cell run."""

import contextlib
import dataclasses
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.process.failure import ExitCode, PreemptedError, ResourceError
from tasks.ranks import cell_ranks
from tasks.ranks.cell_ranks import run_ranks
from tasks.ranks.watchdog import Watchdog
from tests.tasks.ranks.test_memory import CONFIG
from tests.tiny import make_config, make_slice, make_tiny_model
from training.config import parse_config
from training.process.heartbeat import Heartbeat, StepSection


def _ask_to_stop(stop, work, monkeypatch, *, num_bytes, section=StepSection.FORWARD):
    """Run ranks, played by this process, that are asked to stop; `stop`: of their launch, given the ranks as well."""
    ranks = []

    def start(*_, arguments, **__):
        heartbeat = Path(arguments[arguments.index("--heartbeat") + 1])
        ranks.extend(Heartbeat(heartbeat, rank=rank) for rank in range(2))
        for rank in ranks:
            rank.set_patience(warm_up_seconds=1.0, checkpoint_bytes=num_bytes)
            rank.begin(1)
            rank.enter(section)
        return SimpleNamespace(stop=lambda **options: stop(ranks, **options), exit_code=lambda: ExitCode.PREEMPTED)

    monkeypatch.setattr(cell_ranks, "load_launcher", lambda _: SimpleNamespace(start=start))
    monkeypatch.setattr(Watchdog, "end_ranks", lambda _: None)
    (asked := threading.Event()).set()
    with pytest.raises(PreemptedError):
        run_ranks(dataclasses.replace(CONFIG, work_dir=work), launcher="torchrun", stop=asked, follow=lambda _: None)


@pytest.mark.parametrize(("num_bytes", "seconds"), [(0, 12.0), (2 * 10**9, 112.0), (10**12, 600.0)])
def test_ranks_that_are_asked_to_stop_have_as_long_as_their_checkpoint_may_take(
    num_bytes, seconds, tmp_path, monkeypatch
):
    given = []
    _ask_to_stop(
        lambda _, *, grace_seconds, **__: given.append(grace_seconds), tmp_path, monkeypatch, num_bytes=num_bytes
    )
    assert given == [seconds]


@pytest.mark.parametrize(
    ("section", "moves_on", "have_time"),
    [
        (StepSection.CHECKPOINT, False, True),
        (StepSection.COLLECTIVE, True, True),
        (StepSection.BACKWARD, False, False),
    ],
)
def test_ranks_that_neither_write_nor_move_on_do_not(section, moves_on, have_time, tmp_path, monkeypatch):
    monkeypatch.setattr(cell_ranks, "_GRACE_SECONDS", 0.3)
    waited = []

    def stop(ranks, *, meanwhile, **_):
        for _ in range(60):
            for rank in ranks if moves_on else []:
                rank.enter(section)
            meanwhile()
            time.sleep(0.02)
        waited.append(True)

    _ask_to_stop(stop, tmp_path, monkeypatch, num_bytes=10**9, section=section)
    assert bool(waited) is have_time


@pytest.mark.slow
@pytest.mark.usefixtures("starts_warm")
@pytest.mark.parametrize("num_left", [0, 12_288])
def test_a_disk_that_takes_neither_a_checkpoint_nor_a_word_about_it_is_still_exit_code_4(
    small_disk, tmp_path, num_left
):
    config = make_config(
        small_disk / "work", make_tiny_model(tmp_path / "model"), [make_slice(tmp_path / "slice", num_rows=45)],
        checkpoint_every_steps=1,
    )  # fmt: skip

    def fill(events):
        if any(event["event"] == "launch_started" for event in events):
            # The rank may take some of it in the meantime: the disk is full then, too.
            with contextlib.suppress(OSError):
                (small_disk / "filler").write_bytes(bytes(max(shutil.disk_usage(small_disk).free - num_left, 0)))

    with pytest.raises(ResourceError) as caught:
        run_ranks(parse_config(config), launcher="torchrun", stop=threading.Event(), follow=fill)
    assert caught.value.exit_code == ExitCode.RESOURCES == 4
    assert "\n" not in str(caught.value)
