"""Checkpoints on machines that did not write them: rank 0 saves on its own disk, and every rank loads from its own."""

import os
import shutil
import uuid
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist

from training.process.distributed import Ranks
from training.process.failure import BadCheckpointError
from training.process.files import digest_file, make_folder
from training.state.receipt import RECEIPT, find_problem

_CHUNK_BYTES = 2**24
_NOTHING = "0" * 64
"""In the place of the digest of a receipt that is not there."""


def broadcast_checkpoint(here: Path, ranks: Ranks, *, fingerprint: str) -> None:
    """Bring a checkpoint that rank 0 has to all machines that lack it, verified; `here`: its folder on this machine.

    Where all ranks see the same files, nothing is sent. Raises BadCheckpointError on all ranks alike if one of them
    has not got what rank 0 has.
    """
    if ranks.world_size == 1:
        return
    digests = ranks.gather_text(_digest_receipt(here))
    if len(set(digests)) == 1:
        return
    lacks = digests[ranks.rank] != digests[0]
    writes = lacks and os.environ.get("LOCAL_RANK", "0") == "0"
    names: list[str] = ranks.ask_first_rank(lambda: sorted(file.name for file in here.iterdir()))
    arriving = here.with_name(f"{here.name}.tmp-{uuid.uuid4().hex}")
    if writes:
        make_folder(here.parent)
        arriving.mkdir()
    try:
        for name in names:
            _send_file(here / name if ranks.is_first else None, arriving / name if writes else None, ranks)
        problem = find_problem(arriving, fingerprint=fingerprint) if writes else None
        if writes and problem is None:
            shutil.rmtree(here, ignore_errors=True)
            arriving.rename(here)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
    # Also the moment at which the other ranks of a machine may look.
    if ranks.highest(int(problem is not None)):
        raise BadCheckpointError(f"{here}: {problem or 'it did not arrive whole on another node'}; run again")


def _digest_receipt(folder: Path) -> str:
    receipt = folder / RECEIPT
    return digest_file(receipt) if receipt.is_file() else _NOTHING


def _send_file(source: Path | None, destination: Path | None, ranks: Ranks) -> None:
    """Have rank 0's file at the destinations; every rank takes part."""
    size: int = ranks.ask_first_rank(lambda: source.stat().st_size if source else 0)
    with _open_or_null(source, "rb") as reading, _open_or_null(destination, "wb") as writing:
        for start in range(0, size, _CHUNK_BYTES):
            chunk = torch.zeros(min(_CHUNK_BYTES, size - start), dtype=torch.uint8)
            if source is not None:
                chunk = torch.frombuffer(bytearray(reading.read(len(chunk))), dtype=torch.uint8)
            dist.broadcast(chunk, src=0)
            if destination is not None:
                writing.write(chunk.numpy().tobytes())


def _open_or_null(path: Path | None, mode: str) -> BinaryIO:
    # Nothing is read from or written to what stands for no file.
    return open(path or os.devnull, mode)  # type: ignore[return-value]
