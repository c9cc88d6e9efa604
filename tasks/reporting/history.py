"""What a finished comparison is remembered by, and how its speed changed since the last comparable one."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.records.facts import Record

LEAST_CHANGE = 0.03
"""Below this share a slower cell is no regression, however narrow the interval."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class HistoryRecord(Record):
    """One cell of one finished comparison: a line of reports/history.csv, whose columns are these fields."""

    finished_at: str
    """UTC time at which the report first had these figures."""
    name: str
    """Name of the comparison."""
    params_digest: str
    """sha256 of what decides the figures: model, rows, workload, train, cells, scaling."""
    measurement_digest: str
    """sha256 of what was measured, without what a failed gate withholds."""
    machine_digest: str
    """sha256 of the machine's facts."""
    code_digest: str | None
    """sha256 of the files of training/ that were timed; null where no speed was measured."""
    cpu: str
    """Name of the processor."""
    num_cpus: int
    """CPUs that the training could use."""
    gpus: str | None
    """Names of the GPUs; null without."""
    driver: str | None
    """Version of the NVIDIA driver."""
    torch: str | None
    """Version of torch."""
    python: str | None
    """Version of Python."""
    transformers: str | None
    """Version of transformers."""
    cell: str
    """Name of the cell."""
    world_size: int
    """Number of ranks."""
    num_rounds: int | None
    """Turns behind the step time; null if not measured, as all figures below."""
    step_seconds: Positive | None
    """Seconds of an optimizer step in the measured blocks."""
    step_seconds_low: Positive | None
    """Lower end of its interval."""
    step_seconds_high: Positive | None
    """Upper end of its interval."""
    tokens_per_second: Positive | None
    """Tokens learned from, all ranks together."""
    speedup: Positive | None
    """The measured speedup; null for the baseline or if withheld."""
    speedup_low: Positive | None
    """Lower end of its interval."""
    speedup_high: Positive | None
    """Upper end of its interval."""
    gates_passed: bool | Literal["unproven"]
    """Whether none of the cell's gates failed, and none of the baseline's; unproven: none failed, not all checked."""
    preflight: str | None
    """Whether the machine was fit to measure, and what was not."""

    @property
    def comparison(self) -> tuple[str, str, str]:
        """What the records of the cells of one comparison have in common, and no other comparison's."""
        return self.params_digest, self.measurement_digest, self.finished_at

    @property
    def step_time(self) -> Estimate | None:
        """Seconds of a step with their interval."""
        return _make_estimate(self.step_seconds, self.step_seconds_low, self.step_seconds_high)

    @property
    def measured_speedup(self) -> Estimate | None:
        """The speedup with its interval."""
        return _make_estimate(self.speedup, self.speedup_low, self.speedup_high)


def group_comparisons(records: Iterable[HistoryRecord]) -> list[list[HistoryRecord]]:
    """Return the records comparison by comparison, in their order."""
    found: dict[tuple[str, str, str], list[HistoryRecord]] = {}
    for record in records:
        found.setdefault(record.comparison, []).append(record)
    return list(found.values())


class Change(Record):
    """One figure of one cell, now and in the last comparable record."""

    cell: str
    """Name of the cell."""
    quantity: Literal["step time", "speedup"]
    """step time is subject to the machine's mood, speedup is measured in turns and is not."""
    since: str
    """When the last comparable record was made."""
    before: Estimate
    """The figure then: seconds per step, or times as fast as the baseline."""
    now: Estimate
    """The figure now."""
    ratio: Estimate
    """How many times as good as before, above 1 is better, with the 95 % interval of the difference of two sessions."""
    verdict: Literal["faster", "slower", "no difference"]
    """`no difference` if the interval contains 1."""
    is_regression: bool
    """Whether it is slower, and by more than 3 %."""
    is_unproven: bool = False
    """Whether gates could not tell of the cell, then or now."""

    def told(self) -> str:
        """Return the change in a few words."""
        shown, than = wording.format_duration, "as fast as before"
        if self.quantity == "speedup":
            shown, than = wording.format_ratio, "of what it was"
        figures = f"{shown(self.before.value)} -> {shown(self.now.value)}"
        ratio = wording.format_ratio_with_interval(self.ratio)
        return f"{self.name} of {self.cell} {figures}, {ratio} {than}: {self.verdict}"

    @property
    def name(self) -> str:
        """What the figure is called: a speedup that is not proven is not called one without saying so."""
        return f"unproven {self.quantity}" if self.is_unproven and self.quantity == "speedup" else self.quantity


class History(Record):
    """The comparison among its earlier runs."""

    records: list[HistoryRecord]
    """The last comparisons of the same work, oldest first, this one last; without the speedups of a cell while
    this one's is withheld."""
    changes: list[Change]
    """Against the last comparable record of each cell; empty where there is none."""
    suspects: list[str]
    """What else changed since then, and may be why."""
    summary: str
    """The answer in one sentence."""

    @property
    def regression(self) -> str | None:
        """What became slower and what may be why, in one line; None if nothing did."""
        slower = [change.told() for change in self.changes if change.is_regression]
        if not slower:
            return None
        why = (
            f"; changed since {format_time(self.changes[0].since)}: "
            f"{'; '.join(self.suspects) or 'nothing that is recorded'}"
        )
        return f"slower than in the last comparable record: {'; '.join(slower)}{why}"


def format_time(finished_at: str) -> str:
    """Return a UTC time such as `2026-11-21 08:10 UTC`."""
    return f"{finished_at[:16].replace('T', ' ')} UTC"


def _make_estimate(value: float | None, low: float | None, high: float | None) -> Estimate | None:
    if value is None or low is None or high is None:
        return None
    return Estimate(value=value, low=low, high=high)
