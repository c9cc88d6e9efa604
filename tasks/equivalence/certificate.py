"""The equivalence certificate of a cell: a few updates of its real ranks against those of one process.

The ranks are started by the cell's launcher and run the training as it is, on a sample of the first range, and leave
what each update began with. One process then makes each update once more (reference/update.py), from the ranks' own
weights, so that what rounding grows into over several updates is in none of them. Of an update two things are
compared. The reduced gradient: against the one process's in the ranks' order, with the differences that other orders
make as the noise floor. And what the update made of the weights: against what the one process makes of them with the
ranks' gradient, its own clipping, and moments that it has kept itself since the first update.
"""

import dataclasses
import logging
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from tasks.equivalence.packed_kernels import compare_packed_kernels, has_packed_kernels
from tasks.equivalence.reference import find_reference, has_reference
from tasks.equivalence.updates import (
    LARGEST_WEIGHTS_TOLERANCE,
    Compared,
    Update,
    compare_with_one_process,
    get_exchange_dtype,
    judge,
    list_kept_updates,
)
from tasks.process.failure import DistributedError, PreemptedError
from tasks.process.progress import show_progress
from tasks.ranks.cell_ranks import run_ranks
from tasks.ranks.launchers import Nodes
from tasks.ranks.memory import name_out_of_memory, try_within_memory
from tasks.records.certificate import CertifiedFile, OfEach
from tasks.records.run import read_segment
from tasks.strategies import count_shares
from training.config import TrainingConfig

_log = logging.getLogger(__name__)

_TOLD = ("cell", "strategy", "world_size", "global_batch_size", "device", "precision", "exact")
"""What the certificate says of the ranks' config."""
_REPLACED = ("precision", "compile")
"""What the ranks of a certificate may be told otherwise than those of the training: make_certificate_config."""
_SECONDS_TO_WRITE_AN_UPDATE = 300.0
"""While rank 0 writes several GB, the others are silent."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A cell to be certified."""

    config: TrainingConfig
    """What its ranks are told; its one segment is the sample."""
    trained: TrainingConfig
    """What they are told for the training, whose precision the certificate may not have."""
    launcher: str
    """Who starts them."""
    nodes: Nodes | None = None
    """The machines that they are on, if several."""
    num_steps: int
    """Optimizer steps of the sample."""
    stop: threading.Event
    """Set once the stage is asked to stop."""


def make_certificate_config(config: TrainingConfig) -> TrainingConfig:
    """Return what the ranks are told for the certificate: in fp32 where 16 bit would compare kernels, not updates.

    Compiled layers, packed rows on a GPU, and a part of the rows of a batch normalisation, run in other kernels than
    those of the one process. In 16 bit these round otherwise by far more than re-ordering sums makes; in fp32 they do
    not. There packs run document by document, which is not compiled.
    """
    is_packed = bool(config.packing) and config.device == "cuda"
    if config.statistics_rows:
        # One process has the rows of all ranks in one kernel.
        return dataclasses.replace(config, precision="fp32")
    if not is_packed and not config.compile:
        return config
    return dataclasses.replace(config, precision="fp32", compile=config.compile and not is_packed)


