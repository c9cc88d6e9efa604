"""Cells that are another training: nothing but what they say of it may differ, and every seed has to be trained right.

Such a cell is another training, and is judged by its time to quality; what asks for the same work says so and no more.
"""

from collections.abc import Callable

from tasks.gates.asked_for import check_steps
from tasks.gates.clock import check_clock
from tasks.gates.comparability import check_equal_tokens, check_every_sample_once
from tasks.gates.correctness import check_same_parameters, check_segment_continuity
from tasks.gates.heldout import check_evaluated_weights
from tasks.gates.setting import find_seed_problems, find_setting_problems
from tasks.gates.synchronisation import check_synchronisation
from tasks.process import wording
from tasks.records.gate import Finding, make_finding, make_unchecked_finding
from tasks.records.outputs import Outputs

_CHECKS_OF_A_SEED: tuple[Callable[[Outputs, str], Finding | None], ...] = (
    check_segment_continuity, check_same_parameters, check_synchronisation, check_steps, check_every_sample_once,
    check_equal_tokens, check_evaluated_weights, check_clock,
)  # fmt: skip
"""Its seconds and tokens are what the time to quality is of, as those of the first training are."""


def is_other_training(outputs: Outputs, cell: str) -> bool:
    """Return whether the cell says of itself that its batch is another than the baseline's, or how it trains."""
    return cell in outputs.params.other_trainings


def make_inapplicable_finding(outputs: Outputs, cell: str) -> Finding:
    """Return what a gate about the same work says of such a cell."""
    other = outputs.params.cells[cell].other_training
    how = "" if other is None else f", which {other.how}: it is judged by its time to quality"
    return Finding("does not apply", f"{cell}: does not apply, this cell is another training{how}")


def check_only_that_differs(outputs: Outputs, cell: str) -> Finding | None:
    """Check that such a cell has the baseline's start weights, code, machine and settings, and its own batch."""
    if not is_other_training(outputs, cell):
        return None
    own, asked = outputs.runs[cell].facts, outputs.params.train_of(cell)
    expected = {
        "base_model_digest": outputs.base_model.digest,
        "code_digest": outputs.baseline.facts.code_digest,
        "machine_digest": outputs.machine.digest,
        "global_batch_size": asked.global_batch_size,
    }
    problems = [
        f"{cell}: {name.replace('_', ' ')} {str(getattr(own, name))[:12]}, expected {str(value)[:12]}"
        for name, value in expected.items()
        if getattr(own, name) != value
    ]
    problems += find_setting_problems(outputs, cell)
    first, other = outputs.params.train, outputs.params.cells[cell].other_training
    told = [] if other is None else [f"it {other.how}"]
    if asked.global_batch_size != first.global_batch_size:
        told.append(f"{asked.global_batch_size} samples per step instead of {first.global_batch_size}")
        told.append(f"learning rate {asked.learning_rate:.3g} instead of {first.learning_rate:.3g}")
    if (asked.adam_beta1, asked.adam_beta2) != (first.adam_beta1, first.adam_beta2):
        told.append(
            f"betas {asked.adam_beta1:.3g} and {asked.adam_beta2:.3g} instead of {first.adam_beta1:.3g} and "
            f"{first.adam_beta2:.3g}"
        )
    if asked.epochs != first.epochs:
        told.append(f"{asked.epochs} passes over each range instead of {first.epochs}")
    return make_finding(
        problems,
        otherwise=f"{cell}: {', '.join(told)}; start weights, code, machine and every other setting as in the baseline",
        numbers={"global_batch_size": asked.global_batch_size, "learning_rate": asked.learning_rate},
    )


def check_seeds(outputs: Outputs, cell: str) -> Finding | None:
    """Check of the cell's trainings from other seeds what is checked of the first; nothing where there are none."""
    if not outputs.seeds:
        return None
    problems, gaps = list[str](), list[str]()
    for seed in outputs.seeds:
        where, view = f"{cell} from seed {seed}", outputs.alone(cell, seed=seed)
        found = [one for check in _CHECKS_OF_A_SEED if (one := check(view, cell)) is not None]
        problems += [f"{where}: {problem}" for problem in _find_other_facts(outputs, cell, seed)]
        problems += [f"{where}: {one.compared}" for one in found if one.verdict == "failed"]
        problems += [f"{where}: {problem}" for problem in find_seed_problems(outputs, cell, seed=seed)]
        gaps += [f"{where}: {one.compared}" for one in found if one.verdict == "not checked"]
    if gaps and not problems:
        return make_unchecked_finding("; ".join(gaps))
    seeds = wording.join_names([str(seed) for seed in outputs.seeds])
    return make_finding(
        problems,
        otherwise=f"{cell}: trained from seed {seeds} too, each time from the base model, on every row once per epoch, "
        "in the order of its seed, as the first was, with a clock that ran for its steps alone",
        numbers={"seeds": len(outputs.seeds)},
    )


def _find_other_facts(outputs: Outputs, cell: str, seed: int) -> list[str]:
    """Return what is said of the training from that seed and is otherwise than of the first, or than was asked for."""
    facts, first = outputs.seeds[seed][cell].facts, outputs.runs[cell].facts
    problems = [
        f"{name.replace('_', ' ')} is not that of the cell's first training"
        for name in ("base_model_digest", "code_digest", "machine_digest")
        if getattr(facts, name) != getattr(first, name)
    ]
    if facts.train != outputs.params.train_of(cell, seed=seed).model_dump(mode="json"):
        problems.append("trained with other settings than params.yaml asks for")
    return problems
