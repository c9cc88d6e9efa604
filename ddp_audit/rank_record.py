"""What the observer wrote of a rank, read back; the file is as whole as the rank's end left it."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Fields = dict[str, Any]
"""A line of the record, as ddp_audit/observer/ wrote it."""


@dataclass
class RankRecord:
    """One rank of one launch."""

    rank: int
    start: Fields | None = None
    """Of the process: whether a record was begun at all."""
    steps: list[Fields] = field(default_factory=list)
    """Optimizer steps, in order."""
    windows: list[Fields] = field(default_factory=list)
    """What the script's own clock readings can have timed, each pair of lines once."""
    lines: dict[str, list[Fields]] = field(default_factory=dict)
    """Kind -> all other lines."""

    def first(self, kind: str) -> Fields | None:
        """Return the first line of a kind."""
        return next(iter(self.lines.get(kind, [])), None)

    def micros(self) -> Iterator[tuple[int, Fields]]:
        """Yield (step, micro-batch) of every one that was seen."""
        for step in self.steps:
            for micro in step["micros"]:
                yield step["step"], micro

    @property
    def has_imported_torch(self) -> bool:
        """Whether there was anything to observe."""
        return "torch" in self.lines

    @property
    def is_whole(self) -> bool:
        """Whether the script ran to its end under the observer."""
        return "end" in self.lines and "broken" not in self.lines


def read_rank(path: Path, rank: int) -> RankRecord:
    """Return the record of a rank; without any line where there is no file."""
    lines: dict[str, list[Fields]] = defaultdict(list)
    windows: dict[str, Fields] = {}
    found = RankRecord(rank)
    mark = None
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else []):
        try:
            fields = json.loads(line)
            kind, its_mark = str(fields.pop("kind")), fields.pop("mark", None)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # The last line of a rank that was killed, or what the script itself wrote there.
            continue
        mark = its_mark if number == 0 else mark
        if its_mark != mark:
            continue
        if kind == "step":
            micros, seconds = fields.get("micros"), fields.get("seconds")
            if (
                isinstance(fields.get("step"), int)
                and isinstance(micros, list)
                and len(micros) > 0
                and all(isinstance(micro, dict) for micro in micros)
                and isinstance(seconds, dict)
                and all(isinstance(spent, int | float) for spent in seconds.values())
            ):
                found.steps.append(fields)
        elif kind == "window" and {"begin", "end"} <= set(fields):
            windows[f"{fields['begin']} {fields['end']}"] = fields
        else:
            lines[kind].append(fields)
    found.lines, found.windows = dict(lines), list(windows.values())
    found.start = found.first("start")
    return found


def tell_line(line: Any) -> str:
    """Return where in the script something happened, such as `train.py:41`; empty where it is not known."""
    return f"{line[0]}:{line[1]}" if isinstance(line, list) and len(line) == 2 else ""


def is_step(line: bytes) -> bool:
    """Return whether a line is that of a step."""
    return line.startswith(b'{"mark":"') and b'"kind":"step"' in line[:60]
