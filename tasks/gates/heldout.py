"""Were the held-out rows held out, and are the weights that were evaluated on them those that were trained?"""

import numpy as np

from tasks.process import wording
from tasks.records.evaluation import Figures
from tasks.records.gate import Finding, make_finding
from tasks.records.outputs import Outputs

_MOST_SEEN = 0.5
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
            f"{cell}: {num_repeated:,} of {held_out.size:,} held-out rows say what a row outside says, at most "
            f"{_MOST_SEEN:.0%} allowed: choose rows that no other row repeats"
        )
    for segment in outputs.runs[cell].segments:
        in_segment = 0
        for part in segment.samples():
            num_samples += len(part.row_id)
            in_segment += int(np.isin(part.row_id, held_out).sum())
        num_seen += in_segment
        if in_segment:
            problems.append(f"{segment.title}: learned {wording.format_plural(in_segment, 'time')} from a held-out row")
    return make_finding(
        problems,
        otherwise=f"{cell}: none of {num_samples:,} samples learned from is one of the {held_out.size:,} held-out rows",
        numbers={"samples": num_samples, "held_out_samples": num_seen, "held_out_rows_seen": num_repeated},
    )


def _check_other_source(outputs: Outputs, cell: str) -> Finding:
    num_rows, num_seen = (
        outputs.slices[outputs.params.heldout_name].manifest.num_rows,
        outputs.raw.num_heldout_rows_seen,
    )
    source, other = outputs.raw.source, outputs.raw.heldout_source
    told = f"{cell}: {num_seen:,} of {num_rows:,} held-out rows ({other}) say what a row of {source} says"
    is_other = other == outputs.params.dataset.heldout_source
    is_copy = num_seen > _MOST_SEEN * num_rows
    return make_finding(
        [f"{told}, at most {_MOST_SEEN:.0%} allowed: choose rows that were held out"] * is_copy
        + [f"{cell}: rows were held out of {other or source}, params.yaml has another source"] * (not is_other),
        otherwise=told,
        numbers={"held_out_rows": num_rows, "held_out_rows_seen": num_seen},
    )


def check_evaluated_weights(outputs: Outputs, cell: str) -> Finding:
    """Check that the very weights that the ranks ended with were evaluated, of every epoch, on the rows held out."""
    trained = {
        (segment.facts.range, segment.facts.epoch): segment.facts.parameter_checksums[0]
        for segment in outputs.runs[cell].segments
    }
    last = outputs.runs[cell].segments[-1].facts
    evaluated = [((last.range, last.epoch), outputs.evaluation.models[cell].parameter_checksum)]
    evaluated += [((one.range, one.epoch), one.parameter_checksum) for one in outputs.evaluation.epochs.get(cell, [])]
    problems = [
        f"{cell} {part} epoch {epoch}: evaluated weights {checksum[:12]}, the ranks ended with "
        f"{trained.get((part, epoch), 'none')[:12]}"
        for (part, epoch), checksum in evaluated
        if checksum != trained.get((part, epoch))
    ]
    if outputs.evaluation.epochs:
        known = {place for place, _ in evaluated}
        problems += [
            f"{cell} {part} epoch {epoch}: its weights were not evaluated, those of others were"
            for part, epoch in trained
            if (part, epoch) not in known
        ]
    problems += _find_other_heldout_rows(outputs, cell)
    return make_finding(
        problems,
        otherwise=f"{cell}: {wording.format_plural(len(evaluated), 'evaluation')}, the last of weights "
        f"{evaluated[0][1][:12]}: as the ranks ended with them, on the rows held out",
        numbers={"evaluations": len(evaluated)},
    )


def _find_other_heldout_rows(outputs: Outputs, cell: str) -> list[str]:
    """Return which of the cell's models, or the base model, were evaluated on other rows, or on rows cut elsewhere."""
    evaluation, wanted = outputs.evaluation, outputs.slices[outputs.params.heldout_name].manifest.digest
    figures: dict[str, Figures] = {
        name: evaluation.models[name] for name in ("base", cell) if name in evaluation.models
    }
    figures |= {f"{cell} {one.range} epoch {one.epoch}": one for one in evaluation.epochs.get(cell, [])}
    problems = [
        f"{name}: evaluated on rows {one.rows_digest[:12]}, those held out are {wanted[:12]}"
        for name, one in figures.items()
        if one.rows_digest not in ("", wanted)
    ]
    counts = {name: one.num_tokens for name, one in figures.items()}
    if len({*counts.values()}) > 1:
        told = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        problems.append(f"{cell}: its models and the base model were evaluated on other numbers of tokens: {told}")
    if evaluation.seq_len != outputs.params.train.seq_len:
        asked = outputs.params.train.seq_len
        problems.append(f"{cell}: held-out rows were cut at {evaluation.seq_len} tokens, params.yaml has {asked}")
    return problems
