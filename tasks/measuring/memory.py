"""What a step of each cell takes of memory: really, on its ranks, and by a rehearsal that runs nothing."""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tasks.machine.usable_gpus import parse_capability
from tasks.measuring.planning import Session
from tasks.measuring.workers import Workers
from tasks.records.cell_memory import CellMemory, MemoryParts, RankMemory
from training.config import TrainingConfig

_log = logging.getLogger(__name__)


def observe_memory(session: Session, workers: Mapping[str, Workers]) -> dict[str, list[RankMemory]]:
    """Return what a step of each cell took, rank by rank. They have to be fresh: what they hold would be counted, too.

    Raises what asking ranks raises.
    """

    def observe(name: str) -> list[RankMemory]:
        _log.info("%s: measuring the memory of a step", name)
        return [_make_rank(answer) for answer in workers[name].ask("memory", doing="measuring its memory")]

    # Cells share a GPU's memory, and may not have room beside each other.
    is_shared = any(config.device == "cuda" for config in session.configs.values())
    with ThreadPoolExecutor(max_workers=1 if is_shared else None) as threads:
        return dict(zip(session.configs, threads.map(observe, session.configs), strict=True))


def rehearse_memory(session: Session, observed: Mapping[str, list[RankMemory]]) -> list[CellMemory]:
    """Return what was observed, and of a GPU what a rehearsal says besides: on a CPU nobody asks what fits.

    That computes in this process, so nothing may be timed meanwhile.
    """
    results = []
    for name, ranks in observed.items():
        config, predicted, why = session.configs[name], None, None
        if config.device == "cuda":
            predicted, why = _predict_memory(config, parse_capability(session.machine.gpus[0]))
        results.append(
            CellMemory(
                cell=name, device=config.device, micro_batch_size=config.micro_batch_size, ranks=ranks,
                predicted=predicted, not_predicted=why,
            )
        )  # fmt: skip
    return results


def _predict_memory(
    config: TrainingConfig, capability: tuple[int, int] | None
) -> tuple[MemoryParts | None, str | None]:
    """Return what a rehearsal says of the rank that has most, or why it says nothing."""
    from training.rehearsal.rehearsed_step import rehearse_largest_rank  # seconds, which reused results need not spend

    if capability is None:
        return None, "the driver does not tell the GPU's compute capability"
    try:
        return _make_parts(rehearse_largest_rank(config, capability=capability).peak_bytes), None
    except (ValueError, RuntimeError, NotImplementedError) as error:
        # torch may be unable to run an operation on tensors without memory, which costs nobody the measurement.
        return None, " ".join(str(error).split())[:200]


def _make_rank(answer: Mapping[str, Any]) -> RankMemory:
    sizes = {kind: answer[f"{kind}_bytes"] for kind in ("allocated", "reserved", "host", "host_before")}
    return RankMemory(
        **{f"{kind}_gib": None if size is None else size / 2**30 for kind, size in sizes.items()},
        parts=answer["parts"] and _make_parts(answer["parts"]),
    )


def _make_parts(num_bytes: Mapping[str, int]) -> MemoryParts:
    return MemoryParts(**{kind: number / 2**30 for kind, number in num_bytes.items()})
