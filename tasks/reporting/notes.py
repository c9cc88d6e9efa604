"""How it was measured, and what is not claimed: sentences that follow from the results."""

from tasks.reporting import wording
from tasks.reporting.lag import SlowestRank
from tasks.reporting.measured_notes import in_turns
from tasks.reporting.results import CellResults, Results


def heldout_rows(results: Results) -> str:
    """Return on which rows the models were evaluated."""
    quality = results.quality
    cut = "" if results.unit == "image" else f", cut to {quality.seq_len} tokens"
    return f"{quality.num_rows:,} rows ({quality.heldout}) that no range overlaps{cut}."


def how_measured(results: Results) -> list[str]:
    """Return how the figures came about, one sentence each."""
    resumed = [f"{cell.cell} {cell.num_resumes}" for cell in results.cells if cell.num_resumes]
    notes = [
        "Every cell was trained once, from the same start weights, over all ranges in order; each range goes on from "
        "the weights of the one before.",
        "Seconds are those of optimizer steps only (forward, backward, exchange of gradients, update, and waiting "
        "for data), the maximum over the ranks. Checkpoints, logging, evaluation and upload are outside.",
        f"{wording.in_unit('Tokens', results.unit)} and samples are counted from what was really learned from, without "
        "padding, and divided by wall time.",
        "Forward and backward ran before the first timed step of each segment, outside the clock; what still warms "
        "up after that is inside.",
        "Models are evaluated on rows that no range overlaps, each "
        f"{'row' if results.quality.is_classified else 'token'} counted once.",
    ]
    if results.measurement is not None:
        notes.insert(0, in_turns(results.measurement))
    if results.equivalence:
        notes.append(
            f"Before the training, each cell's ranks made {results.equivalence[0].num_steps} updates on the first "
            "rows, and one process without wrapper or communication made each of them again from the same weights, "
            "with code of its own for loss, weighting, clipping and update. Update equivalence compares the two; the "
            "noise floor is what adding the same micro-batches up in another order changes in that one process."
        )
    if results.chaos is not None:
        notes.append(results.chaos.sentence)
    if resumed:
        notes.append(
            f"Training was interrupted and taken up again from a checkpoint ({', '.join(resumed)}); each start warms "
            "up anew."
        )
    notes += [_less_memory(cell) for cell in results.cells if set(cell.micro_batch_sizes) - {cell.micro_batch_size}]
    notes += [_lag(cell.cell, cell.slowest_rank) for cell in results.cells if cell.slowest_rank is not None]
    notes += [
        f"{cell.cell}: a checkpoint was found broken and not used, an older one or the start of the segment was taken "
        f"instead: {reason}."
        for cell in results.cells
        for reason in cell.checkpoints_not_used
    ]
    return notes


def _less_memory(cell: CellResults) -> str:
    smaller = [size for size in cell.micro_batch_sizes if size != cell.micro_batch_size]
    return (
        f"{cell.cell} ran out of memory with {cell.micro_batch_size} samples per forward pass and went on with "
        f"{wording.listed([str(size) for size in smaller])}: the global batch stayed {cell.global_batch_size}, with "
        "more forward passes per step, so that its weights differ by rounding and its seconds are of what it used."
    )


def _lag(cell: str, slowest: SlowestRank) -> str:
    verdict = "a straggler, and the cell's speedup is that of its slowest device" if slowest.is_straggler else "no lag"
    return (
        f"Of {cell}, rank {slowest.rank} took longest for the same work, {wording.ratio(slowest.times_as_long)} as "
        f"long as the others: {verdict}."
    )


def not_claimed(results: Results) -> list[str]:
    """Return what the report does not say, one sentence each."""
    one_run = (
        "There is one run of each cell, so there is no confidence interval yet. A difference of a few percent cannot "
        "be told from noise, and the spread over segments is no substitute: segments of one run share their "
        "disturbances."
    )
    measurement = results.measurement
    if measurement is None:
        notes = [one_run, "Whether the machine was idle otherwise was not measured."]
    else:
        notes = [
            "The measured speedup is that of optimizer steps in short blocks. Of the whole training there is one run "
            "of each cell: its seconds have no interval, and a few percent between two of them are no difference.",
        ]
    is_predicted = measurement is not None and measurement.prediction is not None
    other = (
        "what is said about other numbers of ranks is a prediction"
        if is_predicted
        else ("nothing is said about other numbers of ranks")
    )
    notes.append(f"Figures hold for this model, data, batch size, machine and these versions; {other}.")
    if not results.equivalence:
        notes.append(
            "The gates compare what real runs recorded. The weights of a step on several ranks were not compared with "
            "those of a step on one."
        )
    for cell in results.cells:
        if cell.version_drift:
            notes.append(
                f"{cell.cell} went on from what other versions had saved ({'; '.join(cell.version_drift)}). That its "
                "weights are those of an undisturbed run, or the same bits on any number of ranks, is not claimed."
            )
    unchecked = [gate.name for gate in results.gates if gate.verdict == "not checked"]
    if unchecked:
        notes.append(f"Not checked: {wording.listed(unchecked)}.")
    if unproven := [cell.cell for cell in results.answers if cell.standing.state == "unproven"]:
        notes.append(
            f"That the training of {wording.listed(unproven)} is that of {results.baseline.cell} is not shown: what "
            "shows it was not checked."
        )
    if all(cell.device == "cpu" for cell in results.cells):
        notes.append("Ranks shared the cores, caches and memory of one CPU; this says nothing about GPUs.")
    return notes


def withheld(results: Results) -> str | None:
    """Return why speedups are not given and what the figures that are given are; None if nothing is withheld."""
    cells = [cell.cell for cell in results.cells[1:] if cell.is_withheld]
    if not (cells or results.is_withheld):
        return None
    failed = wording.counted(len(results.failed_gates), "gate")
    whose = "" if results.is_withheld else f" of {wording.listed(cells)}"
    return (
        f"Speedup and efficiency{whose} are withheld, because {failed} failed. What was timed is shown as it was "
        "timed; do not read it as a comparison."
    )
