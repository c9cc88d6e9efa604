"""How the figures came about."""

from tasks.process import wording
from tasks.records.measurement import LinkSpeed, Measurement
from tasks.reporting.blocks import Block, Heading, Items
from tasks.reporting.cell_results import CellResults
from tasks.reporting.results import Results
from tasks.reporting.straggler import SlowestRank

TITLE = "How it was measured"


def make_blocks(results: Results) -> list[Block]:
    """Return how the figures came about and what does not follow from them, one sentence each."""
    return [Items(tell(results)), Heading("What is not claimed"), Items(tell_not_claimed(results))]


def tell(results: Results) -> list[str]:
    """Return the sentences."""
    resumed = [f"{cell.cell} {cell.num_resumes}" for cell in results.cells if cell.num_resumes]
    notes = [
        "Every cell was trained once, from the same start weights, over all ranges in order; each range goes on from "
        "the weights of the one before.",
        "Seconds are those of optimizer steps only (forward, backward, exchange of gradients, update, and waiting "
        "for data), the maximum over the ranks. Checkpoints, logging, evaluation and upload are outside.",
        f"{wording.replace_unit('Tokens', results.unit)} and samples are counted from what was really learned from, "
        "without padding, and divided by wall time.",
        "Forward and backward ran before the first timed step of each segment, outside the clock; what still warms "
        "up after that is inside.",
        "Models are evaluated on rows that no range overlaps, each "
        f"{'row' if results.quality.is_classified else 'token'} counted once.",
    ]
    if results.measurement is not None:
        notes.insert(0, _tell_turns(results.measurement))
        notes += [_tell_link(link) for link in results.measurement.links]
    if results.equivalence:
        notes.append(
            "At steps drawn over each cell's whole training the state before and after the update was kept, with the "
            "clock stopped, and one process without wrapper or communication made the update again from the same "
            "state, with code of its own for dropout's seeds, loss, weighting, clipping and update. Update equivalence "
            "compares the two; the noise floor is what another order of the sums and rounding change."
        )
    if resumed:
        notes.append(
            f"Training was interrupted and taken up again from a checkpoint ({', '.join(resumed)}); each start warms "
            "up anew."
        )
    notes += [_tell_memory(cell) for cell in results.cells if set(cell.micro_batch_sizes) - {cell.micro_batch_size}]
    notes += [_tell_lag(cell.cell, cell.slowest_rank) for cell in results.cells if cell.slowest_rank is not None]
    notes += [
        f"{cell.cell}: a checkpoint was found broken and not used, an older one or the start of the segment was taken "
        f"instead: {reason}."
        for cell in results.cells
        for reason in cell.checkpoints_not_used
    ]
    return notes


def tell_not_claimed(results: Results) -> list[str]:
    """Return what does not follow from the figures, one sentence each."""
    measurement = results.measurement
    if measurement is None:
        notes = ["There is one training of each cell, and a ratio of two single runs is no speedup."]
    else:
        notes = [
            "The measured speedup is that of optimizer steps in short blocks. Of the whole training there is one run "
            "of each cell: its seconds have no interval, and a few percent between two of them are no difference. The "
            "cells were trained one after the other, and a machine may change by 10 % within hours.",
        ]
    other = (
        "what is said about other numbers of ranks is a model"
        if results.more_ranks
        else "nothing is said about other numbers of ranks"
    )
    notes.append(f"Figures hold for this model, data, batch size, machine and these versions; {other}.")
    if not results.equivalence:
        notes.append("The gates compare what real runs recorded. No update was computed a second time.")
    for cell in results.cells:
        if cell.version_drift:
            notes.append(
                f"{cell.cell} went on from what other versions had saved ({'; '.join(cell.version_drift)}). That its "
                "weights are those of an undisturbed run, or the same bits on any number of ranks, is not claimed."
            )
    unchecked = [gate.name for gate in results.gates if gate.verdict == "not checked"]
    if unchecked:
        notes.append(f"Not checked: {wording.join_names(unchecked)}.")
    if unproven := [cell.cell for cell in results.answers if cell.standing.state == "unproven"]:
        notes.append(
            f"The speedup of {wording.join_names(unproven)} is not proven, since gates were not checked; neither is "
            "what follows from it."
        )
    if all(cell.device == "cpu" for cell in results.cells):
        notes.append("Ranks shared the cores, caches and memory of one CPU; this says nothing about GPUs.")
    return notes


def _tell_turns(measurement: Measurement) -> str:
    return (
        f"The speedup was measured before the training: the ranks of all cells were started {measurement.num_launches} "
        f"times and took {wording.format_plural(measurement.num_turns, 'turn')} in blocks of real optimizer steps, in "
        "random order, one computing while the others wait; no logging, checkpoint or evaluation inside, clocks read "
        "when the device was done, the slowest rank counted. Figures are means, stalls included; an interval is "
        "Student's 95 % interval over the starts and over the turns, whichever is wider."
    )


def _tell_link(link: LinkSpeed) -> str:
    name, size = link.kind.replace("_", "-"), f"{link.num_bytes / 2**20:g} MiB"
    article = "an" if name.startswith("a") else "a"
    how = "which an emulated link slept for" if link.is_slept_for else f"by {link.backend}, with nothing beside it"
    speed = wording.format_three_digits(link.bus_gb_per_second)
    return (
        f"The link of {wording.format_plural(link.world_size, 'rank')}: {article} {name} of {size} took "
        f"{wording.format_duration(link.seconds)}, {how}: {speed} GB/s of bus bandwidth, as nccl-tests counts it."
    )


def _tell_memory(cell: CellResults) -> str:
    smaller = [size for size in cell.micro_batch_sizes if size != cell.micro_batch_size]
    return (
        f"{cell.cell} ran out of memory with {cell.micro_batch_size} samples per forward pass and went on with "
        f"{wording.join_names([str(size) for size in smaller])}: the global batch stayed {cell.global_batch_size}, "
        "with "
        "more forward passes per step, so that its weights differ by rounding and its seconds are of what it used."
    )


def _tell_lag(cell: str, slowest: SlowestRank) -> str:
    verdict = "a straggler, and the cell's speedup is that of its slowest device" if slowest.is_straggler else "no lag"
    return (
        f"Of {cell}, rank {slowest.rank} took longest for the same work, {wording.format_ratio(slowest.times_as_long)} "
        f"as long as the others: {verdict}."
    )
