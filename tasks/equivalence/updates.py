"""The updates that a cell's ranks made, each against that of one process from the same weights, moments and scale."""

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import strategies
from tasks.equivalence.differences import (
    EXCHANGE_EPS,
    compute_difference,
    compute_tolerance,
    compute_update_rounding,
    compute_update_tolerance,
)
from tasks.process.failure import DataError, OutOfMemoryError, PreemptedError
from tasks.records.compared_update import Compared, Update
from training.config import UPDATES_FOLDER, TrainingConfig

if TYPE_CHECKING:  # torch takes seconds to import, pydantic is not there where one GPU is measured
    from torch import Tensor

    from tasks.equivalence.reference.update import OneProcess
    from tasks.records.gate import Verdict

_LARGEST_GRADIENT_TOLERANCE = {"none": 1e-3, "bf16": 2e-2, "fp16": 2e-2}
"""By the dtype of the exchange, none: fp32; the mildest wrong gradient that was tried was 4.5e-2 off."""
LARGEST_WEIGHTS_TOLERANCE = 0.1
"""Above these the noise hides what a wrong trainer does: the certificate then says `not checked`.

The gradient's is relative to the gradient, the weights' to what the update changed in them, and has to be kept to in
one update at least: in the first ones of a warm-up the changes are next to nothing.
"""
NUM_ORDERS = 2
"""Other orders in which one process adds the gradients up, for the noise floor."""


def compare_with_one_process(
    config: TrainingConfig, *, on_update: Callable[[], None]
) -> tuple[list[Update], list[str]]:
    """Return what was found of each update that the ranks left in their work folder, and what is wrong beside that."""
    import torch

    from tasks.equivalence.reference.update import OneProcess

    process = OneProcess(config)
    try:
        return _compare_updates(config, process, on_update)
    except (PreemptedError, OutOfMemoryError):
        # Nothing is wrong with what the ranks left.
        raise
    except ValueError as error:
        return [], [f"what the ranks left is not of this model: {error}"]
    finally:
        if config.device == "cuda":
            # The stage goes on to measure, beside ranks that need the memory.
            del process
            gc.collect()
            torch.cuda.empty_cache()


def _compare_updates(
    config: TrainingConfig, process: "OneProcess", on_update: Callable[[], None]
) -> tuple[list[Update], list[str]]:
    from training.model.weights import load_tensors

    files = list_kept_updates(config.work_dir)
    ends = sorted(config.work_dir.glob(f"segments/*/{config.model_name}_*.pt"))
    updates: list[Update] = []
    problems: list[str] = []
    if ends and len(files) != process.num_steps:
        problems.append(f"the ranks made {len(files)} updates, one process {process.num_steps}")
    if ends and (changed := process.list_changed(ends[0])):
        problems.append(f"weights that the adapter leaves alone are not the base model's: {', '.join(changed[:3])}")
    before = {name: process.start_weights[name] for name in process.statistic_names}
    states = _load_states(files, ends[0] if ends else None, has_adapter=bool(config.adapter))
    for number, (kept, after) in zip(range(1, process.num_steps + 1), states, strict=False):
        # The forwards of an update come before it is kept, and running statistics are theirs.
        left = {name: kept["weights"][name] for name in before}
        begin = {**kept["weights"], **before}
        if number == 1 and not compute_difference(begin, process.start_weights).is_bitwise_equal:
            problems.append("the ranks begin with other weights than the base model's")
        problems += _list_disagreements(kept, number)
        process.begin_at(begin)
        gradient, statistics, problem = _compare_gradient(config, process, kept["gradient"], number, left, before)
        before = left
        process.apply(kept["gradient"], number)
        # Where no update is made, the weights have to be those from before it.
        weights = _compare_weights(after, process.weights, kept["weights"]) if after else None
        if problem is None and gradient is None and weights is not None and not weights.found.is_bitwise_equal:
            problem = f"update {number}: the gradient is not finite, and yet the weights changed"
        problems += [problem] if problem else []
        updates.append(
            Update(step=number, gradient=gradient, weights=weights if gradient else None, statistics=statistics)
        )
        on_update()
    if ends and before and not compute_difference(load_tensors(ends[0]), before).is_bitwise_equal:
        problems.append("the checkpoint has other running statistics than the last update left")
    return updates, problems


def _load_states(
    files: Sequence[Path], end: Path | None, *, has_adapter: bool
) -> Iterator[tuple[dict[str, Any], dict[str, "Tensor"] | None]]:
    """Yield what each update began with, and the weights after it; None where the ranks left none."""
    from tasks.equivalence.reference.adapter import load_trained
    from training.model.weights import load_tensors

    kept = load_tensors(files[0])
    for file in files[1:]:
        following = load_tensors(file)
        yield kept, following["weights"]
        kept = following
    yield kept, load_trained(end, has_adapter=has_adapter) if end else None


def _list_disagreements(kept: dict[str, Any], number: int) -> list[str]:
    """Return what is not the same on all ranks."""
    names = {"weight_checksums": "the weights before it are", "gradient_checksums": "the reduced gradient is"}
    return [
        f"update {number}: {words} not the same on all ranks: {len(set(kept[name]))} different checksums"
        for name, words in names.items()
        if len(set(kept[name])) > 1
    ]


