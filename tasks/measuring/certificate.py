"""The equivalence certificate of a cell: a few updates of its real ranks against those of one process.

The ranks are started by the cell's launcher and run the training as it is, on a sample of the first range, and leave
what each update began with. One process then makes each update once more (tasks/reference/update.py), from the ranks'
own weights, so that what rounding grows into over several updates is in none of them. Of an update two things are
compared. The reduced gradient: against the one process's in the ranks' order, with the differences that other orders
make as the noise floor. And what the update made of the weights: against what the one process makes of them with the
ranks' gradient, its own clipping, and moments that it has kept itself since the first update.
"""

import importlib
import importlib.util
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tasks.launchers import Nodes
from tasks.measuring.updates import Compared, Update, exchanged_as, hold_against_one_process, kept_updates
from tasks.stage.failure import DataError, DistributedError, PreemptedError
from tasks.stage.progress import counting
from tasks.stage.ranks import run_ranks
from training.config import read_config

_log = logging.getLogger(__name__)

_LARGEST_GRADIENT_TOLERANCE = {"none": 1e-3, "bf16": 2e-2, "fp16": 2e-2}
"""By the dtype of the exchange, none: fp32; the mildest wrong gradient that was tried was 4.5e-2 off."""
_LARGEST_WEIGHTS_TOLERANCE = 0.1
"""Above these the noise hides what a wrong trainer does: the certificate then says `not checked`.

The gradient's is relative to the gradient, the weights' to what the update changed in them, and has to be kept to in
one update at least: in the first ones of a warm-up the changes are next to nothing.
"""
_SECONDS_TO_WRITE_AN_UPDATE = 300.0
"""While rank 0 writes several GB, the others are silent."""


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
    with (
        counting(f"equivalence of {config['cell']}, updates", 2 * subject.num_steps) as advance,
        ThreadPoolExecutor(max_workers=1) as thread,
    ):
        # Seconds of imports, while the launcher takes seconds as well.
        thread.submit(importlib.import_module, f"tasks.reference.{config['workload']}")
        refusal = _run_ranks(subject, advance)
        told = read_config(Path(config["work_dir"]) / "config.json")
        updates, problems = hold_against_one_process(told, on_update=partial(_go_on, subject, advance))
    verdict, problem = judge(updates, [refusal] if refusal else problems, exchange=exchanged_as(config))
    worst = {kind: _worst(updates, kind) for kind in ("gradient", "weights")}
    certificate = {
        **facts,
        **{kind: part.found.as_json() if part else None for kind, part in worst.items()},
        "noise_floor": {kind: part.noise_floor if part else None for kind, part in worst.items()},
        "tolerance": {kind: part.tolerance if part else None for kind, part in worst.items()},
        "updates": [asdict(update) for update in updates],
        "verdict": verdict,
        "problem": problem,
        "seconds": time.perf_counter() - started,
    }
    _log.info("%s: update equivalence %s%s", config["cell"], verdict, f": {problem}" if problem else "")
    return certificate


def _go_on(subject: Subject, advance: Callable[[int], None]) -> None:
    advance(1)
    if subject.stop.is_set():
        raise stopped()


def _run_ranks(subject: Subject, advance: Callable[[int], None]) -> str | None:
    """Have the ranks train on the sample; return why they refused to go on, if they did."""
    last: dict[str, Any] = {}

    def follow(events: list[dict[str, Any]]) -> None:
        last.update(events[-1] if events else {})
        advance(sum(event["event"] == "step" for event in events))

    try:
        run_ranks(
            subject.config, launcher=subject.launcher, nodes=subject.nodes, follow=follow, stop=subject.stop,
            arguments=["--keep-updates"], watchdog_seconds=_SECONDS_TO_WRITE_AN_UPDATE,
        )  # fmt: skip
    except PreemptedError:
        raise stopped() from None
    except DistributedError:
        # Ranks that found themselves apart are no broken machine: they are what the certificate is about.
        if last.get("error") != "RanksDisagreeError" or not kept_updates(Path(subject.config["work_dir"])):
            raise
        return str(last["reason"])
    return None


def stopped() -> PreemptedError:
    """Return what ends a stage that was asked to stop."""
    return PreemptedError("measuring was stopped; cells that are certified are kept, the next run does the others")


def _worst(updates: list[Update], kind: str) -> Compared | None:
    """Return what was found where the difference is the largest beside what is allowed."""
    parts = [part for update in updates if (part := getattr(update, kind)) is not None]
    telling = [part for part in parts if part.tolerance <= _LARGEST_WEIGHTS_TOLERANCE] or parts
    return max(telling, key=lambda part: part.excess, default=None)


def judge(updates: list[Update], problems: list[str], *, exchange: str = "none") -> tuple[str, str | None]:
    """Return the verdict and, unless it is `passed`, the reason in plain words."""
    problems = list(problems)
    for kind in ("gradient", "weights"):
        wrong = [(part, one.step) for one in updates if (part := getattr(one, kind)) and not part.excess <= 1]
        if wrong:
            part, step = max(wrong, key=lambda each: each[0].excess)
            more = f"; so {'does' if len(wrong) == 2 else 'do'} {len(wrong) - 1} more" if len(wrong) > 1 else ""
            problems.append(
                f"update {step}: the {kind} differ{'s' if kind == 'gradient' else ''} by "
                f"{part.found.relative_l2:.1e} (relative L2), {part.tolerance:.1e} allowed, most in "
                f"{part.found.largest_in}{more}"
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
    if clearest.tolerance > _LARGEST_WEIGHTS_TOLERANCE:
        return "not checked", (
            f"rounding the weights is {clearest.noise_floor:.1e} of what an update changes in them: too much to tell a "
            "wrong one by"
        )
    return "passed", None
