"""All gates of a comparison, in the order in which the report answers: correct? comparable?

A check judges one cell: `check(outputs, cell)` returns its finding, or None where it says nothing about that cell, as
one that compares with the baseline says nothing about the baseline. What follows for a cell's speedup is its standing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Literal

from tasks.gates import (
    asked_for,
    blocks_and_training,
    clock,
    comparability,
    correctness,
    equivalence,
    heldout,
    loss_curves,
    own_device,
    quiet_turns,
    rows_of_blocks,
    synchronisation,
    work_of_blocks,
)
from tasks.records.gate import CellFinding, Finding, Gate, Standing
from tasks.records.outputs import Outputs

_CHECKS: list[tuple[str, str, Callable[[Outputs, str], Finding | None]]] = [
    (
        "Update equivalence",
        "Does an update of N ranks equal that of one process?",
        equivalence.check_update_equivalence,
    ),
    (
        "Gradients were synchronised",
        "Did the ranks exchange the whole gradient exactly once per optimizer step?",
        synchronisation.check_synchronisation,
    ),
    (
        "Same parameters on all ranks",
        "Do all ranks of a cell hold the same weights, and the same state of the optimizer?",
        correctness.check_same_parameters,
    ),
    (
        "No break between segments",
        "Did all cells start from the same weights, and each segment from those the one before ended with?",
        correctness.check_segment_continuity,
    ),
    (
        "Starts from the base model",
        "Is the loss of the first step the base model's own on the same rows?",
        correctness.check_base_model_start,
    ),
    (
        "Loss curves coincide",
        "Does every cell's loss follow the baseline's, step by step?",
        loss_curves.check_loss_curves,
    ),
    (
        "Evaluated what was trained",
        "Are the weights that were evaluated the very ones that the ranks ended with?",
        heldout.check_evaluated_weights,
    ),
    (
        "Steps are those asked for",
        "Did each step learn from the rows, and at the rate, that params.yaml asks for?",
        asked_for.check_steps,
    ),
    (
        "Same work in every cell",
        "Do all cells share start weights, code, machine, global batch and learning-rate policy?",
        comparability.check_same_setting,
    ),
    (
        "Same rows in the same steps",
        "Did each optimizer step learn from the same rows in every cell?",
        comparability.check_rows_per_step,
    ),
    (
        "Every sample exactly once",
        "Was each row of each range learned from once per epoch, none left out, none twice?",
        comparability.check_every_sample_once,
    ),
    (
        "Held-out rows were held out",
        "Is no row that was learned from among those that the loss is looked at on afterwards?",
        heldout.check_heldout_rows,
    ),
    (
        "Equal tokens",
        "Did every cell learn from as many tokens as the ranges hold?",
        comparability.check_equal_tokens,
    ),
    (
        "Not data-bound",
        "Did the ranks compute, rather than wait for data?",
        comparability.check_data_wait,
    ),
    (
        "Only steps were timed",
        "Did the clock run for the optimizer steps, and for nothing else?",
        clock.check_clock,
    ),
    (
        "Every rank has a device of its own",
        "Are there as many GPUs (or CPU cores) as the ranks need?",
        own_device.check_own_device,
    ),
    (
        "Speedup is plausible",
        "Is no cell faster than its number of ranks can make it?",
        comparability.check_plausible_speedup,
    ),
]

_CHECKS_OF_BLOCKS: list[tuple[str, str, Callable[[Outputs, str], Finding | None]]] = [
    (
        "Quiet enough to tell",
        "Were there turns enough in which nobody else used the machine?",
        quiet_turns.check_quiet_turns,
    ),
    (
        "Timed blocks did the work",
        "Did every timed block learn from the training's rows, with its loss, gradient and exchanges?",
        work_of_blocks.check_block_work,
    ),
    (
        "Timed rows are typical",
        "Do the timed rows have as many tokens as those of the whole training?",
        rows_of_blocks.check_timed_rows,
    ),
    (
        "Training bears out the blocks",
        "Do the blocks give the published speedup, and does the whole training bear it out?",
        blocks_and_training.check_blocks_against_training,
    ),
]
"""Where the speedup was measured in blocks."""
_PROOFS = ("Update equivalence", "Gradients were synchronised", "Same parameters on all ranks")
"""Gates without which the training of a cell with several ranks is not shown to be that of one."""
_SPARE_THROUGHPUT = {
    "Loss curves coincide",
    "Evaluated what was trained",
    "Steps are those asked for",
    "Same rows in the same steps",
    "Every sample exactly once",
    "Held-out rows were held out",
    "Equal tokens",
    "Speedup is plausible",
}
"""Gates that may fail while tokens per second can still be compared, so that a figure per unit of work is true."""


def check_gates(outputs: Outputs) -> list[Gate]:
    """Return what every gate found of every cell."""
    gates = []
    for name, question, check in _CHECKS + (_CHECKS_OF_BLOCKS if outputs.measurement is not None else []):
        found = {cell: check(outputs, cell) for cell in outputs.runs}
        findings = [CellFinding(cell=cell, **asdict(one)) for cell, one in found.items() if one is not None]
        gates.append(Gate(name=name, question=question, findings=findings))
    return [_drop_untrue_figures(gate, gates, outputs.params.baseline) for gate in gates]


def _drop_untrue_figures(gate: Gate, gates: Sequence[Gate], baseline: str) -> Gate:
    """Return the gate without the figures per unit of work that another gate leaves nothing of."""
    failed = [(one.cell, other.name) for other in gates for one in other.findings if one.verdict == "failed"]
    findings = [
        found
        if {name for cell, name in failed if cell in (baseline, found.cell)} <= _SPARE_THROUGHPUT
        else found.model_copy(update={"true_figure": None})
        for found in gate.findings
    ]
    return gate.model_copy(update={"findings": findings})


def compute_standings(gates: Sequence[Gate], world_sizes: Mapping[str, int]) -> dict[str, Standing]:
    """Return cell -> what the gates leave of its speedup; `world_sizes` has all cells, the baseline first."""
    return {cell: _compute_standing(gates, world_sizes, cell) for cell in world_sizes}


def _compute_standing(gates: Sequence[Gate], world_sizes: Mapping[str, int], cell: str) -> Standing:
    concerned = list(dict.fromkeys((cell, next(iter(world_sizes)))))
    found = {(gate.name, at): one for at in concerned for gate in gates if (one := gate.find_cell_finding(at))}
    failed = [key for key, one in found.items() if one.verdict == "failed"]
    if failed:
        return _make_standing("withheld", failed, found)
    needed = [(name, at) for at in concerned if world_sizes[at] > 1 for name in _PROOFS]
    unchecked = [key for key in needed if key not in found or found[key].verdict != "passed"]
    return _make_standing("unproven", unchecked, found) if unchecked else Standing(state="proven")


def _make_standing(
    state: Literal["unproven", "withheld"],
    keys: Sequence[tuple[str, str]],
    found: Mapping[tuple[str, str], CellFinding],
) -> Standing:
    """Return the standing that these findings lead to, with the words of the one that needs the fewest."""
    words = {key: found[key].compared if key in found else f"{key[1]}: nothing was found" for key in keys}
    first, *others = sorted(words, key=lambda key: len(words[key]))
    names = dict.fromkeys([first[0], *(name for name, _ in others)])
    return Standing(state=state, gates=list(names), reason=words[first])
