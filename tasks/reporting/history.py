"""What a finished comparison is remembered by, and how its speed changed since the last comparable one, by interval.

Two sessions are compared, not two arms of one: a machine that drifts is not the same in both. So

- ratios are compared by their logarithms, whose variances add up: the interval is wider than either session's;
- a session's own drift is in its intervals, since launches lie far apart in it; on a simulated machine that
  strays by 3 % between sessions as within them, at most 5 % of equal sessions are called a regression;
- where five earlier changes are known, no interval is narrower than these changes were;
- steps too small to tell each add up: a step time is held against the first record, too, or the last that was clearly
  other than the first, by an interval so wide that 1 in 2,000 equal sessions is called slower.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
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
    gates_passed: bool | Literal["unproven", "not borne out"]
    """Whether none of the cell's gates failed, and none of the baseline's; unproven: none failed, not all checked; not
    borne out: the blocks passed, and the training took other seconds, maybe long ago."""
    preflight: str | None
    """Whether the machine was fit to measure, and what was not."""

    @property
    def comparison(self) -> tuple[str, str, str]:
        """What the records of the cells of one comparison have in common, and no other comparison's."""
        return self.params_digest, self.measurement_digest, self.finished_at

    @property
    def is_withheld(self) -> bool:
        """Whether a gate failed, so that no speedup is given."""
        return self.gates_passed in (False, "not borne out")

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
    results = defaultdict[tuple[str, str, str], list[HistoryRecord]](list)
    for record in records:
        results[record.comparison].append(record)
    return list(results.values())


class Change(Record):
    """One figure of one cell, now and in an earlier comparable record."""

    cell: str
    """Name of the cell."""
    quantity: Literal["step time", "speedup"]
    """step time is subject to the machine's mood, speedup is measured in turns and is not."""
    since: str
    """When that record was made."""
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
    is_gradual: bool = False
    """Whether that record is not the last comparable one: it became slower in small steps."""

    def describe(self) -> str:
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
    """Against the last comparable record of each cell, and against an earlier one where small steps add up; empty
    where there is none."""
    suspects: list[str]
    """What else changed since then, and may be why."""
    summary: str
    """The answer in one sentence."""

    @property
    def regression(self) -> str | None:
        """What became slower and what may be why, in one line; None if nothing did."""
        slower: dict[str, list[str]] = {}
        for change in self.changes:
            if change.is_regression:
                how = (
                    f"in small steps since {format_time(change.since)}"
                    if change.is_gradual
                    else "than in the last comparable record"
                )
                slower.setdefault(how, []).append(change.describe())
        if not slower:
            return None
        what = "; ".join(f"slower {how}: {'; '.join(changes)}" for how, changes in slower.items())
        why = (
            f"; changed since {format_time(min(change.since for change in self.changes))}: "
            f"{'; '.join(self.suspects) or 'nothing that is recorded'}"
        )
        return f"{what}{why}"


def format_time(finished_at: str) -> str:
    """Return a UTC time such as `2026-11-21 08:10 UTC`."""
    return f"{finished_at[:16].replace('T', ' ')} UTC"


def _make_estimate(value: float | None, low: float | None, high: float | None) -> Estimate | None:
    if value is None or low is None or high is None:
        return None
    return Estimate(value=value, low=low, high=high)


MOST_RECORDS = 10
"""Comparisons that a report shows, this one included."""
_FEWEST_CHANGES = 5
_MOST_STEPS = 52
"""Records over which small steps add up: a year of weeks."""
_NORMAL = 1.96
_CLEAR = 3.29
"""Standard deviations beyond which they do: of equal sessions 1 in 2,000 is so much slower."""
_DEVIATION_OVER_MEDIAN = 1.4826
"""Standard deviation of a normal distribution / the median of its absolute values."""


def make_history(records: Sequence[HistoryRecord], current: Sequence[HistoryRecord]) -> History:
    """Return this comparison among the `records` of all, in which it stands itself.

    Comparable is an earlier record of the same cell, work, CPU and GPU models of which no gate failed, and which was
    measured another time. Records after the current ones are passed over, so that an older report stays what it was.
    A cell is compared of which no gate failed now, or none but that the training took other seconds: it may be of long
    ago, and the machine another by now. Its step time tells, and it has no speedup.
    """
    key = current[0].comparison
    place = next(number for number, record in enumerate(records) if record.comparison == key)
    earlier = [record for record in records[:place] if record.params_digest == key[0]]
    changes: list[Change] = []
    suspects: list[str] = []
    for now in current:
        before = [
            record
            for record in earlier
            if all(getattr(record, name) == getattr(now, name) for name in ("cell", "world_size", "cpu", "gpus"))
            and record.step_time is not None
            and record.measurement_digest != now.measurement_digest
            and not record.is_withheld
            and now.gates_passed
        ]
        if before:
            # A step time counts the other way round: shorter is better.
            step = _make_change("step time", [*before, now], sign=-1)
            changes += filter(None, (step, _make_change("speedup", [*before, now], sign=1)))
            suspects += _list_suspects(before[-1], now)
            gradual = _find_gradual_loss([*before, now][-_MOST_STEPS:])
            if gradual and not (step and step.is_regression):
                changes.append(gradual)
                suspects += _list_suspects(next(old for old in before if old.finished_at == gradual.since), now)
    suspects = list(dict.fromkeys(suspects))
    summary = _describe_changes(changes, suspects, current)
    steps = {
        change.cell: change.verdict for change in changes if change.quantity == "step time" and not change.is_gradual
    }
    if steps.get(current[0].cell) == "faster":
        # A lower speedup is no regression if it is the baseline that became faster.
        changes = [
            change.model_copy(update={"is_regression": False})
            if change.quantity == "speedup" and steps.get(change.cell) != "slower"
            else change
            for change in changes
        ]
    everything = [*earlier, *current]
    keys = list(dict.fromkeys(record.comparison for record in everything))[-MOST_RECORDS:]
    given = [record.cell for record in current if not record.is_withheld]
    withheld = dict.fromkeys(("speedup", "speedup_low", "speedup_high"))
    return History(
        records=[
            record if record.cell in given else record.model_copy(update=withheld)
            for record in everything
            if record.comparison in keys
        ],
        changes=changes,
        suspects=suspects,
        summary=summary,
    )


