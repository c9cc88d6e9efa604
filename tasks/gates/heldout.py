"""Were the held-out rows held out, and are the weights that were evaluated on them those that were trained?"""

from dataclasses import replace

import numpy as np

from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import Reason, explain
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
    if outputs.params.dataset.heldout_source is not None:
        return _check_other_source(outputs, cell)
    held_out = np.concatenate([np.zeros(0, np.int64), *outputs.slices[outputs.params.heldout_name].row_ids()])
    problems, num_samples, num_seen = [], 0, 0
    num_repeated = outputs.raw.num_heldout_rows_seen
    if num_repeated > _MOST_SEEN * held_out.size:
        problems.append(
            explain(
                "heldout_rows_repeated",
                "{cell}: {seen:,} of {rows:,} held-out rows say what a row outside says, at most {most:.0%} allowed: "
                "choose rows that no other row repeats",
                cell=cell, seen=num_repeated, rows=held_out.size, most=_MOST_SEEN,
            )
        )  # fmt: skip
    for segment in outputs.runs[cell].segments:
        in_segment = 0
        for part in segment.samples():
            num_samples += len(part.row_id)
            in_segment += int(np.isin(part.row_id, held_out).sum())
        num_seen += in_segment
        if in_segment:
            problems.append(
                explain(
                    "heldout_rows_trained", "{where}: learned {times:plural time} from a held-out row",
                    where=segment.title, times=in_segment,
                )
            )  # fmt: skip
    finding = explain(
        "passed", "{cell}: none of {samples:,} samples learned from is one of the {held_out_rows:,} held-out rows",
        cell=cell, samples=num_samples, held_out_rows=held_out.size, held_out_samples=num_seen,
        held_out_rows_seen=num_repeated,
    )  # fmt: skip
    if num_repeated:
        finding = finding.extend("{sentence}, of which {held_out_rows_seen:,} say what a row outside says")
    return make_finding(problems, finding)


def _check_other_source(outputs: Outputs, cell: str) -> Finding:
    num_rows, num_seen = (
        outputs.slices[outputs.params.heldout_name].manifest.num_rows,
        outputs.raw.num_heldout_rows_seen,
    )
    source, other = outputs.raw.source, outputs.raw.heldout_source
    finding = explain(
        "passed",
        "{cell}: {held_out_rows_seen:,} of {held_out_rows:,} held-out rows ({heldout_source}) say what a row of "
        "{source} says",
        cell=cell, held_out_rows_seen=num_seen, held_out_rows=num_rows, heldout_source=other, source=source,
    )  # fmt: skip
    is_other = other == outputs.params.dataset.heldout_source
    is_copy = num_seen > _MOST_SEEN * num_rows
    return make_finding(
        [
            replace(finding, code="heldout_rows_repeated").extend(
                "{sentence}, at most {most:.0%} allowed: choose rows that were held out", most=_MOST_SEEN
            )
        ]
        * is_copy
        + [
            explain(
                "other_heldout_source",
                "{cell}: rows were held out of {found}, params.yaml has another source",
                cell=cell,
                found=other or source,
            )
        ]
        * (not is_other),
        finding,
    )


def check_evaluated_weights(outputs: Outputs, cell: str) -> Finding:
    """Check that the very weights that the ranks ended with were evaluated, of every epoch, on the rows held out."""
    trained = {
        (segment.facts.range, segment.facts.epoch): segment.facts.parameter_checksums[0]
        for segment in outputs.runs[cell].segments
    }
    last = outputs.runs[cell].segments[-1].facts
    evaluated = [((last.range, last.epoch), outputs.evaluation.models[cell].parameter_checksum)]
    evaluated += [
        ((item.range, item.epoch), item.parameter_checksum) for item in outputs.evaluation.epochs.get(cell, [])
    ]
    problems = [
        explain(
            "other_weights",
            "{cell} {range} epoch {epoch}: evaluated weights {found}, the ranks ended with {expected}",
            cell=cell,
            range=part,
            epoch=epoch,
            found=checksum[:12],
            expected=trained.get((part, epoch), "none")[:12],
        )
        for (part, epoch), checksum in evaluated
        if checksum != trained.get((part, epoch))
    ]
    if outputs.evaluation.epochs:
        known = {place for place, _ in evaluated}
        problems += [
            explain(
                "epoch_not_evaluated",
                "{cell} {range} epoch {epoch}: its weights were not evaluated, those of others were",
                cell=cell,
                range=part,
                epoch=epoch,
            )
            for part, epoch in trained
            if (part, epoch) not in known
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
    evaluation, wanted = outputs.evaluation, outputs.slices[outputs.params.heldout_name].manifest.digest
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
    counts = {name: figure.num_tokens for name, figure in figures.items()}
    if len({*counts.values()}) > 1:
        problems.append(
            explain(
                "other_tokens",
                "{cell}: its models and the base model were evaluated on other numbers of tokens: {tokens}",
                cell=cell, tokens=[f"{name} {count:,}" for name, count in counts.items()],
            )
        )  # fmt: skip
    if evaluation.seq_len != outputs.params.train.seq_len:
        problems.append(
            explain(
                "other_seq_len", "{cell}: held-out rows were cut at {found} tokens, params.yaml has {expected}",
                cell=cell, found=evaluation.seq_len, expected=outputs.params.train.seq_len,
            )
        )  # fmt: skip
    return problems
