"""All gates of a comparison, in the order in which the report answers: correct? comparable?"""

from collections.abc import Callable

from tasks.reporting import clock, comparability, correctness, equivalence, synchronisation
from tasks.reporting.gate import Finding, Gate
from tasks.reporting.outputs import Outputs

_CHECKS: list[tuple[str, str, Callable[[Outputs], Finding]]] = [
    (
        "Update equivalence",
        "Does an update of N ranks equal that of one process?",
        equivalence.update_equivalence,
    ),
    (
        "Gradients were synchronised",
        "Did the ranks exchange the whole gradient exactly once per optimizer step?",
        synchronisation.gradients_synchronised,
    ),
    (
        "Same parameters on all ranks",
        "Do all ranks of a cell hold the same weights?",
        correctness.same_parameters,
    ),
    (
        "No break between segments",
        "Did all cells start from the same weights, and each segment from those the one before ended with?",
        correctness.segments_continue,
    ),
    (
        "Starts from the base model",
        "Is the loss of the first step the base model's own on the same rows?",
        correctness.starts_from_base_model,
    ),
    (
        "Loss curves coincide",
        "Does every cell's loss follow the baseline's, step by step?",
        correctness.loss_curves_coincide,
    ),
    (
        "Same work in every cell",
        "Do all cells share start weights, code, machine, global batch and learning-rate policy?",
        comparability.same_setting,
    ),
    (
        "Same rows in the same steps",
        "Did each optimizer step learn from the same rows in every cell?",
        comparability.same_rows_per_step,
    ),
    (
        "Every sample exactly once",
        "Was each row of each range learned from once per epoch, none left out, none twice?",
        comparability.every_sample_once,
    ),
    (
        "Equal tokens",
        "Did every cell learn from as many tokens as the ranges hold?",
        comparability.equal_tokens,
    ),
    (
        "Not data-bound",
        "Did the ranks compute, rather than wait for data?",
        comparability.not_data_bound,
    ),
    (
        "Only steps were timed",
        "Did the clock run for the optimizer steps, and for nothing else?",
        clock.only_steps_timed,
    ),
    (
        "Every rank has a device of its own",
        "Are there as many GPUs (or CPU cores) as the ranks need?",
        comparability.own_device,
    ),
    (
        "Speedup is plausible",
        "Is no cell faster than its number of ranks can make it?",
        comparability.speedup_is_plausible,
    ),
]

_SPARE_THROUGHPUT = {
    "Loss curves coincide",
    "Same rows in the same steps",
    "Every sample exactly once",
    "Equal tokens",
    "Speedup is plausible",
}
"""Gates that may fail while tokens per second can still be compared, so that a figure per unit of work is true."""


def check_gates(outputs: Outputs) -> list[Gate]:
    """Return the verdict of every gate."""
    gates = []
    for name, question, check in _CHECKS:
        found = check(outputs)
        gates.append(
            Gate(
                name=name,
                question=question,
                verdict=found.verdict,
                compared=found.compared,
                numbers=dict(found.numbers),
                true_figure=found.true_figure,
            )
        )
    failed = {gate.name for gate in gates if gate.verdict == "failed"}
    if failed <= _SPARE_THROUGHPUT:
        return gates
    return [gate.model_copy(update={"true_figure": None}) for gate in gates]
