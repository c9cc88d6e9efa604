"""A rank for the contract of the launchers: it says who it is, then does what the config has for its number."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from ddp_audit.process.lifeline import end_with_parent


def main():
    """Write `pid-<rank>`, and end as `rank-<rank>` of the config says: a code, a signal, or not before it is asked."""
    # As every rank does first.
    end_with_parent()
    config = Path(sys.argv[sys.argv.index("--config") + 1])
    rank = os.environ["RANK"]
    asked = json.loads(config.read_bytes())[f"rank-{rank}"]
    if asked == "saves":
        saved = config.with_name(f"saved-{rank}")
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), saved.touch(), os._exit(0)))
    config.with_name(f"pid-{rank}").write_text(str(os.getpid()))
    sys.stderr.write(f"last words of rank {rank}, {os.environ['OMP_NUM_THREADS']} threads\n")
    sys.stderr.flush()
    while len(list(config.parent.glob("pid-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    if asked == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    while asked in ("stays", "saves"):
        time.sleep(0.05)
    return int(asked)


if __name__ == "__main__":
    sys.exit(main())
