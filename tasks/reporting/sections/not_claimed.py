"""What the report does not say."""

from tasks.process import wording
from tasks.reporting.blocks import Block, Items
from tasks.reporting.results import Results

TITLE = "What is not claimed"


def make_blocks(results: Results) -> list[Block]:
    """Return what does not follow from the figures, one sentence each."""
    return [Items(tell(results))]


def tell(results: Results) -> list[str]:
    """Return the sentences."""
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
        notes.append(f"Not checked: {wording.join_names(unchecked)}.")
    if unproven := [cell.cell for cell in results.answers if cell.standing.state == "unproven"]:
        notes.append(
            f"The speedup of {wording.join_names(unproven)} is not proven, since gates were not checked; neither is "
            "what follows from it."
        )
    if all(cell.device == "cpu" for cell in results.cells):
        notes.append("Ranks shared the cores, caches and memory of one CPU; this says nothing about GPUs.")
    return notes