def _compare_gradient(
    config: TrainingConfig,
    process: "OneProcess",
    found: dict[str, "Tensor"],
    number: int,
    left: dict[str, "Tensor"],
    before: dict[str, "Tensor"],
) -> tuple[Compared | None, Compared | None, str | None]:
    """Return the ranks' gradient, and the running statistics that they `left`, against the one process's.

    Both at the same weights; the statistics began as `before`. The last is why there is no such comparison.
    """
    from tasks.equivalence.orders import make_other_orders, make_rank_order
    from tasks.equivalence.reference.update import is_all_finite

    orders = make_other_orders(config)
    assert len(orders) == NUM_ORDERS
    computed = process.gradient(number, make_rank_order(config), *orders)
    expected, *others = ({name: part.cpu() for name, part in one.items()} for one in computed.by_order)
    statistics = _compare_statistics(left, computed.statistics_by_order, before)
    finite = {"the ranks": is_all_finite(found), "one process": is_all_finite(expected)}
    if not all(finite.values()):
        where = " and ".join(name for name, is_finite in finite.items() if not is_finite)
        problem = f"update {number}: the gradient is not finite in {where} alone" if any(finite.values()) else None
        return None, statistics, problem
    floor = max(compute_difference(other, expected).relative_l2 for other in others)
    rounding = EXCHANGE_EPS[get_exchange_dtype(config)]
    gradient = Compared(
        found=compute_difference(found, expected), noise_floor=floor, tolerance=compute_tolerance(floor, rounding)
    )
    return gradient, statistics, None


def _compare_statistics(
    found: dict[str, "Tensor"], computed: Sequence[dict[str, "Tensor"]], before: dict[str, "Tensor"]
) -> Compared | None:
    """Return the running statistics against the expected ones, the first; relative to what the step changed in them."""
    expected, *others = computed
    if not expected:
        return None
    floor = max(compute_difference(other, expected, since=before).relative_l2 for other in others)
    floor = max(floor, compute_update_rounding(expected, since=before))
    difference = compute_difference(found, expected, since=before)
    return Compared(found=difference, noise_floor=floor, tolerance=compute_tolerance(floor))


def _compare_weights(
    found: dict[str, "Tensor"], expected: dict[str, "Tensor"], before: dict[str, "Tensor"]
) -> Compared:
    expected = {name: part.cpu() for name, part in expected.items()}
    found_difference = compute_difference(found, expected, since=before)
    floor = compute_update_rounding(expected, since=before)
    return Compared(found=found_difference, noise_floor=floor, tolerance=compute_update_tolerance(floor))


def list_kept_updates(work: Path) -> list[Path]:
    """Return the files of what each update of the ranks began with, in their order."""
    return sorted((work / UPDATES_FOLDER).glob("step-*.pt"))


def get_exchange_dtype(config: TrainingConfig) -> str:
    """Return the dtype in which gradients are exchanged; none: fp32."""
    return strategies.get_exchange_dtype(config.strategy, config.options)


def judge(
    updates: list[Update], problems: list[str], *, exchange: str = "none", packed: Compared | None = None
) -> "tuple[Verdict, str | None]":
    """Return the verdict and, unless it is `passed`, the reason in plain words.

    `packed`: what the training's kernels make of packed rows, where the updates were made in others.
    """
    problems = list(problems)
    if packed is not None and not packed.excess <= 1:
        problems.append(
            f"packed rows have another gradient than the same rows unpacked, in the precision of the training: "
            f"{packed.found.relative_l2:.1e} apart (relative L2), {packed.tolerance:.1e} allowed, most in "
            f"{packed.found.largest_in}"
        )
    for kind in ("gradient", "weights", "statistics"):
        wrong = [(part, one.step) for one in updates if (part := getattr(one, kind)) and not part.excess <= 1]
        if wrong:
            part, step = max(wrong, key=lambda each: each[0].excess)
            more = f"; so {'does' if len(wrong) == 2 else 'do'} {len(wrong) - 1} more" if len(wrong) > 1 else ""
            problems.append(
                f"update {step}: the {kind} differ{'s' if kind == 'gradient' else ''} by {part.found.relative_l2:.1e} "
                f"(relative L2), {part.tolerance:.1e} allowed, most in {part.found.largest_in}{more}"
            )
    if problems:
        return "failed", "; ".join(problems)
    gradients = [part for one in updates if (part := one.gradient)]
    weights = [part for one in updates if (part := one.weights)]
    if updates and not gradients:
        return "not checked", f"the gradient was finite in none of the {len(updates)} updates"
    if not gradients or not weights:
        raise DataError("the ranks left neither a problem nor all that is compared; run again")
    noisiest = max(gradients, key=lambda part: part.tolerance)
    if noisiest.tolerance > _LARGEST_GRADIENT_TOLERANCE[exchange]:
        return "not checked", (
            f"re-ordering alone changes the gradient of an update by {noisiest.noise_floor:.1e}: too much to tell a "
            "wrong one by"
        )
    clearest = min(weights, key=lambda part: part.tolerance)
    if clearest.tolerance > LARGEST_WEIGHTS_TOLERANCE:
        return "not checked", (
            f"rounding the weights is {clearest.noise_floor:.1e} of what an update changes in them: too much to tell a "
            "wrong one by"
        )
    return "passed", None
