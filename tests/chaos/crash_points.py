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


class _Death:
    """Ends the process at the n-th point that it comes to, and says at which kind."""

    def __init__(self, points_until, report):
        self._points_left = points_until
        self._report = report

    def meet(self, kind, last_deed=lambda: None):
        """Pass a point, or do the last deed and die there."""
        if self._points_left == 0:
            last_deed()
            os.write(self._report, kind.encode())
            os._exit(_DIED)
        self._points_left -= 1

    def arm(self):
        """Put it into every function by which this process changes files."""
        for name in _PATCHED:
            setattr(os, name, self._before(name, getattr(os, name)))
        io.open = self._opening(io.open)
        os.fsync = lambda _: None
        gc.disable()  # It would copy the memory of all that was imported.

    def _before(self, name, real):
        def wrapped(*arguments, **options):
            self.meet(name)
            return real(*arguments, **options)

        return wrapped

    def _opening(self, real):
        death = self

        class DyingFile(io.FileIO):
            has_begun = False

            def write(self, data):
                content = bytes(data)
                if not self.has_begun:
                    self.has_begun = True
                    death.meet("write")
                    death.meet("half a write", lambda: super(DyingFile, self).write(content[: len(content) // 2]))
                return super().write(content)

        def wrapped(file, mode="r", *arguments, **options):
            if not set(mode) & set("wxa+"):
                return real(file, mode, *arguments, **options)
            self.meet("open for writing")
            raw = DyingFile(file, re.sub("[bt]", "", mode))
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8")

        return wrapped


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
            _Death(point, writer).arm()
            save()
            code = 0
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as report:
        kind = report.read().decode()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, _DIED), f"the save failed at point {point}"
    return kind if code == _DIED else None
