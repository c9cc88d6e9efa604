"""blocks.parquet: every timed block as it ran, so that anybody can work out the speedups again."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from tasks.records.facts import Record
from tasks.records.stage_file import damaged
from training.process.files import replace_file

BLOCKS_FILE = "blocks.parquet"
_OF_ARM = ("phase", "arm", "cell", "kind")


class BlockWork(Record):
    """What was done in one timed block, all ranks together; what gates hold the seconds against."""

    turn: int
    """Blocks of one turn ran the same steps."""
    launch: int
    """Which launch of the ranks ran it, from 1."""
    others_share: float | None
    """Share of the CPUs of its ranks that others used meanwhile; null where the machine does not tell."""
    has_others_on_gpu: bool = False
    """Whether more processes computed on its GPUs than when the ranks had been started."""
    gpu_clocks_mhz: list[float | None] | None = None
    """Mean clock of each GPU; null on the CPU."""
    gpu_slowed_shares: list[float | None] | None = None
    """Share of the block in which heat or hardware held each GPU's clocks down; null on the CPU."""
    gpu_utilisations: list[float | None] | None = None
    """Share of the block in which each GPU ran any kernel, 0..1; null on the CPU."""
    gpu_watts: list[float | None] | None = None
    """Mean power of each GPU; null on the CPU."""
    gpu_memory_gib: list[float | None] | None = None
    """Most memory of each GPU in use, by whomever; null on the CPU."""
    started_at: float | None = None
    """When it was asked for, seconds since 1970; null in results of an earlier version."""
    cores_used: list[float] | None = None
    """Cores' worth of time that each rank used; null likewise."""
    host_gib: list[float] | None = None
    """Memory of the host that each rank held at its end; null where the system does not tell."""
    step_seconds: list[list[float]]
    """Seconds of each step, rank by rank."""
    range: str
    """Whose rows it had."""
    steps: list[int]
    """Optimizer steps of the range's first epoch, from 1, in this order."""
    seconds: float
    """Of the whole block, on its slowest rank."""
    num_samples: int
    """Rows."""
    num_tokens: int
    """What was learned from, in the workload's unit."""
    num_targets: int
    """Labels that were learned from."""
    num_positions: int
    """Positions computed, padding included."""
    num_micro_batches: int
    """Forward passes with rows in them."""
    rows: str
    """Digest of which rows each step had; the same for the same rows, whichever ranks had them."""
    rows_of_first_rank: str
    """The same of the first rank alone."""
    loss_sum: float | None
    """Sum of the losses that were back-propagated; null if not finite."""
    grad_norm_sum: float | None
    """Sum over the steps of the gradient's L2 norm before clipping; null if not finite."""
    updates: list[list[int]]
    """Fewest and most optimizer updates of a parameter, rank by rank, by the optimizer's own state."""
    num_updated: int
    """Elements that these ranks updated, each as often as a rank has it."""
    moment_squares: float | None
    """Sum of the squares of the optimizer's moments, which were 0 before the block, over all ranks; null if not finite,
    0 for an optimizer without moments."""
    num_exchanges: list[int]
    """Collectives of the group of the gradients, rank by rank: counted by torch."""
    exchange_bytes: list[int] | None
    """Bytes that these were given, by torch's flight recorder; null where it does not tell."""


Kind = Literal["as trained", "wrapped", "tuned", "threads", "data", "silent", "independent", "alone", "update"]
Phase = Literal["burn-in", "speedup", "waterfall"]


class ArmBlocks(Record):
    """The blocks of one arm in one phase of measuring."""

    phase: Phase
    """burn-in: turns of a launch before those that count; speedup: what the speedups are of; waterfall: beside the
    counterfactuals."""
    arm: str
    """Its name."""
    cell: str
    """Name of the cell whose ranks ran it."""
    kind: Kind
    """as trained: the cell's step; wrapped: the baseline in DDP; tuned: as a plain process, or with larger
    micro-batches; threads: with those of all cores; data: data in another place; silent: no exchange; independent: the
    shares of all ranks as one process would run them; alone: that of one of them; update: no micro-batches."""
    blocks: list[BlockWork]
    """In the order of time."""


def write_blocks(path: Path, blocks: Sequence[ArmBlocks]) -> None:
    """Write a row for each block, with the fields of ArmBlocks and BlockWork; whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {**{name: getattr(arm, name) for name in _OF_ARM}, **block.model_dump()}
        for arm in blocks
        for block in arm.blocks
    ]
    with replace_file(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows), temporary, compression="zstd")


def read_blocks(path: Path) -> list[ArmBlocks]:
    """Return the blocks of each arm and phase; raises DataError in one line if the file is missing or damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    works = defaultdict[tuple[str, ...], list[BlockWork]](list)
    try:
        for row in pq.read_table(path).to_pylist():
            works[tuple(row.pop(name) for name in _OF_ARM)].append(BlockWork.model_validate(row))
        return [
            ArmBlocks.model_validate({**dict(zip(_OF_ARM, arm, strict=True)), "blocks": blocks})
            for arm, blocks in works.items()
        ]
    except (OSError, KeyError, ValidationError, pa.ArrowException) as error:
        raise damaged(path, error) from None