def certify(subject: Subject) -> CertifiedFile:
    """Run the ranks and the one process, and return the cell's certificate.

    Raises the StageError of ranks that ended for another reason than a difference between them.
    """
    started = time.perf_counter()
    config = subject.config
    facts = {name: getattr(config, name) for name in _TOLD} | {"num_steps": subject.num_steps}
    if not has_reference(config.workload):
        where = f"tasks/equivalence/reference/{config.workload}.py"
        why = f"the workload {config.workload} has no second computation ({where})"
        return CertifiedFile(**facts, verdict="not checked", problem=why, seconds=time.perf_counter() - started)
    with (
        show_progress(f"equivalence of {config.cell}, updates", 2 * subject.num_steps) as advance,
        ThreadPoolExecutor(max_workers=1) as thread,
    ):
        # Seconds of imports, while the launcher takes seconds as well.
        thread.submit(find_reference, config.workload)

        def attempt(told: TrainingConfig) -> tuple[TrainingConfig, str | None, list[Update], list[str]]:
            # Of an attempt with larger micro-batches nothing may stay: updates, a checkpoint to go on from.
            shutil.rmtree(told.work_dir, ignore_errors=True)
            refusal = _run_ranks(subject, told, advance)
            with name_out_of_memory(f"the one process that stands in for cell {told.cell}"):
                on_update = partial(_advance_or_stop, subject, advance)
                return told, refusal, *compare_with_one_process(told, on_update=on_update)

        num_shares = count_shares(config.strategy, config.world_size, config.options)
        told, refusal, updates, problems = try_within_memory(config, attempt, num_shares=num_shares)
    packed = _compare_packed_kernels(subject, told)
    verdict, problem = judge(
        updates, [refusal] if refusal else problems, exchange=get_exchange_dtype(config), packed=packed
    )
    gradient, weights = _select_worst(updates, "gradient"), _select_worst(updates, "weights")
    certificate = CertifiedFile(
        **facts,
        gradient=gradient.found if gradient else None,
        weights=weights.found if weights else None,
        noise_floor=OfEach(
            gradient=gradient.noise_floor if gradient else None, weights=weights.noise_floor if weights else None
        ),
        tolerance=OfEach(
            gradient=gradient.tolerance if gradient else None, weights=weights.tolerance if weights else None
        ),
        updates=updates,
        micro_batch_size=told.micro_batch_size,
        settings=[] if refusal else _read_settings(told),
        replaced={
            f"train.{name}": its for name in _REPLACED if (its := getattr(subject.trained, name)) != getattr(told, name)
        },
        packed_kernels=packed,
        verdict=verdict,
        problem=problem,
        seconds=time.perf_counter() - started,
    )
    _log.info("%s: update equivalence %s%s", config.cell, verdict, f": {problem}" if problem else "")
    return certificate


def _read_settings(told: TrainingConfig) -> list[dict[str, Any]]:
    """Return what the ranks put down of themselves; raises DataError if their segment is not there."""
    (segment,) = told.segments
    return read_segment(told.work_dir / "segments" / segment.fingerprint).settings


def _compare_packed_kernels(subject: Subject, certified: TrainingConfig) -> Compared | None:
    """Return what kernels make of packs that the certificate did not run; None where there are none."""
    if not has_packed_kernels(subject.trained):
        return None
    config = dataclasses.replace(certified, precision=subject.trained.precision, compile=subject.trained.compile)
    with name_out_of_memory(f"packed rows of cell {certified.cell} in {config.precision}"):
        return compare_packed_kernels(config)


def _advance_or_stop(subject: Subject, advance: Callable[[int], None]) -> None:
    advance(1)
    if subject.stop.is_set():
        raise make_stop_error()


def _run_ranks(subject: Subject, config: TrainingConfig, advance: Callable[[int], None]) -> str | None:
    """Have the ranks train on the sample; return why they refused to go on, if they did."""
    last: dict[str, Any] = {}

    def follow(events: list[dict[str, Any]]) -> None:
        last.update(events[-1] if events else {})
        advance(sum(event["event"] == "step" for event in events))

    try:
        run_ranks(
            config, launcher=subject.launcher, nodes=subject.nodes, follow=follow, stop=subject.stop,
            arguments=["--keep-updates"], watchdog_seconds=_SECONDS_TO_WRITE_AN_UPDATE,
        )  # fmt: skip
    except PreemptedError:
        raise make_stop_error() from None
    except DistributedError:
        # Ranks that found themselves apart are no broken machine: they are what the certificate is about.
        if last.get("error") != "RanksDisagreeError" or not list_kept_updates(config.work_dir):
            raise
        return str(last["reason"])
    return None


def make_stop_error() -> PreemptedError:
    """Return what ends a stage that was asked to stop."""
    return PreemptedError("measuring was stopped; cells that are certified are kept, the next run does the others")


def _select_worst(updates: list[Update], kind: str) -> Compared | None:
    """Return what was found where the difference is the largest beside what is allowed."""
    parts = [part for update in updates if (part := getattr(update, kind)) is not None]
    telling = [part for part in parts if part.tolerance <= LARGEST_WEIGHTS_TOLERANCE] or parts
    return max(telling, key=lambda part: part.excess, default=None)
