"""Were the held-out rows held out, and are the weights that were evaluated on them those that were trained?"""

import numpy as np

from tasks.process import wording
from tasks.records.gate import Finding, make_finding
from tasks.records.outputs import Outputs


def check_heldout_rows(outputs: Outputs, cell: str) -> Finding:
    """Check that no row the cell learned from is among the held-out ones."""
    held_out = np.concatenate([np.zeros(0, np.int64), *outputs.slices[str(outputs.params.heldout)].row_ids()])
    problems, num_samples, num_seen = [], 0, 0
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
        numbers={"samples": num_samples, "held_out_samples": num_seen},
    )


def check_evaluated_weights(outputs: Outputs, cell: str) -> Finding:
    """Check that each checkpoint, as loaded to be evaluated, holds the very weights that the ranks ended with."""
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
    return make_finding(
        problems,
        otherwise=f"{cell}: {wording.format_plural(len(evaluated), 'evaluation')}, the last of weights "
        f"{evaluated[0][1][:12]}: as the ranks ended with them",
        numbers={"evaluations": len(evaluated)},
    )
