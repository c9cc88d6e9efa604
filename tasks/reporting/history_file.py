"""reports/history.csv: one line per cell of every comparison that was ever finished here; only added to.

It is no output of DVC, which would delete it before the next report.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from tasks.gates.blocks_and_training import OTHER_SECONDS
from tasks.params.train import NOT_CONTENT
from tasks.process.failure import DataError
from tasks.records.gate import BORNE_OUT
from tasks.records.outputs import Outputs
from tasks.reporting.cell_results import CellResults
from tasks.reporting.data_files import unescape_formula, write_csv
from tasks.reporting.history import HistoryRecord, group_comparisons, make_history
from tasks.reporting.results import Results
from training.process.files import digest_json
from training.record.environment import select_decisive

COLUMNS = list(HistoryRecord.model_fields)


def add_history(results: Results, outputs: Outputs, path: Path) -> Results:
    """Return the results with their history, after adding them to the file at `path` if they are new to it.

    Raises DataError in one line for a file that is not a history of this version.
    """
    records = read_history(path)
    current = make_records(results, outputs)
    # The last of them: gates may have failed in between, and pass again.
    known = next(
        (
            comparison
            for comparison in reversed(group_comparisons(records))
            if _identify_comparison(comparison) == _identify_comparison(current)
        ),
        current,
    )
    if known is current:
        records += current
        write_csv(path, COLUMNS, ([_format_field(getattr(record, name)) for name in COLUMNS] for record in records))
    return results.model_copy(update={"history": make_history(records, known)})


def make_records(results: Results, outputs: Outputs) -> list[HistoryRecord]:
    """Return what the comparison is remembered by, one record per cell, the baseline first."""
    machine, versions = results.comparison.machine, results.comparison.machine.versions
    facts = results.comparison
    environment = select_decisive(facts.recorded.get("environment", {}))
    common: dict[str, Any] = {
        "finished_at": results.created_at,
        "name": results.name,
        "params_digest": digest_json(
            {
                "model": [outputs.params.model.model_dump(), facts.model.digest],
                "dataset": outputs.params.dataset.model_dump(),
                "ranges": [[part.range, part.digest] for part in facts.ranges],
                "workload": outputs.params.workload,
                "train": outputs.params.train.model_dump(exclude=set(NOT_CONTENT)),
                "cells": [
                    # `batch` was a key once: without it earlier records would be of another comparison.
                    [name, {**cell.model_dump(), "batch": None, **outputs.params.read_package_versions(name)}]
                    for name, cell in outputs.params.cells.items()
                ],
                "scaling": outputs.params.measure.scaling,
                **({"environment": environment} if environment else {}),
            }
        ),
        # Of what was timed: the blocks, or the training where none were run.
        "measurement_digest": digest_json(
            [
                [cell.cell, cell.speed.step_seconds.value if cell.speed else cell.whole.train_seconds]
                for cell in results.cells
            ]
        ),
        "machine_digest": machine.digest,
        "code_digest": outputs.measurement.code_digest if outputs.measurement else None,
        "cpu": machine.cpu,
        "num_cpus": machine.num_cpus,
        "gpus": ", ".join(gpu.name for gpu in machine.gpus) or None,
        "driver": machine.driver,
        **{name: versions.get(name) for name in ("torch", "python", "transformers")},
        "preflight": None,
        "num_rounds": None,
    }
    if (measurement := results.measurement) is not None:
        warnings = ", ".join(check.name for check in measurement.preflight.checks if check.verdict == "warning")
        verdict = measurement.preflight.verdict
        common |= {"preflight": f"{verdict}: {warnings}" if warnings else verdict, "num_rounds": measurement.num_turns}
    records = []
    for cell in results.cells:
        speed = cell.speed
        figures = {
            f"{name}{end}": getattr(estimate, end.strip("_") or "value")
            for name, estimate in (("step_seconds", speed and speed.step_seconds), ("speedup", cell.speedup))
            for end in ("", "_low", "_high")
            if estimate is not None
        }
        records.append(
            HistoryRecord.model_validate(
                {
                    **dict.fromkeys(COLUMNS),
                    **common,
                    **figures,
                    "cell": cell.cell,
                    "world_size": cell.world_size,
                    "gates_passed": _judge_gates(results, cell),
                    "tokens_per_second": speed and speed.tokens_per_second,
                }
            )
        )
    return records


def _judge_gates(results: Results, cell: CellResults) -> bool | Literal["unproven", "not borne out"]:
    """Return what a record says of the cell's gates."""
    standing = cell.standing
    if standing.state == "unproven" and standing.gates:
        return "unproven"
    if standing.state != "withheld":
        return True
    codes = {
        problem.code
        for gate in results.gates
        for finding in gate.findings
        if gate.name == BORNE_OUT and finding.outcome == "failed"
        if finding.cell in (cell.cell, results.baseline.cell)
        for problem in finding.problems
    }
    return "not borne out" if standing.gates == [BORNE_OUT] and codes <= OTHER_SECONDS else False


def _identify_comparison(records: Sequence[HistoryRecord]) -> list[tuple[str, str, str, bool | str]]:
    """Return what tells one comparison from another, whenever the report was made."""
    return [(record.params_digest, record.measurement_digest, record.cell, record.gates_passed) for record in records]


def read_history(path: Path) -> list[HistoryRecord]:
    """Return the file's records, the oldest first; none where there is no file. Raises DataError in one line."""
    if not path.exists():
        return []
    try:
        head, *lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))) or [[]]
        if head != COLUMNS:
            raise ValueError(f"its columns are {', '.join(head) or 'missing'}")
        records = []
        for number, line in enumerate(lines, start=2):
            if len(line) != len(COLUMNS):
                raise ValueError(f"line {number} has {len(line)} fields of {len(COLUMNS)}")
            content = {name: unescape_formula(field) or None for name, field in zip(COLUMNS, line, strict=True)}
            try:
                records.append(HistoryRecord.model_validate(content))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                raise ValueError(f"line {number}: {first['loc'][0]}: {first['msg']}") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path}: {error}; allowed: a history of this version; move it away to begin a new one"
        ) from None
    return records


def _format_field(value: str | float | bool | None) -> str | float | None:
    return ("yes" if value else "no") if isinstance(value, bool) else value
