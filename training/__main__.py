"""One rank of a training: `torchrun ... -m training --config FILE`.

Exit codes: 0 trained; 3 bad checkpoint; 5 diverged; 75 stopped by SIGTERM, 130 by SIGINT, both after saving; 6 else.
Before the first step there is nothing to save, and either signal kills the process.
"""

import argparse
import fcntl
import logging
import os
import stat
import sys
from pathlib import Path

from training.config import TrainingConfig, read_config
from training.events import EventStream
from training.failure import EXIT_FAILED, StoppedError, TrainingError
from training.lifeline import end_with_parent
from training.redaction import formatted, redact_logs, redacted, shortened
from training.safe_loading import require_safe_torch

_MAX_REASON_CHARACTERS = 2_000


def main() -> int:
    """Train what the config file describes; return the exit code."""
    end_with_parent()
    _append_to_logs()
    redact_logs()
    parser = argparse.ArgumentParser(prog="training", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see training/config.py")
    parser.add_argument(
        "--keep-gradient", action="store_true", help="also write the first step's gradient into the work folder"
    )
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
        sys.stderr.write(f"training: {error}\n")
        return EXIT_FAILED
    try:
        _run(config, events, keeps_gradient=arguments.keep_gradient, address=arguments.serve)
    except TrainingError as error:
        sys.stderr.write(f"training: rank {rank}: {error}\n")
        kind = "stopped" if isinstance(error, StoppedError) else "failed"
        events.send(kind, reason=str(error), error=type(error).__name__, exit_code=error.exit_code)
        return error.exit_code
    except Exception as error:
        sys.stderr.write(formatted(error))
        words = redacted(shortened(f"{type(error).__name__}: {error}", limit=_MAX_REASON_CHARACTERS))
        events.send("failed", reason=f"rank {rank}: {words}", exit_code=EXIT_FAILED)
        return EXIT_FAILED
    return 0


def _append_to_logs() -> None:
    """Have every line go to the end of its log, wherever that is now: the parent cuts logs that grow too long."""
    for stream in (1, 2):
        if stat.S_ISREG(os.fstat(stream).st_mode):
            fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)


def _run(config: TrainingConfig, events: EventStream, *, keeps_gradient: bool, address: str | None) -> None:
    # Before torch is imported: it reads the number of threads once.
    os.environ["OMP_NUM_THREADS"] = str(config.threads_per_rank)
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    from training.distributed import joined_ranks

    torch.set_num_threads(config.threads_per_rank)
    if address is not None:
        from training.measure import serve

        with joined_ranks(config) as ranks:
            serve(config, ranks, address=address)
        return

    from training.loop import train
    from training.stopping import StopRequest

    stop = StopRequest()
    with joined_ranks(config) as ranks:
        train(config, ranks, stop=stop, events=events, keeps_gradient=keeps_gradient)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is written; with torch and transformers loaded, Python's own teardown would take over a second more.
    os._exit(code)
