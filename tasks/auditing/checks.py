"""All questions of an audit, in the order in which the report answers: correct? comparable?"""

from collections.abc import Sequence
from dataclasses import asdict

from tasks.auditing.findings import (
    Question,
    clipping,
    clock,
    data_wait,
    epochs,
    exchange,
    global_batch,
    labels,
    loss_weights,
    one_file,
    own_device,
    plain_baseline,
    rows_of_its_own,
    same_ids,
    same_parameters,
    same_rows,
    same_start,
    start_weights,
)
from tasks.auditing.launched import Audit
from tasks.records.gate import CellFinding, Gate

QUESTIONS: Sequence[Question] = (
    same_parameters, rows_of_its_own, same_ids, labels, loss_weights, clipping, start_weights, epochs, exchange,
    plain_baseline, same_start, same_rows, global_batch, clock, data_wait, own_device, one_file,
)  # fmt: skip


def ask_all(audit: Audit) -> list[Gate]:
    """Return what was found of every cell, question by question."""
    gates = []
    for question in QUESTIONS:
        found = {cell: question.find(audit, cell) for cell in audit.request.cells}
        findings = [CellFinding(cell=cell, **asdict(one)) for cell, one in found.items() if one is not None]
        gates.append(Gate(name=question.NAME, question=question.QUESTION, findings=findings))
    return gates


def find_remedy(name: str) -> str:
    """Return what mends the finding of that name."""
    return next(question.REMEDY for question in QUESTIONS if name == question.NAME)
