"""The settings of a peer, tried in turns on the same blocks, and which of them it takes into the contest."""

import importlib
import statistics

from benchmarks.throughput.groups import Blocks, groups, write_job
from tasks.process.failure import DistributedError, ResourceError

_VISITS = ((0, 1), (2,))
"""Blocks that a setting runs before the next one's turn."""
_NEARLY = 1.01
"""So much longer than the fastest is as good as it, and less memory counts."""


def try_settings(setup, peer, work, *, settings, say):
    """Return the peer's settings, the fastest first, with the `seconds` of each block and how far they are `behind`.

    They take turns at the same blocks, there and back, so that no setting is always the last. On one process seconds
    are CPU seconds, which other load hardly changes; else those of the slowest rank, since how evenly ranks are loaded
    is part of a setting. `behind` is the median over blocks of seconds / those of the fastest setting in the block.

    A setting that does not run stands last with its reason (`failed`). Raises ResourceError if none runs.
    """
    tried = [{"setting": setting, "seconds": []} for setting in settings]
    left = [(item, visit) for turn, visit in enumerate(_VISITS) for item in (tried[::-1] if turn % 2 else tried)]
    while left:
        with groups(setup, [peer], work) as result:
            other, visit = left[0]
            try:
                # The first steps of a process cost more, whatever the setting.
                _run_visit(result[peer], other["setting"], visit)
                while left:
                    other, visit = left[0]
                    other["seconds"] += _run_visit(result[peer], other["setting"], visit)
                    del left[0]
            except (ResourceError, DistributedError) as error:
                del other["seconds"]
                other["failed"] = str(error)
                say(f"{setup.name}, {peer}: {other['setting']} does not run: {error}")
                left = [turn for turn in left if turn[0] is not other]
    ran = [item for item in tried if "seconds" in item]
    if not ran:
        raise ResourceError(f"{setup.name}: no setting of {peer} runs: {tried[-1]['failed']}")
    for other, behind in zip(ran, find_behind([item["seconds"] for item in ran]), strict=True):
        other["behind"] = behind
        say(f"{setup.name}, {peer}: {other['setting']} takes {behind:.3f} times the fastest")
    return sorted(ran, key=lambda item: float(item["behind"])) + [item for item in tried if "failed" in item]


def find_behind(seconds):
    """Return for each row its median ratio to the least of the same block; `seconds`: a row per setting."""
    least = [min(block) for block in zip(*seconds, strict=True)]
    return [statistics.median(item / best for item, best in zip(row, least, strict=True)) for row in seconds]


def select_best(tried):
    """Return the fastest setting, or one within 1 % of it that has smaller micro-batches: memory is judged too."""
    ran = [item for item in tried if "behind" in item]
    most = _NEARLY * min(item["behind"] for item in ran)
    near = [item for item in ran if item["behind"] <= most]
    return min(near, key=lambda item: (item["setting"]["micro_batch_size"], item["behind"]))["setting"]


def list_settings(setup, peer, work):
    """Return the settings that a peer offers."""
    module = importlib.import_module(f"benchmarks.throughput.peers.{peer}")
    return list(module.settings(write_job(setup, peer, work / peer)))


def _run_visit(group, setting, visit):
    group.use(setting, first_block=visit[0])
    blocks = Blocks()
    for _ in visit:
        group.run(blocks)
    return blocks.cpu_seconds if group.job.training.world_size == 1 else blocks.seconds
