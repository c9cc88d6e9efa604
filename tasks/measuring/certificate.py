"""The equivalence certificate of a cell: a few updates of its real ranks against those of one process.

The ranks are started by the cell's launcher and run the training as it is, on a sample of the first range. One process
then computes the same updates on its own (tasks/reference/update.py), in the order in which the ranks add their
gradients up, and in a few other orders, whose spread is what re-ordering alone makes: the noise floor. A right trainer
stays within a few times the floor, a wrong one does not: in fp32 they are five orders of magnitude apart.
"""

import gc
import importlib
import importlib.util
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.launchers import Nodes
from tasks.measuring.differences import EXCHANGE_EPS, FP32_EPS, Difference, difference, tolerance
from tasks.stage.failure import DataError, DistributedError, PreemptedError
from tasks.stage.progress import counting
from tasks.stage.ranks import run_ranks
from training.config import GRADIENT_FILE, read_config

if TYPE_CHECKING:  # torch takes seconds to import, which a stage that finds every certificate made does not need
    from torch import Tensor

    from tasks.reference.update import Updated

_log = logging.getLogger(__name__)

_LARGEST_GRADIENT_TOLERANCE = {"none": 1e-3, "bf16": 2e-2, "fp16": 2e-2}
"""By the dtype of the exchange, none: fp32; the mildest wrong gradient that was tried was 4.5e-2 off."""
_LARGEST_WEIGHTS_TOLERANCE = 0.1
"""Above these the noise hides what a wrong trainer does: the certificate then says `not checked`.

The gradient's is relative to the gradient, the weights' to what the updates changed in them.
"""
NUM_ORDERS = 2
"""Other orders in which one process adds the gradients up, for the noise floor."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A cell to be certified."""

    config: dict[str, Any]
    """What its ranks are told (training/config.py); its one segment is the sample."""
    launcher: str
    """Who starts them."""
    nodes: Nodes | None = None
    """The machines that they are on, if several."""
    num_steps: int
    """Optimizer steps of the sample."""
    stop: threading.Event
    """Set once the stage is asked to stop."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What the ranks did."""

    gradient: dict[str, "Tensor"]
    gradient_step: int
    checksums: list[str]
    """sha256 of every rank's gradient."""
    weights: dict[str, "Tensor"] | None
    """None if the ranks refused to go on."""
    refusal: str | None
    """Why they did."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What was found, for one kind of tensor."""

    found: Difference
    """The ranks against one process that adds in the ranks' order."""
    noise_floor: Difference
    """The largest of the other orders against that same process."""
    tolerance: float
    """Largest relative L2 difference allowed."""
    relative_change: float | None = None
    """Weights: L2 norm of what the updates changed / L2 norm of the weights."""


def certified_as(config: dict[str, Any]) -> dict[str, Any]:
    """Return what the ranks are told for the certificate: in fp32 where 16 bit would compare kernels, not updates.

    Compiled layers, and packed rows on a GPU, run in other kernels than those of the one process. In 16 bit these round
    otherwise by far more than re-ordering sums makes; in fp32 they do not.
    """
    has_kernels_of_its_own = config["compile"] or (config["packing"] and config["device"] == "cuda")
    return {**config, "precision": "fp32"} if has_kernels_of_its_own else config


def certify(subject: Subject) -> dict[str, Any]:
    """Run the ranks and the one process, and return the cell's certificate.

    Raises the StageError of ranks that ended for another reason than a difference between them.
    """
    started = time.perf_counter()
    config = subject.config
    facts = {key: config[key] for key in ("cell", "strategy", "world_size", "device", "precision")}
    facts |= {"num_steps": subject.num_steps, "exact": bool(config.get("exact"))}
    if importlib.util.find_spec(f"tasks.reference.{config['workload']}") is None:
        why = f"the workload {config['workload']} has no second computation (tasks/reference/{config['workload']}.py)"
        return {**facts, "verdict": "not checked", "problem": why, "seconds": time.perf_counter() - started}
    total = subject.num_steps * (2 + NUM_ORDERS)
    with (
        counting(f"equivalence of {config['cell']}, steps", total) as advance,
        ThreadPoolExecutor(max_workers=1) as thread,
    ):
        # Seconds of imports, while the launcher takes seconds as well.
        thread.submit(importlib.import_module, f"tasks.reference.{config['workload']}")
        observed = _run_ranks(subject, advance)
        expected, others, base = _compute(subject, advance)
    rounding = EXCHANGE_EPS[_exchanged_as(config)]
    gradient, weights, problem = _compare(observed, expected, others, base, rounding)
    compared = {"gradient": gradient, "weights": weights}
    verdict, problem = _judge(compared, problem, _LARGEST_GRADIENT_TOLERANCE[_exchanged_as(config)])
    certificate = {
        **facts,
        "gradient_step": observed.gradient_step,
        **{name: part.found.as_json() if part else None for name, part in compared.items()},
        "noise_floor": {name: part.noise_floor.as_json() if part else None for name, part in compared.items()},
        "tolerance": {name: part.tolerance if part else None for name, part in compared.items()},
        "relative_change_of_weights": weights.relative_change if weights else None,
        "verdict": verdict,
        "problem": problem,
        "seconds": time.perf_counter() - started,
    }
    _log.info("%s: update equivalence %s%s", config["cell"], verdict, f": {problem}" if problem else "")
    return certificate


