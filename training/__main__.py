"""One rank of a training: `torchrun ... -m training --config FILE`.

Exit codes: 0 trained; 3 bad checkpoint; 4 no memory or no disk; 5 diverged; 75 stopped by SIGTERM,
130 by SIGINT, both after saving; 6 else.
Before the first step there is nothing to save, and either signal kills the process.
"""

import argparse
import contextlib
import faulthandler
import fcntl
import gc
import logging
import os
import signal
import stat
import sys
from pathlib import Path

from ddp_audit.process.lifeline import end_with_parent
from ddp_audit.process.redaction import format_traceback, redact, redact_logs, shorten
from training.config import TrainingConfig, read_config
from training.process.events import EventStream, StopRequest
from training.process.failure import (
    EXIT_FAILED,
    FAILURES,
    OutOfMemoryError,
    StoppedError,
    TrainingError,
    is_out_of_memory,
    record_failure,
)
from training.process.files import require_code
from training.process.heartbeat import Heartbeat
from training.process.safe_loading import require_safe_torch

_MAX_REASON_CHARACTERS = 2_000
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables that set torch's allocator; the second is the name of earlier versions."""


def main() -> int:
    """Train what the config file describes; return the exit code."""
    # First: Python makes an exception of a SIGINT, which the import of a large package may swallow.
    stop = StopRequest()
    end_with_parent()
    _append_to_logs()
    redact_logs()
    parser = argparse.ArgumentParser(prog="training", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see training/config.py")
    parser.add_argument(
        "--heartbeat", type=Path, metavar="FILE", help="tell there where this rank is (training/process/heartbeat.py)"
    )
    parser.add_argument("--code", metavar="SHA256", help="refuse to train with other sources than these")
    parser.add_argument("--serve", metavar="SOCKET", help="train nothing, run blocks on command")
    arguments = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        require_safe_torch()
        config = read_config(arguments.config)
        events = EventStream(config.work_dir / "steps.jsonl", rank=rank)
    except (ValueError, OSError) as error:
        _say(f"training: {error}\n")
        return EXIT_FAILED
    try:
        _run(config, events, arguments, stop)
    except Exception as error:
        return _report_failure(error, config, events, rank=rank)
    return 0


def _append_to_logs() -> None:
    """Have every line go to the end of its log, wherever that is now: the parent cuts logs that grow too long."""
    for stream in (1, 2):
        if stat.S_ISREG(os.fstat(stream).st_mode):
            fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)


def _report_failure(error: Exception, config: TrainingConfig, events: EventStream, *, rank: int) -> int:
    """Say how this rank failed, to whoever reads it; return the exit code."""
    if not isinstance(error, TrainingError):
        _say(format_traceback(error))
        if is_out_of_memory(error):
            error = OutOfMemoryError(f"rank {rank}: out of memory: {' '.join(redact(str(error)).split())[:300]}")
    if isinstance(error, TrainingError):
        _say(f"training: rank {rank}: {error}\n")
        reason, exit_code = str(error), error.exit_code
    else:
        words = redact(shorten(f"{type(error).__name__}: {error}", limit=_MAX_REASON_CHARACTERS))
        reason, exit_code = f"rank {rank}: {words}", EXIT_FAILED
    if isinstance(error, StoppedError):
        events.send("stopped", reason=reason, error=type(error).__name__, exit_code=exit_code)
        return exit_code
    record_failure(config.work_dir / FAILURES, rank=rank, error=error, reason=reason, exit_code=exit_code)
    events.send("failed", reason=reason, error=type(error).__name__, exit_code=exit_code)
    return exit_code


def _say(words: str) -> None:
    """Write into the log; a disk that takes nothing costs the words, and not the exit code."""
    with contextlib.suppress(OSError):
        sys.stderr.write(words)


def _run(config: TrainingConfig, events: EventStream, arguments: argparse.Namespace, stop: StopRequest) -> None:
    # Before torch is imported: it reads the number of threads once.
    os.environ["OMP_NUM_THREADS"] = str(config.threads_per_rank)
    os.environ["HF_HUB_OFFLINE"] = "1"
    if config.device == "cuda" and not any(name in os.environ for name in _ALLOCATOR):
        # Packs of changing length would leave the device's memory in pieces of sizes that no other pack has.
        os.environ[_ALLOCATOR[0]] = "expandable_segments:True"
    # Before the imports, which take long enough to hang in.
    heartbeat = Heartbeat(arguments.heartbeat, rank=int(os.environ.get("RANK", "0")))
    # Asked for by the watchdog; it works whatever the interpreter does.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # Python's collector would go through what is imported again and again.
    gc.disable()
    import torch

    from training.process.distributed import join_ranks

    if arguments.serve is not None:
        from training.probing.timed_blocks import serve
    else:
        from training.loop import train

    from training.step.strategy import find_strategy
    from training.workloads import find_workload

    find_workload(config.workload)
    find_strategy(config.strategy)
    if arguments.code is not None:
        require_code(arguments.code)
    # What is imported stays: no step waits until all of it was gone through.
    gc.freeze()
    gc.enable()
    torch.set_num_threads(config.threads_per_rank)
    if arguments.serve is not None:
        with join_ranks(config) as ranks:
            serve(config, ranks, address=arguments.serve)
        return
    with join_ranks(config) as ranks, heartbeat.keep_count(ranks.count_collectives):
        train(config, ranks, stop=stop, events=events, heartbeat=heartbeat)


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # Everything is written; with torch and transformers loaded, Python's own teardown would take over a second more.
    os._exit(code)