def take_logarithm(estimate: Estimate | None) -> tuple[float, float] | None:
    """Return the logarithm and its standard deviation."""
    if estimate is None:
        return None
    return math.log(estimate.value), math.log(estimate.high / estimate.low) / 2 / _NORMAL


def compute_ratio(
    figures: Sequence[tuple[float, float] | None], *, sign: Literal[-1, 1], since: int = -2
) -> Estimate | None:
    """Return the last figure / the one at `since` (sign -1: the other way round); None if one of them is not known."""
    *earlier, now = figures
    before = figures[since]
    if before is None or now is None:
        return None
    half = _NORMAL * math.hypot(before[1], now[1])
    known = [figure[0] for figure in earlier if figure is not None][-MOST_RECORDS:]
    if len(known) > _FEWEST_CHANGES:
        usual = statistics.median(abs(after - first) for first, after in itertools.pairwise(known))
        half = max(half, _NORMAL * _DEVIATION_OVER_MEDIAN * usual)
    ratio = sign * (now[0] - before[0])
    return Estimate(value=math.exp(ratio), low=math.exp(ratio - half), high=math.exp(ratio + half))


def _make_change(
    quantity: Literal["step time", "speedup"],
    records: Sequence[HistoryRecord],
    *,
    sign: Literal[-1, 1],
    since: int = -2,
) -> Change | None:
    """Return what became of a figure from the record at `since` to the last; None if it is not known of both."""
    estimates = [item.step_time if quantity == "step time" else item.measured_speedup for item in records]
    ratio = compute_ratio([take_logarithm(estimate) for estimate in estimates], sign=sign, since=since)
    before, now, then, last = estimates[since], estimates[-1], records[since], records[-1]
    if ratio is None or before is None or now is None:
        return None
    verdict: Literal["faster", "slower", "no difference"] = "no difference"
    if not ratio.holds_one:
        verdict = "faster" if ratio.value > 1 else "slower"
    return Change(
        cell=last.cell,
        quantity=quantity,
        since=then.finished_at,
        before=before,
        now=now,
        ratio=ratio,
        verdict=verdict,
        is_regression=verdict == "slower" and 1 / ratio.value > 1 + LEAST_CHANGE,
        is_unproven="unproven" in (then.gates_passed, last.gates_passed),
    )


def _find_gradual_loss(records: Sequence[HistoryRecord]) -> Change | None:
    """Return what became of the step time from the first record to the last; None if it is not clearly a regression.

    A record that was clearly slower or faster takes the place of the first, so that a loss is reported once.
    """
    since = 0
    result: Change | None = None
    for end in range(1, len(records)):
        result = None
        change = _make_change("step time", records[: end + 1], sign=-1, since=since)
        if change is None or not (change.is_regression or change.verdict == "faster"):
            continue
        if abs(math.log(change.ratio.value)) > _CLEAR / _NORMAL * math.log(change.ratio.high / change.ratio.value):
            since, result = end, change.model_copy(update={"is_gradual": True})
    return result if result and result.is_regression else None


def _list_suspects(before: HistoryRecord, now: HistoryRecord) -> list[str]:
    """Return in words what is recorded otherwise than before."""
    names = ("driver", "torch", "python", "transformers", "num_cpus", "preflight")
    pairs = {name: (getattr(before, name), getattr(now, name)) for name in names}
    results = [
        f"{'number of CPUs' if name == 'num_cpus' else name} {was or 'none'} -> {is_now or 'none'}"
        for name, (was, is_now) in pairs.items()
        if was != is_now
    ]
    if before.code_digest != now.code_digest:
        results.append("the code of training/")
    known = [was == is_now for name, (was, is_now) in pairs.items() if name != "preflight"]
    if before.machine_digest != now.machine_digest and all(known):
        results.append("another fact of the machine (data/fingerprint/machine.json)")
    return results


def _describe_changes(changes: Sequence[Change], suspects: Sequence[str], current: Sequence[HistoryRecord]) -> str:
    names = {
        record.cell: f"{record.cell} (unproven)" if record.gates_passed == "unproven" else record.cell
        for record in current
    }
    if not any(record.gates_passed for record in current):
        return "Not compared with earlier records: a gate failed."
    if current[0].step_time is None:
        return "Not compared with earlier records: speed was not measured in turns."
    if not changes:
        return "No earlier record is comparable: that takes the same work on the same CPU and GPU models, gates passed."
    sentences, why = [], ""
    for since in dict.fromkeys(change.since for change in changes):
        since_then = [change for change in changes if change.since == since]
        if different := [change.describe() for change in since_then if change.verdict != "no difference"]:
            sentences.append(f"Since {format_time(since)}: {'; '.join(different)}.")
            why = f"Changed since then: {'; '.join(suspects) or 'nothing that is recorded'}."
        else:
            cells = wording.join_names(list(dict.fromkeys(names[change.cell] for change in since_then)))
            sentences.append(f"No difference since {format_time(since)} in step time or speedup of {cells}.")
    missing = [record.cell for record in current if record.cell not in {change.cell for change in changes}]
    rest = f"Not compared: {wording.join_names(missing)}." if missing else ""
    return " ".join(filter(None, [*sentences, why, rest]))