def _run_ranks(subject: Subject, advance: Callable[[int], None]) -> Observed:
    """Have the ranks train on the sample; return what they left behind."""
    last: dict[str, Any] = {}

    def follow(events: list[dict[str, Any]]) -> None:
        last.update(events[-1] if events else {})
        advance(sum(event["event"] == "step" for event in events))

    work, refusal = Path(subject.config["work_dir"]), None
    try:
        run_ranks(
            subject.config, launcher=subject.launcher, nodes=subject.nodes, follow=follow, stop=subject.stop,
            arguments=["--keep-gradient"],
        )  # fmt: skip
    except PreemptedError:
        raise _stopped() from None
    except DistributedError:
        # Ranks that found themselves apart are no broken machine: they are what the certificate is about.
        if last.get("error") != "RanksDisagreeError" or not (work / GRADIENT_FILE).exists():
            raise
        refusal = last["reason"]
    from training.weights import load_tensors

    kept = load_tensors(work / GRADIENT_FILE)
    files = sorted(work.glob(f"segments/*/{subject.config['model_name']}_*.pt"))
    return Observed(
        gradient=kept["gradient"],
        gradient_step=kept["step"],
        checksums=kept["checksums"],
        weights=None if refusal else load_tensors(files[0]),
        refusal=refusal,
    )


def _compute(
    subject: Subject, advance: Callable[[int], None]
) -> tuple["Updated", list["Updated"], dict[str, "Tensor"]]:
    """Return the updates of one process in the ranks' order, in other orders, and the weights before them."""
    import torch

    from tasks.reference.update import OneProcess, as_ranks, other_orders

    config = read_config(Path(subject.config["work_dir"]) / "config.json")

    def on_step() -> None:
        advance(1)
        if subject.stop.is_set():
            raise _stopped()

    process = OneProcess(config)
    expected = process.update(as_ranks(config), on_step=on_step)
    others = [process.update(order, on_step=on_step) for order in other_orders(config)]
    assert len(others) == NUM_ORDERS
    start_weights = process.start_weights
    if config.device == "cuda":
        # This process goes on to measure, beside ranks that need the memory.
        del process
        gc.collect()
        torch.cuda.empty_cache()
    return expected, others, start_weights


def _stopped() -> PreemptedError:
    return PreemptedError("measuring was stopped; cells that are certified are kept, the next run does the others")


def _compare(
    observed: Observed, expected: "Updated", others: list["Updated"], base: dict[str, "Tensor"], rounding: float
) -> tuple[Compared | None, Compared | None, str | None]:
    """Return the comparison of gradient and weights, and what made one impossible."""
    if {expected.gradient_step, *(other.gradient_step for other in others)} != {observed.gradient_step}:
        steps = [expected.gradient_step, *(other.gradient_step for other in others)]
        first = f"the first finite gradient is that of step {observed.gradient_step} on the ranks"
        return None, None, f"{first}, of step {', '.join(map(str, steps))} in one process"
    gradient = weights = None
    problem = observed.refusal
    if problem is None and len(set(observed.checksums)) > 1:
        different = len(set(observed.checksums))
        problem = f"the reduced gradient is not the same on all ranks: {different} different checksums"
    try:
        gradient = _compared(observed.gradient, expected.gradient, [other.gradient for other in others], rounding)
        if observed.weights is not None:
            change = difference(base, expected.weights).relative_l2
            # An update moves a weight by no more than it changes it.
            others_weights = [other.weights for other in others]
            of_weights = max(FP32_EPS, rounding * change)
            weights = _compared(observed.weights, expected.weights, others_weights, of_weights, change)
    except ValueError as error:
        problem = f"what the ranks left is not of this model: {error}"
    return gradient, weights, problem


def _compared(
    found: dict[str, "Tensor"],
    expected: dict[str, "Tensor"],
    others: list[dict[str, "Tensor"]],
    rounding: float,
    relative_change: float | None = None,
) -> Compared:
    floor = max((difference(other, expected) for other in others), key=lambda one: one.relative_l2)
    return Compared(
        found=difference(found, expected),
        noise_floor=floor,
        tolerance=tolerance(floor.relative_l2, rounding),
        relative_change=relative_change,
    )


def _exchanged_as(config: dict[str, Any]) -> str:
    return str(config["options"].get("gradient_hook", "none"))


def _judge(
    compared: dict[str, Compared | None], problem: str | None, largest_gradient_tolerance: float
) -> tuple[str, str | None]:
    """Return the verdict and, unless it is `passed`, the reason in plain words."""
    problems = [problem] if problem else []
    for name, part in compared.items():
        if part and not part.found.relative_l2 <= part.tolerance:
            problems.append(
                f"the {name} differ{'s' if name == 'gradient' else ''} by {part.found.relative_l2:.1e} (relative L2), "
                f"{part.tolerance:.1e} allowed, most in {part.found.largest_in}"
            )
    if problems:
        return "failed", "; ".join(problems)
    gradient, weights = compared["gradient"], compared["weights"]
    if gradient is None or weights is None:
        raise DataError("the ranks left neither a problem nor all that is compared; run again")
    if gradient.tolerance > largest_gradient_tolerance:
        return "not checked", (
            f"re-ordering alone changes the gradient by {gradient.noise_floor.relative_l2:.1e}: too much to tell a "
            "wrong one by"
        )
    if weights.relative_change and weights.tolerance > _LARGEST_WEIGHTS_TOLERANCE * weights.relative_change:
        return "not checked", (
            f"re-ordering alone changes the weights by {weights.noise_floor.relative_l2:.1e}, the updates by "
            f"{weights.relative_change:.1e}: too little between them to tell a wrong trainer by"
        )
    return "passed", None
