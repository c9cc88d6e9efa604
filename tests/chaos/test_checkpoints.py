"""Saves that break off at any point, and checkpoints that are damaged afterwards."""

import os

import pytest

from tests.chaos.crash_points import KINDS, crash_trials
from tests.chaos.damage import flip_trials, truncation_trials
from tests.chaos.saved import NEWEST, Saved
from tests.training.forked_ranks import ForkedRanks
from training.state.receipt import RECEIPT


@pytest.fixture(scope="module")
def saved(ranks: ForkedRanks, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """What a killed run left."""
    return Saved(tmp_path_factory.mktemp("saved"), ranks)


@pytest.mark.slow
def test_a_crash_at_any_point_of_a_save_leaves_the_previous_or_the_new_checkpoint(saved: Saved) -> None:
    kinds: list[str] = []
    trials = list(crash_trials(saved, kinds.append))
    assert [trial.problem for trial in trials if trial.problem] == []
    assert set(kinds) == KINDS
    assert len(trials) > 150, "the injection met too few points to prove anything"


@pytest.mark.slow
def test_a_flipped_bit_in_any_file_is_detected_and_the_previous_checkpoint_used(saved: Saved) -> None:
    trials = list(flip_trials(saved, num_trials=60))
    assert len(trials) == 60
    assert [trial.problem for trial in trials if trial.problem] == []


@pytest.mark.slow
def test_truncation_at_any_offset_is_detected_and_the_previous_checkpoint_used(saved: Saved) -> None:
    trials = list(truncation_trials(saved, num_trials=20))
    assert len(trials) == 20
    assert [trial.problem for trial in trials if trial.problem] == []


def test_the_order_of_a_save_is_that_of_the_protocol(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    work = saved.copy()
    save = saved.next_partial_save(work)
    calls: list[tuple[str, str]] = []
    paths: dict[int, str] = {}
    real = {name: getattr(os, name) for name in ("open", "fsync", "rename", "unlink")}

    def opened(path: object, *arguments: object, **options: object) -> int:
        handle: int = real["open"](path, *arguments, **options)
        paths[handle] = os.path.basename(os.fspath(path))  # type: ignore[call-overload]
        return handle

    with monkeypatch.context() as watched:
        watched.setattr(os, "open", opened)
        watched.setattr(os, "fsync", lambda handle: (calls.append(("fsync", paths[handle])), real["fsync"](handle)))
        watched.setattr(
            os,
            "rename",
            lambda old, new, **_: (calls.append(("rename", os.path.basename(new))), real["rename"](old, new)),
        )
        watched.setattr(
            os, "unlink", lambda path, **options: (calls.append(("unlink", "")), real["unlink"](path, **options))
        )
        save()
    folder = saved.partial(work, NEWEST + 2)
    written = [("fsync", name) for name in sorted(file.name for file in folder.iterdir()) if name != RECEIPT]
    assert len(written) == 4
    temporary = calls[5][1]
    assert temporary.startswith(f"{folder.name}.tmp-")
    assert calls[:8] == [
        *written,
        ("fsync", RECEIPT),
        ("fsync", temporary),
        ("rename", folder.name),
        ("fsync", folder.parent.name),
    ]
    # Only then is the oldest removed, by a name that nothing loads.
    assert calls[8][0] == "rename"
    assert ".tmp-" in calls[8][1]
    assert {kind for kind, _ in calls[9:]} == {"unlink"}
    assert [path.name for path in sorted(folder.parent.iterdir())] == ["step-00000004", "step-00000006"]
