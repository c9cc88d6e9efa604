"""A process that dies at one point of a save, and the next start; every point in turn.

What it has written stays: to sync, to close and to open for reading change nothing for whoever starts next, and of a
file that is being written every part is as good as half of its first one. So these are no points of their own.
"""

import contextlib
import gc
import io
import os
import re

from tests.chaos.saved import NEWEST, STEPS_PER_SEGMENT

_DIED = 9
_PATCHED = ("mkdir", "rename", "replace", "unlink", "rmdir")
KINDS = {"open for writing", "write", "half a write", *_PATCHED} - {"replace"}
"""What a save does and is interrupted at."""


def _arm(points_left, report):
    """Have this process end at the n-th point that it comes to, and say at which kind."""

    def meet(kind, last_deed=lambda: None):
        """Pass a point, or do the last deed and die there."""
        nonlocal points_left
        if points_left == 0:
            last_deed()
            os.write(report, kind.encode())
            os._exit(_DIED)
        points_left -= 1

    def before(name, real):
        def wrapped(*arguments, **options):
            meet(name)
            return real(*arguments, **options)

        return wrapped

    class DyingFile(io.FileIO):
        has_begun = False

        def write(self, data):
            content = bytes(data)
            if not self.has_begun:
                self.has_begun = True
                meet("write")
                meet("half a write", lambda: super(DyingFile, self).write(content[: len(content) // 2]))
            return super().write(content)

    def open_dying(file, mode="r", *arguments, **options):
        if not set(mode) & set("wxa+"):
            return real_open(file, mode, *arguments, **options)
        meet("open for writing")
        raw = DyingFile(file, re.sub("[bt]", "", mode))
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8")

    # Every function by which this process changes files.
    real_open, io.open = io.open, open_dying
    for name in _PATCHED:
        setattr(os, name, before(name, getattr(os, name)))
    os.fsync = lambda _: None
    gc.disable()  # It would copy the memory of all that was imported.


def crash_everywhere(saved):
    """Die at every point of saving a partial checkpoint, then a finished segment; yield its kind and what is wrong."""
    saves = ((saved.next_partial_save, NEWEST + 2), (saved.next_finished_save, 2 * STEPS_PER_SEGMENT))
    for prepare, step in saves:
        save, number = prepare(saved.copy()), 0
        while True:
            # It stands where the one stood that the save was prepared in.
            work = saved.copy()
            kind = _died_at(save, number)
            if kind is None:
                break
            yield kind, _find_problem(saved, work, new=step, where=f"point {number} ({kind})")
            number += 1


def _find_problem(saved, work, *, new, where):
    """Return what the next start does not make good, or nothing."""
    start = saved.next_start(work)
    wrong = []
    if start.stands_after not in (NEWEST, new) or start.checksum != saved.checksums[start.stands_after]:
        wrong.append(f"it goes on after step {start.stands_after} with weights {start.checksum}")
    if start.refused:
        wrong.append(f"a checkpoint was broken: {start.refused}")
    # Once the segment is finished its partial checkpoints are of no use either.
    unwanted = ["*tmp*", "step-*"] if start.stands_after == 2 * STEPS_PER_SEGMENT else ["*tmp*"]
    wrong += [f"left behind: {path.relative_to(work)}" for pattern in unwanted for path in work.rglob(pattern)]
    return "; ".join(f"{where}: {words}" for words in wrong)


def _died_at(save, point):
    """Save in a child that dies at the point; return its kind, None if the save has fewer points."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            _arm(point, writer)
            save()
            code = 0
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as report:
        kind = report.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, _DIED), f"the save failed at point {point}"
    return kind if code == _DIED else None
