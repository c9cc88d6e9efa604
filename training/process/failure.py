"""How a training process ends other than well, and the exit codes that say so; standard library only."""

import json
import re
import time
from pathlib import Path
from typing import Any

EXIT_CONFIGURATION = 2
EXIT_BAD_CHECKPOINT = 3
EXIT_NO_RESOURCES = 4
EXIT_DIVERGED = 5
EXIT_FAILED = 6
EXIT_PREEMPTED = 75
EXIT_INTERRUPTED = 130

FAILURES = "failures"
"""In the work folder: what every rank that failed said of it."""


class TrainingError(ValueError):
    """An ending that one line explains: what, got, allowed, remedy."""

    exit_code = EXIT_FAILED


class BadCheckpointError(TrainingError):
    """A checkpoint or a model folder is not what it has to be."""

    exit_code = EXIT_BAD_CHECKPOINT


class ChangedInputError(TrainingError):
    """Rows or code changed while they were worked with; nothing of it was saved."""

    exit_code = EXIT_BAD_CHECKPOINT


class UnwritableError(TrainingError):
    """A checkpoint, or the ledger on its way to one, could not be written; the checkpoint before it is whole."""

    exit_code = EXIT_NO_RESOURCES


class DivergedError(TrainingError):
    """A loss or a gradient norm left the finite, or the loss where it came from; nothing of it was saved."""

    exit_code = EXIT_DIVERGED


class GradientNotFiniteError(DivergedError):
    """The gradient of a step left the finite, and its losses did not; after the exchange it is that of all ranks."""

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step


class OutOfMemoryError(TrainingError):
    """A device has no room for a micro-batch; whoever started the ranks may try smaller ones."""

    exit_code = EXIT_NO_RESOURCES


class RanksDisagreeError(TrainingError):
    """Ranks that must hold the same parameters, or have done the same work, do not."""


class UnfitModelError(TrainingError):
    """The model cannot be trained in the way that was asked for."""

    exit_code = EXIT_CONFIGURATION


class StoppedError(TrainingError):
    """The process was asked to stop and has saved what it had."""

    def __init__(self, message: str, *, exit_code: int = EXIT_PREEMPTED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


_OUT_OF_MEMORY = (
    # torch, CUDA's runtime and driver, triton.
    "out of memory",
    # torch on a CPU, C++ and the system.
    "can't allocate memory", "cannot allocate memory", "std::bad_alloc",
    # cuBLAS and cuDNN, which take memory of the device by themselves. Without any, cuBLAS cannot even begin.
    "cublas_status_alloc_failed", "cublas_status_not_initialized", "cudnn_status_alloc_failed",
    "device_allocation_failed",
    # NCCL.
    "failed to cuda malloc", "failed to cuda calloc",
)  # fmt: skip
_OF_A_PLAN = re.compile(r"plan failed with|no valid (execution|engine)", re.IGNORECASE)
"""What is said of a plan of cuDNN's that did not fit: others are tried, and smaller micro-batches are no remedy."""


def is_out_of_memory(error: Exception) -> bool:
    """Return whether torch, a library of the GPU's or the machine's own Python found no memory."""
    return isinstance(error, MemoryError) or tells_out_of_memory(str(error))


def tells_out_of_memory(text: str) -> bool:
    """Return whether a line of the text says so, but for cuDNN's trials of plans."""
    lines = (line.lower() for line in text.splitlines() if not _OF_A_PLAN.search(line))
    return any(sign in line for line in lines for sign in _OUT_OF_MEMORY)


def record_failure(folder: Path, *, rank: int, error: Exception, reason: str, exit_code: int) -> None:
    """Leave word of a rank's failure for whoever started it, with the time: one failure makes others fail.

    Says nothing where the disk takes nothing; the exit code is all there is then.
    """
    words = {
        "rank": rank,
        "at": time.monotonic(),
        "error": type(error).__name__,
        "reason": reason,
        "exit_code": exit_code,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank-{rank}.json").write_text(json.dumps(words))
    except OSError:
        return


def read_failures(folder: Path) -> list[dict[str, Any]]:
    """Return what `record_failure` left there, the earliest first; one that is not whole is left out."""
    results = []
    for file in folder.glob("rank-*.json"):
        try:
            results.append(json.loads(file.read_bytes()))
        except (OSError, ValueError):
            continue
    return sorted(results, key=lambda words: float(words["at"]))
