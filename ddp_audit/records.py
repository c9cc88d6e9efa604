"""What launches of a script left: the record of each rank, read back as whole as its end left it, and all by cell."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ddp_audit.asked import Request

OTHER_WORK = ("checkpoint", "evaluation", "network", "subprocess")
"""What a rank does between steps that no step needs."""
Fields = dict[str, Any]
"""A line of the record, as ddp_audit/observer/ wrote it."""
_NEARLY_WHOLE = 0.95


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
    is_part: bool = False
    """Whether its models have fewer parameters than the baseline's: a stage of a pipeline, or a part of each layer."""

    def first(self, kind: str) -> Fields | None:
        """Return the first line of a kind."""
        return next(iter(self.lines.get(kind, [])), None)

    def micros(self) -> Iterator[tuple[int, Fields]]:
        """Yield (step, micro-batch) of every one that was seen."""
        for step in self.steps:
            for micro in step["micros"]:
                yield step["step"], micro

    @property
    def loaders(self) -> list[str]:
        """Which loaders it learned from, the first one first."""
        return list(dict.fromkeys(micro["loader"] for _, micro in self.micros() if micro.get("loader") is not None))

    @property
    def is_whole(self) -> bool:
        """Whether the script ran to its end under the observer."""
        return "end" in self.lines and "broken" not in self.lines


def read_rank(path: Path, rank: int) -> RankRecord:
    """Return the record of a rank; without any line where there is no file."""
    lines: dict[str, list[Fields]] = defaultdict(list)
    windows: dict[str, Fields] = {}
    record = RankRecord(rank)
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
            record.steps.append(fields)
        elif kind == "window":
            windows[f"{fields['begin']} {fields['end']}"] = fields
        else:
            lines[kind].append(fields)
    record.lines, record.windows = dict(lines), list(windows.values())
    record.start = record.first("start")
    # Of loaders that look alike, one rank may read another first: they are named by the order in which it learns.
    names: dict[str, str] = {}
    for name in record.loaders:
        kind = name.rpartition("-")[0]
        names[name] = f"{kind}-{sum(other.startswith(f'{kind}-') for other in names)}"
    for _, micro in record.micros():
        micro["loader"] = names.get(micro.get("loader", ""))
    for kind in ("loader", "pass"):
        read = record.lines.get(kind, [])
        record.lines[kind] = [{**line, "loader": names[line["loader"]]} for line in read if line["loader"] in names]
    return record


def format_line(line: Any) -> str:
    """Return where in the script something happened, such as `train.py:41`; empty where it is not known."""
    return f"{line[0]}:{line[1]}" if isinstance(line, list) and len(line) == 2 else ""


def is_step(line: bytes) -> bool:
    """Return whether a line is that of a step."""
    return line.startswith(b'{"mark":"') and b'"kind":"step"' in line[:60]


def _count_held(rank: RankRecord) -> int:
    """Return how many elements the parameters of its models have; 0 where that is not known."""
    return int(rank.steps[0].get("num_held") or 0) if rank.steps else 0


@dataclass
class Launched:
    """One start of a cell, over."""

    cell: str
    folder: Path
    """Its record and logs."""
    ranks: list[RankRecord]
    exit_code: int
    """The script's own: of the rank that caused the end."""
    ending: str = ""
    """Why it ended, where it did not end by itself with 0."""
    is_alone: bool = False
    """Whether python started it, and not torchrun."""
    was_ended: bool = False
    """Whether the audit ended it, after as many steps as were asked for."""
    fails_alone: bool = False
    """Whether python was tried, and the script did not train."""
    is_apart: bool = True
    """Whether it ran in a copy of its folder, where it found nothing of an earlier launch."""
    left: list[str] = field(default_factory=list)
    """Processes that it left running, and that were ended."""
    beside: "list[Launched]" = field(default_factory=list, repr=False, compare=False)
    """All launches of its audit, this one too: what is a part of a step is the same in all of them."""

    @property
    def num_steps(self) -> int:
        """Optimizer steps that every rank has made."""
        return min((len(rank.steps) for rank in self.ranks), default=0)

    @property
    def is_failed(self) -> bool:
        """Whether the script failed."""
        return self.exit_code != 0 and not self.was_ended


@dataclass
class Audit:
    """All launches."""

    request: Request
    launches: dict[str, list[Launched]] = field(default_factory=dict)
    """Cell -> its launches, in order."""
    _all: list[Launched] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        given, self.launches = self.launches, {cell: [] for cell in self.launches}
        for launched in (result for outcome in given.values() for result in outcome):
            self.add(launched)

    def add(self, launched: Launched) -> None:
        """Take in one more launch of its cell."""
        self.launches.setdefault(launched.cell, []).append(launched)
        self._all.append(launched)
        whole = _count_held(self.ranks(self.baseline)[0]) if self.launches.get(self.baseline) else 0
        for rank in launched.ranks:
            rank.is_part = 0 < _count_held(rank) < _NEARLY_WHOLE * whole
        # One that is asked about again, turn by turn, stays beside all others.
        launched.beside = launched.beside or self._all

    def first(self, cell: str) -> Launched:
        """Return the launch that findings are made of: the first one of the cell."""
        return self.launches[cell][0]

    def ranks(self, cell: str) -> list[RankRecord]:
        """Return the ranks of that launch."""
        return self.first(cell).ranks

    @property
    def baseline(self) -> str:
        """Name of the first cell."""
        return self.request.baseline

    @cached_property
    def device(self) -> str:
        """Where the script computes."""
        for rank in self.ranks(self.baseline):
            if rank.steps:
                return str(rank.steps[0].get("device") or "cpu")
        return "cpu"
