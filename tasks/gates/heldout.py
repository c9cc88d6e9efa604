"""Were the held-out rows held out, and are the weights that were evaluated on them those that were trained?"""

from dataclasses import replace

import numpy as np

from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import Reason, explain
from tasks.params.choices import read_unit
from tasks.records.evaluation import Figures
from tasks.records.outputs import Outputs

_MOST_SEEN = 0.4
"""Share of held-out rows that may say what a row outside says, of the same source or of that which is trained on.

Chosen, not measured: a copy of the training rows repeats all of them, and the report counts what a split repeats.
"""


def check_heldout_rows(outputs: Outputs, cell: str) -> Finding:
    """Check that no row the cell learned from is among the held-out ones.

    Rows of a source of their own are told by what they say, since their numbers are not those of the others.
    """
    num_seen, source = outputs.raw.num_heldout_rows_seen, outputs.raw.heldout_source
    if (wanted := outputs.params.dataset.heldout_source) is not None:
        num_rows = outputs.heldout.num_rows
        finding = explain(
            "passed",
            "{cell}: {held_out_rows_seen:,} of {held_out_rows:,} held-out rows ({heldout_source}) say what a row of "
            "{source} says",
            cell=cell, held_out_rows_seen=num_seen, held_out_rows=num_rows, heldout_source=source,
            source=outputs.raw.source,
        )  # fmt: skip
        problems = []
        if num_seen > _MOST_SEEN * num_rows:
            template = "{sentence}, at most {most:.0%} allowed: choose rows that were held out"
            problems.append(replace(finding, code="heldout_rows_repeated").extend(template, most=_MOST_SEEN))
        if source != wanted:
            template = "{cell}: rows were held out of {found}, params.yaml has another source"
            problems.append(explain("other_heldout_source", template, cell=cell, found=source or outputs.raw.source))
        return make_finding(problems, finding)
    held_out = np.concatenate([np.zeros(0, np.int64), *outputs.slices[outputs.params.heldout_name].row_ids()])
    problems, num_samples, num_learned = [], 0, 0
    if num_seen > _MOST_SEEN * held_out.size:
        problems.append(
            explain(
                "heldout_rows_repeated",
                "{cell}: {seen:,} of {rows:,} held-out rows say what a row outside says, at most {most:.0%} allowed: "
                "choose rows that no other row repeats",
                cell=cell, seen=num_seen, rows=held_out.size, most=_MOST_SEEN,
            )
        )  # fmt: skip
    for segment in outputs.runs[cell].segments:
        times = sum(int(np.isin(part.row_id, held_out).sum()) for part in segment.samples())
        num_samples += segment.ledger.num_samples
        num_learned += times
        if times:
            template = "{where}: learned {times:plural time} from a held-out row"
            problems.append(explain("heldout_rows_trained", template, where=segment.title, times=times))
    finding = explain(
        "passed", "{cell}: none of {samples:,} samples learned from is one of the {held_out_rows:,} held-out rows",
        cell=cell, samples=num_samples, held_out_rows=held_out.size, held_out_samples=num_learned,
        held_out_rows_seen=num_seen,
    )  # fmt: skip
    if num_seen:
        finding = finding.extend("{sentence}, of which {held_out_rows_seen:,} say what a row outside says")
    return make_finding(problems, finding)


def check_evaluated_weights(outputs: Outputs, cell: str) -> Finding:
    """Check that the very weights that the ranks ended with were evaluated, of every epoch, on the rows held out."""
    segments = [segment.facts for segment in outputs.runs[cell].segments]
    trained = {(facts.range, facts.epoch): facts.parameter_checksums[0] for facts in segments}
    evaluated = [((segments[-1].range, segments[-1].epoch), outputs.evaluation.models[cell].parameter_checksum)]
    evaluated += [
        ((item.range, item.epoch), item.parameter_checksum) for item in outputs.evaluation.epochs.get(cell, [])
    ]
    problems = [
        explain(
            "other_weights",
            "{cell} {range} epoch {epoch}: evaluated weights {found}, the ranks ended with {expected}",
            cell=cell, range=part, epoch=epoch, found=checksum[:12],
            expected=trained.get((part, epoch), "none")[:12],
        )
        for (part, epoch), checksum in evaluated
        if checksum != trained.get((part, epoch))
    ]  # fmt: skip
    template = "{cell} {range} epoch {epoch}: its weights were not evaluated, those of others were"
    problems += [
        explain("epoch_not_evaluated", template, cell=cell, range=part, epoch=epoch)
        for part, epoch in trained
        if outputs.evaluation.epochs and (part, epoch) not in dict(evaluated)
    ]
    problems += _find_other_heldout_rows(outputs, cell)
    return make_finding(
        problems,
        "{cell}: {evaluations:plural evaluation}, the last of weights {weights}: as the ranks ended with them, on "
            "the rows held out",
            cell=cell, evaluations=len(evaluated), weights=evaluated[0][1][:12],
    )  # fmt: skip


def _find_other_heldout_rows(outputs: Outputs, cell: str) -> list[Reason]:
    """Return which of the cell's models, or the base model, were evaluated on other rows, or on rows cut elsewhere."""
    evaluation, wanted = outputs.evaluation, outputs.heldout.digest
    figures: dict[str, Figures] = {
        name: evaluation.models[name] for name in ("base", cell) if name in evaluation.models
    }
    figures |= {f"{cell} {item.range} epoch {item.epoch}": item for item in evaluation.epochs.get(cell, [])}
    problems = [
        explain(
            "other_heldout_rows",
            "{model}: evaluated on rows {found}, those held out are {expected}",
            model=name,
            found=figure.rows_digest[:12],
            expected=wanted[:12],
        )
        for name, figure in figures.items()
        if figure.rows_digest not in ("", wanted)
    ]
    rows, params = outputs.slices[outputs.params.heldout_name], outputs.params
    held_out = rows.count_units(params.train.seq_len, workload=params.workload)
    problems += [
        explain(
            "other_tokens", "{model}: evaluated on {tokens:,} {unit}s, {expected:,} are held out",
            model=name, tokens=figure.num_tokens, unit=read_unit(params.workload), expected=held_out,
        )
        for name, figure in figures.items()
        if figure.num_tokens != held_out
    ]  # fmt: skip
    if evaluation.seq_len != outputs.params.train.seq_len:
        problems.append(
            explain(
                "other_seq_len", "{cell}: held-out rows were cut at {found} tokens, params.yaml has {expected}",
                cell=cell, found=evaluation.seq_len, expected=outputs.params.train.seq_len,
            )
        )  # fmt: skip
    return problems
