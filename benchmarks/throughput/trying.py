"""The settings of a peer, tried in turns on the same blocks, and which of them it takes into the contest."""

import importlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.throughput.groups import Blocks, Group, Setup, groups, write_job
from benchmarks.throughput.job import AS_GIVEN
from tasks.process.failure import DistributedError, ResourceError

_TRIAL_VISITS = {"cpu": ((0, 1), (2,)), "cuda": ((0, 1, 2),)}
"""Blocks that a setting runs before the next one's turn. On a GPU all at once: what is compiled is built once."""
_MORE_VISITS = ((3, 4), (5, 6))
_CLOSE = 1.05
"""On a CPU, settings that take at most so many times the fastest's seconds run more blocks: other load hides 5 %."""
_FEW = 4
"""Settings of one process that are tried on several."""
_FEW_SIZES = 2
"""Micro-batch sizes of one process, with which orders of rows are tried on several."""
_TO_COMPILE = 2
"""Settings that are tried compiled too, on a GPU."""
_NEARLY = 1.01
"""So much longer than the fastest is as good as it, and less memory counts."""


def tried_settings(
    setup: Setup, peer: str, work: Path, *, settings: Sequence[dict[str, Any]], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return the peer's settings, the fastest first, with the `seconds` of each block and how far they are `behind`.

    They take turns at the same blocks; those that are close to the fastest run more of them, stand first, and are held
    against each other. On one process of a CPU seconds are CPU seconds, which other load hardly
    changes; else those of the slowest rank, since how evenly ranks are loaded is part of a setting. `behind` is the
    median over blocks of seconds / those of the fastest setting in the same block.

    On a GPU the fastest are tried compiled, too. A setting that does not run, as where memory is too small for it,
    stands last with its reason (`failed`). Raises ResourceError if none runs.
    """
    if len(settings) == 1:
        return [{"setting": settings[0], "seconds": [], "behind": 1.0}]
    found = _in_turns(setup, peer, work, settings, say, visits=_TRIAL_VISITS[setup.device])
    if all("failed" in one for one in found):
        raise ResourceError(f"{setup.name}: no setting of {peer} runs: {found[-1]['failed']}")
    if setup.device == "cuda":
        found += _in_turns(setup, peer, work, to_compile(found), say, visits=_TRIAL_VISITS[setup.device])
    ran = [one for one in found if "seconds" in one]
    _note_behind(ran)
    close = [one for one in ran if one["behind"] <= _CLOSE]
    if setup.device == "cpu" and len(close) > 1:
        more = _in_turns(setup, peer, work, [one["setting"] for one in close], say, visits=_MORE_VISITS)
        for one, again in zip(close, more, strict=True):
            if "failed" in again:
                one["failed"] = again["failed"]
                del one["seconds"], one["behind"]
            else:
                one["seconds"] += again["seconds"]
        close = [one for one in close if "seconds" in one]
        _note_behind(close)
    ran = [one for one in ran if "seconds" in one]
    for one in ran:
        say(f"{setup.name}, {peer}: {one['setting']} takes {one['behind']:.3f} times the fastest")
    by_time = sorted(ran, key=lambda one: (one not in close, float(one["behind"])))
    return by_time + [one for one in found if "failed" in one]


def _note_behind(ran: Sequence[dict[str, Any]]) -> None:
    for one, behind in zip(ran, far_behind([one["seconds"] for one in ran]), strict=True):
        one["behind"] = behind


def _in_turns(
    setup: Setup,
    peer: str,
    work: Path,
    settings: Sequence[dict[str, Any]],
    say: Callable[[str], None],
    *,
    visits: Sequence[Sequence[int]],
) -> list[dict[str, Any]]:
    """Return each setting with the `seconds` of its blocks, or with the reason why it does not run (`failed`)."""
    tried: list[dict[str, Any]] = [{"setting": setting, "seconds": []} for setting in settings]
    # There and back, so that no setting is always the last.
    turns = enumerate(visits)
    left = [(one, visit) for turn, visit in turns for one in (tried[::-1] if turn % 2 else tried)]
    while left:
        with groups(setup, [peer], work) as found:
            try:
                one, visit = left[0]
                # The first steps of a process cost more, whatever the setting.
                _trial_seconds(found[peer], one["setting"], visit)
                while left:
                    one, visit = left[0]
                    one["seconds"] += _trial_seconds(found[peer], one["setting"], visit)
                    del left[0]
            except (ResourceError, DistributedError) as error:
                del one["seconds"]
                one["failed"] = str(error)
                say(f"{setup.name}, {peer}: {one['setting']} does not run: {error}")
                left = [turn for turn in left if turn[0] is not one]
    return tried


def to_compile(tried: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the two fastest of these settings, compiled: that takes a minute each, for everybody alike."""
    ran = sorted((one for one in tried if "seconds" in one), key=lambda one: sum(one["seconds"]))
    return [{**one["setting"], "compile": True} for one in ran[:_TO_COMPILE]]


def far_behind(seconds: Sequence[Sequence[float]]) -> list[float]:
    """Return for each row its median ratio to the least of the same block; `seconds`: a row per setting."""
    least = [min(block) for block in zip(*seconds, strict=True)]
    return [statistics.median(one / best for one, best in zip(row, least, strict=True)) for row in seconds]


def best_of(tried: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fastest setting, or one within 1 % of it that has smaller micro-batches: memory is judged too."""
    ran = [one for one in tried if "behind" in one]
    # Those that ran more blocks are held against each other.
    ran = [one for one in ran if len(one["seconds"]) == len(ran[0]["seconds"])]
    most = _NEARLY * min(one["behind"] for one in ran)
    near = [one for one in ran if one["behind"] <= most]
    best: dict[str, Any] = min(near, key=lambda one: (one["setting"]["micro_batch_size"], one["behind"]))["setting"]
    return best


def worth_trying(settings: Sequence[dict[str, Any]], on_one_process: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings that may be the fastest on several processes, by what was tried on one.

    They are the few fastest there, and with the two fastest micro-batch sizes every order of rows that evens out what
    the processes have to do.
    """
    ran = [one["setting"] for one in on_one_process if "behind" in one]
    few = ran[:_FEW]
    sizes = list(dict.fromkeys(setting["micro_batch_size"] for setting in ran))[:_FEW_SIZES]
    return [
        setting
        for setting in settings
        if setting in few or (setting.get("order", AS_GIVEN) != AS_GIVEN and setting["micro_batch_size"] in sizes)
    ] or list(settings)


def use_what_fits(
    group: Group, best: dict[str, Any], tried: Sequence[dict[str, Any]], *, say: Callable[[str], None]
) -> dict[str, Any]:
    """Have the group use its best setting, or the next smaller one if memory beside the others is too small; return it.

    A block is run of it, untimed: twice what is not timed. Raises ResourceError if none fits.
    """
    size = best["micro_batch_size"]
    smaller = [one["setting"] for one in tried if "behind" in one and one["setting"]["micro_batch_size"] < size]
    left = [best, *sorted(smaller, key=lambda setting: -int(setting["micro_batch_size"]))]
    while True:
        try:
            group.use(left[0])
            # Buckets, kernels, memory.
            group.run(Blocks())
            return left[0]
        except ResourceError as error:
            if len(left) == 1:
                raise
            say(f"{group.job.peer}: {left[0]} does not run beside the others: {error}")
            del left[0]
            group.restart()


def settings_of(setup: Setup, peer: str, work: Path) -> list[dict[str, Any]]:
    """Return the settings that a peer offers."""
    module: Any = importlib.import_module(f"benchmarks.throughput.peers.{peer}")
    return list(module.settings(write_job(setup, peer, work / peer)))


def _trial_seconds(group: Group, setting: Mapping[str, Any], visit: Sequence[int]) -> list[float]:
    group.use(setting, first_block=visit[0])
    blocks = Blocks()
    for _ in visit:
        group.run(blocks)
    training = group.job.training
    return blocks.cpu_seconds if training.device == "cpu" and training.world_size == 1 else blocks.seconds
