"""Faster, slower or no difference since the last comparable record, by interval.

Two sessions are compared, not two arms of one: a machine that drifts is not the same in both. So

- ratios are compared by their logarithms, whose variances add up: the interval is wider than either session's;
- a session's own drift is in its intervals, since starts of the ranks lie far apart in it; on a simulated machine that
  strays by 3 % between sessions as within them, at most 5 % of equal sessions are called a regression;
- where five earlier changes are known, no interval is narrower than these changes were.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from tasks.process import wording
from tasks.records.estimate import Estimate
from tasks.reporting.history import LEAST_CHANGE, Change, History, HistoryRecord, format_time

MOST_RECORDS = 10
"""Comparisons that a report shows, this one included."""
_FEWEST_CHANGES = 5
_NORMAL = 1.96
_DEVIATION_OVER_MEDIAN = 1.4826
"""Standard deviation of a normal distribution / the median of its absolute values."""


def make_history(records: Sequence[HistoryRecord], current: Sequence[HistoryRecord]) -> History:
    """Return this comparison among the `records` of all, in which it stands itself.

    Comparable is an earlier record of the same cell, work, CPU and GPU models of which no gate failed, and which was
    measured another time. Records after the current ones are passed over, so that an older report stays what it was.
    """
    key = current[0].comparison
    place = next(number for number, record in enumerate(records) if record.comparison == key)
    earlier = [record for record in records[:place] if record.params_digest == key[0]]
    changes: list[Change] = []
    suspects: list[str] = []
    for now in current:
        before = [record for record in earlier if _is_comparable(record, now)]
        if before:
            steps = [take_logarithm(record.step_time) for record in (*before, now)]
            speedups = [take_logarithm(record.measured_speedup) for record in (*before, now)]
            found = []
            # A step time counts the other way round: shorter is better.
            if (ratio := compute_ratio(steps, sign=-1)) is not None:
                found.append(_make_change("step time", before[-1], now, ratio))
            if (ratio := compute_ratio(speedups, sign=1)) is not None:
                found.append(_make_change("speedup", before[-1], now, ratio))
            changes += found
            suspects += _list_suspects(before[-1], now)
    suspects = list(dict.fromkeys(suspects))
    keys = list(dict.fromkeys(record.comparison for record in (*earlier, *current)))[-MOST_RECORDS:]
    shown = [record for record in (*earlier, *current) if record.comparison in keys]
    given = [record.cell for record in current if record.gates_passed]
    withheld = dict.fromkeys(("speedup", "speedup_low", "speedup_high"))
    return History(
        records=[record if record.cell in given else record.model_copy(update=withheld) for record in shown],
        changes=_excuse_regressions(changes, baseline=current[0].cell),
        suspects=suspects,
        summary=_describe_changes(changes, suspects, current),
    )


def _is_comparable(record: HistoryRecord, now: HistoryRecord) -> bool:
    same = all(getattr(record, name) == getattr(now, name) for name in ("cell", "world_size", "cpu", "gpus"))
    is_measured = record.step_time is not None and record.measurement_digest != now.measurement_digest
    return same and is_measured and all(one.gates_passed for one in (record, now))


def take_logarithm(estimate: Estimate | None) -> tuple[float, float] | None:
    """Return the logarithm and its standard deviation."""
    if estimate is None:
        return None
    return math.log(estimate.value), math.log(estimate.high / estimate.low) / 2 / _NORMAL


def compute_ratio(figures: Sequence[tuple[float, float] | None], *, sign: Literal[-1, 1]) -> Estimate | None:
    """Return the last figure / the one before it (sign -1: the other way round); None if one of them is not known."""
    (*earlier, before, now) = figures
    if before is None or now is None:
        return None
    half = _NORMAL * math.hypot(before[1], now[1])
    known = [figure[0] for figure in (*earlier, before) if figure is not None][-MOST_RECORDS:]
    if len(known) > _FEWEST_CHANGES:
        usual = statistics.median(abs(after - first) for first, after in itertools.pairwise(known))
        half = max(half, _NORMAL * _DEVIATION_OVER_MEDIAN * usual)
    ratio = sign * (now[0] - before[0])
    return Estimate(value=math.exp(ratio), low=math.exp(ratio - half), high=math.exp(ratio + half))


def _make_change(
    quantity: Literal["step time", "speedup"], before: HistoryRecord, now: HistoryRecord, ratio: Estimate
) -> Change:
    pair = [one.step_time if quantity == "step time" else one.measured_speedup for one in (before, now)]
    assert pair[0] is not None
    assert pair[1] is not None
    verdict: Literal["faster", "slower", "no difference"] = "no difference"
    if not ratio.holds_one:
        verdict = "faster" if ratio.value > 1 else "slower"
    return Change(
        cell=now.cell,
        quantity=quantity,
        since=before.finished_at,
        before=pair[0],
        now=pair[1],
        ratio=ratio,
        verdict=verdict,
        is_regression=verdict == "slower" and 1 / ratio.value > 1 + LEAST_CHANGE,
        is_unproven="unproven" in (before.gates_passed, now.gates_passed),
    )


def _excuse_regressions(changes: list[Change], *, baseline: str) -> list[Change]:
    """Return the changes; a lower speedup is no regression if it is the baseline that became faster."""
    steps = {change.cell: change.verdict for change in changes if change.quantity == "step time"}
    if steps.get(baseline) != "faster":
        return changes
    return [
        change.model_copy(update={"is_regression": False})
        if change.quantity == "speedup" and steps.get(change.cell) != "slower"
        else change
        for change in changes
    ]


def _list_suspects(before: HistoryRecord, now: HistoryRecord) -> list[str]:
    """Return in words what is recorded otherwise than before."""
    versions = ["driver", "torch", "python", "transformers"]
    told = {**{name: name for name in versions}, "num_cpus": "number of CPUs", "preflight": "preflight"}
    found = [
        f"{words} {getattr(before, name) or 'none'} -> {getattr(now, name) or 'none'}"
        for name, words in told.items()
        if getattr(before, name) != getattr(now, name)
    ]
    if before.code_digest != now.code_digest:
        found.append("the code of training/")
    if before.machine_digest != now.machine_digest and all(
        getattr(before, name) == getattr(now, name) for name in (*versions, "num_cpus")
    ):
        found.append("another fact of the machine (data/fingerprint/machine.json)")
    return found


def _describe_changes(changes: Sequence[Change], suspects: Sequence[str], current: Sequence[HistoryRecord]) -> str:
    passed = [
        f"{record.cell} (unproven)" if record.gates_passed == "unproven" else record.cell
        for record in current
        if record.gates_passed
    ]
    if not passed:
        return "Not compared with earlier records: a gate failed."
    if current[0].step_time is None:
        return "Not compared with earlier records: speed was not measured in turns."
    if not changes:
        return "No earlier record is comparable: that takes the same work on the same CPU and GPU models, gates passed."
    found = [change for change in changes if change.verdict != "no difference"]
    since = format_time(changes[0].since)
    if not found:
        return f"No difference since {since} in step time or speedup of {wording.join_names(passed)}."
    why = "; ".join(suspects) or "nothing that is recorded"
    return f"Since {since}: {'; '.join(change.told() for change in found)}. Changed since then: {why}."
