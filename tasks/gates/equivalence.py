"""Is an update of the ranks what one process computes? Asked at steps drawn over the whole training."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from ddp_audit.process.findings import Finding, make_finding, make_unchecked_finding
from ddp_audit.process.wording import Reason, explain
from tasks.records.checked_update import CheckedUpdate
from tasks.records.facts import Record
from tasks.records.outputs import Outputs, RunOutputs

_UPDATES = TypeAdapter(list[CheckedUpdate])
_PART = 0.25
"""The share of a training's steps that the probability of seeing a defect is told of."""
_SKIPPED = "the loss scale of fp16 skipped it"


class Equivalence(Record):
    """One kind of number in the updates of a cell that were computed a second time: the one that is farthest off."""

    cell: str
    """Name of the cell."""
    num_checked: int
    """Updates that were compared."""
    num_steps: int
    """Steps over which they were drawn."""
    compared: str
    """What was compared: gradient, squares, weights, statistics, loss, norm (tasks/records/checked_update.py)."""
    step: int
    """The step that is farthest off, beside what is allowed of it."""
    difference: float
    """How far, relative to the gradient or to what the update changed."""
    noise_floor: float
    """What other orders of the sums and rounding make of it."""
    tolerance: float
    """What is allowed."""
    largest_in: str | None
    """The parameter that is farthest off."""


def read_updates(run: RunOutputs) -> list[CheckedUpdate]:
    """Return what was found of each update of the run that was to be checked."""
    return [item for segment in run.segments for item in _UPDATES.validate_python(segment.facts.checked_updates)]


def compute_probability(num_checked: int) -> float:
    """Return how likely a defect of a quarter of the steps is seen in so many that are drawn at random."""
    return 1 - (1 - _PART) ** num_checked


def check_update_equivalence(outputs: Outputs, cell: str) -> Finding:
    """Check that each update of the cell which was computed a second time came out the same."""
    run = outputs.runs[cell]
    updates = read_updates(run)
    problems, gaps = list(_find_problems(updates, cell)), list[Reason]()
    passed = [update for update in updates if update.verdict == "passed" and not update.is_skipped]
    skipped = [update for update in updates if update.is_skipped]
    num_steps = run.add_up("num_steps")
    # Some of these are checked always: by them alone nothing is known of the steps between.
    known = {1, *(segment.facts.last_step for segment in run.segments)}
    for segment in run.segments:
        checked = _UPDATES.validate_python(segment.facts.checked_updates)
        if segment.facts.num_steps > 2:
            checked = [update for update in checked if update.step not in known]
        if not any(result.verdict == "passed" and not result.is_skipped for result in checked):
            otherwise = _SKIPPED if checked else "none was drawn when it was trained"
            why = next((result.problem for result in checked if result.problem), otherwise)
            gaps.append(
                explain("no_update_checked", "{where}: no update was checked: {why}", where=segment.title, why=why)
            )
    # What goes wrong somewhere and stays wrong is seen at the end, for certain; noise may hide a part of that update.
    last = max(known)
    result = next((update for update in updates if update.step == last), None)
    if result is None or result.is_skipped or not (result.compared or result.verdict == "failed"):
        why = (result.problem or _SKIPPED) if result else "more was to be trained then; `make retrain` checks it"
        text = "{cell}: its last update, of step {last:,}, was not checked: {why}"
        gaps.append(explain("last_not_checked", text, cell=cell, last=last, why=why))
    if outputs.measurement is not None:
        batch = outputs.measurement.speeds[cell].global_batch_size
        if batch != run.facts.global_batch_size:
            # Timed on larger steps than trained, which is another training: both have to be right.
            timed = _UPDATES.validate_python(outputs.measurement.checked_updates.get(cell, []))
            problems += _find_problems(timed, f"{cell}, updates of {batch} samples as timed")
            if not any(item.verdict == "passed" and not item.is_skipped for item in timed):
                gaps.append(
                    explain(
                        "batch_not_checked",
                        "{cell}: no update of {batch} samples, as timed, was checked; `make rebench` checks more",
                        cell=cell, batch=batch,
                    )
                )  # fmt: skip
    if gaps and not problems:
        return make_unchecked_finding(*gaps)
    worst = {kind: item for kind, _, item in _select_widest(passed)}
    # What stands in for one of those that are checked always is no chance either.
    num_drawn = max(sum(item.step not in known for item in passed) - sum(item.step in known for item in skipped), 0)
    return make_finding(
        problems,
        "{cell}: {checked} of {drawn:plural update}, drawn over {steps:plural step}, are what one process "
        "computes; a defect in a quarter of the steps would have been seen with {probability:percent}"
        + ("; not counted: {skipped:plural step} skipped by the loss scale" if skipped else "")
        + ("; the gradient is at most {gradient_difference:difference} off" if "gradient" in worst else ""),
        cell=cell,
        checked=len(passed),
        drawn=len(updates) - len(skipped),
        skipped=len(skipped),
        steps=num_steps,
        probability=compute_probability(num_drawn) if num_drawn < num_steps - len(known) else 1.0,
        **{
            f"{kind}_{name}": getattr(item, name)
            for kind, item in worst.items()
            for name in ("difference", "noise_floor", "tolerance")
        },
    )


def _find_problems(updates: Sequence[CheckedUpdate], where: str) -> Iterator[Reason]:
    """Yield what is wrong with the first of the wrong updates; figures outrank the verdict that they were given."""
    wrong = []
    for item in updates:
        kind = next((kind for kind, its in item.compared.items() if not its.difference <= its.tolerance), None)
        if item.verdict == "failed" or (item.verdict == "passed" and kind is not None):
            wrong.append((item.step, item.problem or f"{kind} differs by {item.compared[str(kind)].difference:.1e}"))
    if wrong:
        yield explain(
            "update_differs",
            "{where}: {wrong} of {compared:plural checked update} not what one process computes, first in step {step}: "
            "{problem}",
            where=where, step=wrong[0][0], problem=wrong[0][1], wrong=len(wrong),
            compared=sum(update.verdict != "not checked" and not update.is_skipped for update in updates),
        )  # fmt: skip


def _select_widest(updates: Sequence[CheckedUpdate]) -> Iterator[tuple[str, int, Any]]:
    """Yield each kind that was compared, and step and figures of where it is farthest off beside what is allowed."""
    for kind in dict.fromkeys(kind for update in updates for kind in update.compared):
        results = [(update.step, update.compared[kind]) for update in updates if kind in update.compared]
        step, widest = max(results, key=lambda pair: pair[1].difference / (pair[1].tolerance or 1.0))
        yield kind, step, widest


def list_equivalences(outputs: Outputs) -> list[Equivalence]:
    """Return what was compared, cell by cell; [] where no update was checked."""
    results = []
    for cell, run in outputs.runs.items():
        updates = [update for update in read_updates(run) if update.compared and not update.is_skipped]
        known = {"cell": cell, "num_checked": len(updates), "num_steps": run.add_up("num_steps")}
        for kind, step, item in _select_widest(updates):
            results.append(Equivalence(**known, compared=kind, step=step, **asdict(item)))
    return results
