"""The section History: what changed since the last comparable record, and the last records."""

from tasks.reporting import wording
from tasks.reporting.history import Change, HistoryRecord, comparisons_of, moment
from tasks.reporting.results import Results
from tasks.reporting.tables import Table


def summary(results: Results) -> str:
    """Return what became of the speed since the last comparable record, in one sentence."""
    return "No history was kept with these results." if results.history is None else results.history.summary


def changes(results: Results) -> Table | None:
    """Return each figure now and then; None if there is nothing to compare with."""
    if results.history is None or not results.history.changes:
        return None
    rows = [_change(change) for change in results.history.changes]
    title = "Against the last comparable record, 95 % intervals of the difference of two sessions"
    return Table(title, ["Cell", "Figure", "Before", "Now", "Times as good", "Outcome"], rows)


def _change(change: Change) -> list[str]:
    shown = wording.span_with_interval if change.quantity == "step time" else wording.ratio_with_interval
    verdict = f"{change.verdict}: regression" if change.is_regression else change.verdict
    ratio = wording.ratio_with_interval(change.ratio)
    return [change.cell, change.quantity, shown(change.before), shown(change.now), ratio, verdict]


def records(results: Results) -> Table | None:
    """Return the last comparisons of the same work, the newest first; None if no history was kept."""
    if results.history is None:
        return None
    newest = [record for cells in reversed(comparisons_of(results.history.records)) for record in cells]
    rows = [_record(results, record) for record in newest]
    headings = ["Finished", "Cell", "Step time", "Speedup", "Tokens/s", "Gates", "Machine", "Preflight"]
    return Table("The last comparisons of the same work", headings, rows, num_prose=2).in_unit(results.unit)


def _record(results: Results, record: HistoryRecord) -> list[str]:
    rate, step = record.tokens_per_second, record.step_time
    return [
        moment(record.finished_at),
        record.cell,
        wording.NOT_AVAILABLE if step is None else wording.span_with_interval(step),
        _speedup(results, record),
        wording.NOT_AVAILABLE if rate is None else wording.three_digits(rate),
        "passed" if record.gates_passed else "failed",
        _machine(record),
        record.preflight or wording.NOT_AVAILABLE,
    ]


def _speedup(results: Results, record: HistoryRecord) -> str:
    if record.cell == results.baseline.cell:
        return "baseline"
    if record.measured_speedup is None and record.gates_passed and not results.is_hidden(record.cell):
        return wording.NOT_AVAILABLE
    return wording.ratio_with_interval(record.measured_speedup)


def _machine(record: HistoryRecord) -> str:
    driver = f", driver {record.driver}" if record.driver else ""
    return f"{record.gpus or record.cpu}{driver}, torch {record.torch or 'unknown'}"
