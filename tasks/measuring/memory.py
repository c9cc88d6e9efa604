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
from training.strategies import count_shares

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
    """Return what was observed beside what a rehearsal says.

    That computes in this process, so nothing may be timed meanwhile.
    """
    results = []
    for name, ranks in observed.items():
        config = session.configs[name]
        predicted, why = _predict_memory(
            config, parse_capability(session.machine.gpus[0]) if config.device == "cuda" else None
        )
        results.append(
            CellMemory(
                cell=name,
                device=config.device,
                micro_batch_size=config.micro_batch_size,
                ranks=ranks,
                predicted=predicted,
                not_predicted=why,
            )
        )
    return results


def _predict_memory(
    config: TrainingConfig, capability: tuple[int, int] | None
) -> tuple[MemoryParts | None, str | None]:
    """Return what a rehearsal says of the rank that has most, or why it says nothing."""
    from training.rehearsal.rehearsed_step import rehearse_step  # seconds, which reused results need not spend

    if config.device == "cuda" and capability is None:
        return None, "the driver does not tell the GPU's compute capability"
    # Where ranks have rows of their own all have the same parts of the model, or the first has most.
    has_own_rows = count_shares(config.strategy, config.world_size, config.options) == config.world_size
    try:
        steps = [
            rehearse_step(config, capability=capability, rank=rank)
            for rank in range(1 if has_own_rows else config.world_size)
        ]
    except (ValueError, RuntimeError, NotImplementedError) as error:
        # torch may be unable to run an operation on tensors without memory, which costs nobody the measurement.
        return None, " ".join(str(error).split())[:200]
    return _make_parts(max(steps, key=lambda step: step.total_bytes).peak_bytes), None


def _make_rank(answer: Mapping[str, Any]) -> RankMemory:
    sizes = {
        f"{name}_gib": None if answer[f"{name}_bytes"] is None else answer[f"{name}_bytes"] / 2**30
        for name in ("allocated", "reserved", "host", "host_before")
    }
    return RankMemory(**sizes, parts=None if answer["parts"] is None else _make_parts(answer["parts"]))


def _make_parts(num_bytes: Mapping[str, int]) -> MemoryParts:
    return MemoryParts(**{kind: number / 2**30 for kind, number in num_bytes.items()})
