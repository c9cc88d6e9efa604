"""The output of a stage in three places: live on the terminal, whole in a file, thinned in the Prefect log.

What DVC says of its own work stands in the file alone, unless `VERBOSE` is set.
"""

import codecs
import logging
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

from ddp_audit.process.redaction import redact, shorten
from flows.child import VERBOSE

DVC_CHATTER = (
    "Running stage '",
    "> ",
    "Generating lock file",
    "Updating lock file",
    "Use `dvc push`",
    "Stage '",
    "To track the changes with git",
    "To enable auto staging",
    "ERROR: failed to reproduce",
    "\x1b[31mERROR\x1b[39m: failed to reproduce",
)
"""How the lines begin in which DVC says what it does; a stage has no line that begins so."""

_MAX_LINES_PER_SECOND = 10
_MAX_BURST_LINES = 100
_SECONDS_BETWEEN_REPAINTS = 5.0
_MAX_FILE_BYTES = 5_000_000
_MAX_LINE_CHARACTERS = 2_000
_MAX_KEPT_CHARACTERS = 100_000
"""Of a line in the file: a longer one loses its beginning or its middle."""
_NUM_FIRST_LINES = 20
_NUM_LAST_LINES = 200

_LINE_END = re.compile(r"\r\n|\n|\r(?!\n)(?=.)", re.DOTALL)
_TERMINAL_CODE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\-_])")


class StageOutput:
    """Takes the bytes that a stage writes; its first and last lines stay at hand, without terminal codes."""

    def __init__(self, file: Path, *, send: Callable[[str], None]) -> None:
        """`send` takes the thinned lines: 10 per second, after a first 100 at any rate."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self.first_lines: list[str] = []
        self.last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._file = RotatingFileHandler(file, maxBytes=_MAX_FILE_BYTES, backupCount=1, encoding="utf-8")
        if file.stat().st_size:
            self._file.doRollover()
        self._send, self._whole = send, file
        self._num_left_out, self._allowance, self._counted_at = 0, float(_MAX_BURST_LINES), time.monotonic()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""
        self._repainted_at = 0.0
        self._terminal = _Terminal()

    def write(self, chunk: bytes) -> None:
        """Pass the bytes on to the terminal as they are, and every line that they complete to file and log."""
        self._terminal.write(chunk)
        self._pending += self._decoder.decode(chunk)
        start = 0
        for end in _LINE_END.finditer(self._pending):
            self._take(self._pending[start : end.start()], is_repaint=end[0] == "\r")
            start = end.end()
        self._pending = self._pending[start:][-_MAX_KEPT_CHARACTERS:]

    def close(self) -> None:
        """Take what stands after the last line end."""
        self._terminal.close()
        self._take(self._pending, is_repaint=False)
        self._pending = ""
        self._report_left_out()
        self._file.close()

    def _take(self, raw: str, *, is_repaint: bool) -> None:
        line = redact(shorten(_TERMINAL_CODE.sub("", raw).rstrip(), limit=_MAX_KEPT_CHARACTERS))
        if not line:
            return
        if is_repaint:
            # A progress bar draws itself over and over; one look at it every few seconds is enough.
            if time.monotonic() - self._repainted_at < _SECONDS_BETWEEN_REPAINTS:
                return
            self._repainted_at = time.monotonic()
        if len(self.first_lines) < _NUM_FIRST_LINES:
            self.first_lines.append(line)
        self.last_lines.append(line)
        self._file.emit(logging.LogRecord("stage", logging.INFO, "", 0, line, None, None))
        now = time.monotonic()
        earned = (now - self._counted_at) * _MAX_LINES_PER_SECOND
        self._allowance, self._counted_at = min(_MAX_BURST_LINES, self._allowance + earned), now
        if self._allowance < 1:
            self._num_left_out += 1
            return
        self._allowance -= 1
        self._report_left_out()
        self._send(line if len(line) <= _MAX_LINE_CHARACTERS else line[:_MAX_LINE_CHARACTERS] + " …")

    def _report_left_out(self) -> None:
        if self._num_left_out:
            self._send(f"({self._num_left_out} lines left out here; all of them: {self._whole})")
            self._num_left_out = 0


class _Terminal:
    """Shows bytes as they come, but for the lines of DVC: what may become one waits for the letter that tells."""

    _CHATTER = tuple(words.encode() for words in DVC_CHATTER)

    def __init__(self) -> None:
        self._is_verbose = bool(os.environ.get(VERBOSE))
        self._waiting = b""
        self._is_shown = False
        """Whether the line that has not ended yet is no line of DVC."""

    def write(self, chunk: bytes) -> None:
        lines = chunk.splitlines(keepends=True)
        sys.stderr.buffer.write(chunk if self._is_verbose else b"".join(map(self._select, lines)))
        sys.stderr.buffer.flush()

    def close(self) -> None:
        if not self._waiting.startswith(self._CHATTER):
            sys.stderr.buffer.write(self._waiting)
            sys.stderr.buffer.flush()
        self._waiting = b""

    def _select(self, part: bytes) -> bytes:
        """Return what of a line, or of its beginning, is to be shown now."""
        line = part if self._is_shown else self._waiting + part
        has_ended = part.endswith(b"\n")
        may_be_dvc = not self._is_shown and any(
            line.startswith(words) or (words.startswith(line) and not has_ended) for words in self._CHATTER
        )
        self._is_shown = not may_be_dvc and not has_ended
        self._waiting = line if may_be_dvc and not has_ended else b""
        return b"" if may_be_dvc else line
