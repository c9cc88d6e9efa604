"""Launches of a script: what each cell's ranks left, and what all of it is judged by."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ddp_audit.asked import Request
from ddp_audit.rank_record import RankRecord

OTHER_WORK = ("checkpoint", "evaluation", "network", "subprocess")
"""What a rank does between steps that no step needs."""


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
    beside_ranks: list[RankRecord] = field(default_factory=list)
    """Processes that trained, too, and are no rank: each took itself for a rank that there was."""
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
        for launched in (one for found in given.values() for one in found):
            self.add(launched)

    def add(self, launched: Launched) -> None:
        """Take in one more launch of its cell."""
        self.launches.setdefault(launched.cell, []).append(launched)
        self._all.append(launched)
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
