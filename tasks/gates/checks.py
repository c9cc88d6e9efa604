"""All gates of a comparison, each with the function that decides it, in the report's order: correct? comparable?

A check judges one cell: `find(outputs, cell)` returns its finding, or None where it says nothing about that cell, as
one that compares with the baseline says nothing about the baseline. What follows for a cell's speedup is its standing:
withheld by what failed, unproven by what was not checked, whichever gate it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from ddp_audit.process.findings import Finding, make_unchecked_finding
from ddp_audit.process.wording import explain
from tasks.gates import (
    asked_for,
    baseline,
    blocks_and_training,
    clock,
    comparability,
    correctness,
    counted_blocks,
    equivalence,
    heldout,
    own_device,
    synchronisation,
    work_of_blocks,
)
from tasks.records.gate import BORNE_OUT, QUIET_TURNS, CellFinding, Gate, Standing, State
from tasks.records.outputs import Outputs


@dataclass(frozen=True)
class Check:
    """What decides one gate."""

    name: str
    """Of the gate."""
    question: str
    """What it asks."""
    find: Callable[[Outputs, str], Finding | None]
    """Judges a cell."""
    is_required_of_several_ranks: bool = False
    """Whether a cell with several ranks is `not checked`, not left out, where `find` returns None."""

    def judge(self, outputs: Outputs, cell: str) -> Finding | None:
        """Return what is found of the cell; None if the gate says nothing about it."""
        result = self.find(outputs, cell)
        if result is None and self.is_required_of_several_ranks and outputs.runs[cell].facts.world_size > 1:
            return make_unchecked_finding(explain("nothing_found", "{cell}: nothing was found", cell=cell))
        return result


CHECKS = [
    Check(
        "Update equivalence",
        "Are the updates at steps drawn over the training what one process computes?",
        equivalence.check_update_equivalence,
        is_required_of_several_ranks=True,
    ),
    Check(
        "Gradients were synchronised",
        "Did the ranks exchange all that their strategy has to, exactly as often?",
        synchronisation.check_synchronisation,
        is_required_of_several_ranks=True,
    ),
    Check(
        "Same parameters on all ranks",
        "Do all ranks of a cell hold the same weights, and the same state of the optimizer?",
        correctness.check_same_parameters,
        is_required_of_several_ranks=True,
    ),
    Check(
        "No break between segments",
        "Did all cells start from the same weights, and each segment from those the one before ended with?",
        correctness.check_segment_continuity,
    ),
    Check(
        "Starts from the base model",
        "Did the first update begin with the base model, and with its loss on the rows?",
        correctness.check_base_model_start,
    ),
    Check(
        "Loss curves coincide",
        "Does every cell's loss follow the baseline's, coarsely?",
        correctness.check_loss_curves,
    ),
    Check(
        "Evaluated what was trained",
        "Were the weights that the ranks ended with evaluated, on the rows held out?",
        heldout.check_evaluated_weights,
    ),
    Check(
        "Steps are those asked for",
        "Did each step learn from the rows, and at the rate, that params.yaml asks for?",
        asked_for.check_steps,
    ),
    Check(
        "Same work in every cell",
        "Do all cells share start weights, code, machine, global batch and learning-rate policy?",
        comparability.check_same_setting,
    ),
    Check(
        "Same rows in the same steps",
        "Did each optimizer step learn from the same rows in every cell?",
        comparability.check_rows_per_step,
    ),
    Check(
        "Every sample exactly once",
        "Was each row of each range learned from once per epoch, none left out, none twice?",
        comparability.check_every_sample_once,
    ),
    Check(
        "Held-out rows were held out",
        "Were none of the held-out rows trained on?",
        heldout.check_heldout_rows,
    ),
    Check(
        "Equal tokens",
        "Did every cell learn from as many tokens as the ranges hold?",
        comparability.check_equal_tokens,
    ),
    Check(
        "Not data-bound",
        "Did the ranks compute, rather than wait for data?",
        comparability.check_data_wait,
    ),
    Check(
        "Only steps were timed",
        "Did the clock run for the optimizer steps, and for nothing else?",
        clock.check_clock,
    ),
    Check(
        "Every rank has a device of its own",
        "Are there as many GPUs (or CPU cores) as the ranks need?",
        own_device.check_own_device,
    ),
    Check(
        "Speedup is plausible",
        "Is no cell faster than its number of ranks can make it?",
        comparability.check_plausible_speedup,
    ),
]

CHECKS_OF_BLOCKS = [
    Check(
        QUIET_TURNS,
        "Were there turns enough in which nobody else used the machine?",
        counted_blocks.check_quiet_turns,
    ),
    Check(
        "Timed blocks did the work",
        "Did every timed block have the training's rows, loss, gradient, updates and exchanges?",
        work_of_blocks.check_block_work,
    ),
    Check(
        "Baseline is not slowed",
        "Was nothing that does the baseline's work in one process faster?",
        baseline.check_baseline,
    ),
    Check(
        "Timed rows are typical",
        "Do the timed rows have as many tokens as those of the whole training?",
        asked_for.check_timed_rows,
    ),
    Check(
        BORNE_OUT,
        "Do the blocks give the published speedup, and does the whole training bear it out?",
        blocks_and_training.check_blocks_against_training,
    ),
]
"""Where the speedup was measured in blocks."""


def check_gates(outputs: Outputs) -> list[Gate]:
    """Return what every gate found of every cell."""
    gates = []
    for check in CHECKS + (CHECKS_OF_BLOCKS if outputs.measurement is not None else []):
        results = {cell: check.judge(outputs, cell) for cell in outputs.runs}
        findings = [CellFinding(cell=cell, **asdict(result)) for cell, result in results.items() if result is not None]
        gates.append(Gate(name=check.name, question=check.question, findings=findings))
    return gates


def compute_standings(gates: Sequence[Gate], cells: Sequence[str], *, is_measured: bool = True) -> dict[str, Standing]:
    """Return cell -> what the gates leave of its speedup; `cells` has all of them, the baseline first."""
    standings = {}
    for cell in cells:
        results = [
            (gate.name, finding)
            for concerned in dict.fromkeys((cell, cells[0]))
            for gate in gates
            if (finding := gate.find_cell_finding(concerned))
        ]
        standings[cell] = Standing(state="proven" if is_measured else "not measured")
        states: list[tuple[State, str]] = [("withheld", "failed"), ("unproven", "not checked")]
        for state, outcome in states if is_measured else states[:1]:
            if deciding := [pair for pair in results if pair[1].outcome == outcome]:
                # With the words of the one that needs the fewest.
                deciding.sort(key=lambda pair: len(pair[1].compared))
                names = dict.fromkeys(name for name, _ in deciding)
                standings[cell] = Standing(state=state, gates=list(names), reason=deciding[0][1].compared)
                break
    return standings
