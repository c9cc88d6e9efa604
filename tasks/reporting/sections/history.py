"""What changed since the last comparable record, and the last records."""

from tasks.process import wording
from tasks.reporting.blocks import Block, Charts, Table, Text, tabulate
from tasks.reporting.history import Change, HistoryRecord, format_time, group_comparisons
from tasks.reporting.results import Results

TITLE = "History"
_GATES: dict[bool | str, str] = {True: "passed", False: "failed", "unproven": "unproven"}


def make_blocks(results: Results) -> list[Block]:
    """Return what became of the speed, each figure now and then, and the comparisons before of the same work."""
    history = results.history
    if history is None:
        return [Text("No history was kept with these results.")]
    changes = [_tabulate_changes(history.changes)] if history.changes else []
    has_others = len(group_comparisons(history.records)) > 1
    return [
        Text(history.summary),
        *changes,
        Charts("history"),
        *[
            tabulate(
                "The last comparisons of the same work",
                [
                    ("Finished", lambda record: format_time(record.finished_at)),
                    ("Cell", lambda record: record.cell),
                    (
                        "Step time",
                        lambda record: wording.format_optional(record.step_time, wording.format_duration_with_interval),
                    ),
                    ("Speedup", lambda record: _format_speedup(results, record)),
                    (
                        "Tokens/s",
                        lambda record: wording.format_optional(record.tokens_per_second, wording.format_three_digits),
                    ),
                    ("Gates", lambda record: _GATES[record.gates_passed]),
                    ("Machine", _describe_machine),
                    ("Preflight", lambda record: record.preflight or wording.NOT_AVAILABLE),
                ],
                [record for cells in reversed(group_comparisons(history.records)) for record in cells],
                num_prose=2,
            ).replace_unit(results.unit)
        ]
        * has_others,
    ]


def _tabulate_changes(changes: list[Change]) -> Table:
    """Return each figure now and then."""
    headings = ["Cell", "Figure", "Before", "Now", "Times as good", "Outcome"]
    title = "Against the last comparable record, 95 % intervals of the difference of two sessions"
    return Table(title, headings, [_show_change(change) for change in changes])


def _show_change(change: Change) -> list[str]:
    shown = (
        wording.format_duration_with_interval if change.quantity == "step time" else wording.format_ratio_with_interval
    )
    verdict = f"{change.verdict}: regression" if change.is_regression else change.verdict
    ratio = wording.format_ratio_with_interval(change.ratio)
    return [change.cell, change.name, shown(change.before), shown(change.now), ratio, verdict]


def _format_speedup(results: Results, record: HistoryRecord) -> str:
    if record.cell == results.baseline.cell:
        return wording.BASELINE
    if record.measured_speedup is None and record.gates_passed and not results.is_hidden(record.cell):
        return wording.NOT_AVAILABLE
    return wording.format_ratio_with_interval(record.measured_speedup)


def _describe_machine(record: HistoryRecord) -> str:
    driver = f", driver {record.driver}" if record.driver else ""
    return f"{record.gpus or record.cpu}{driver}, torch {record.torch or 'unknown'}"
