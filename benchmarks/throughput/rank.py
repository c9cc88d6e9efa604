"""One rank of a peer: `torchrun ... -m benchmarks.throughput.rank --config FILE --serve SOCKET`."""

import argparse
import importlib
import os
import sys
import traceback
from pathlib import Path

from ddp_audit.process.lifeline import end_with_parent


def main():
    """Run the peer of the config's folder until nobody asks any more."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="benchmarks.throughput.rank", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--serve", metavar="SOCKET", required=True)
    arguments = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    import torch

    from benchmarks.throughput.job import read_job
    from benchmarks.throughput.turns import Turns

    job = read_job(arguments.config.parent)
    torch.set_num_threads(job.training.threads_per_rank)
    peer = importlib.import_module(f"benchmarks.throughput.peers.{job.peer}")
    turns = Turns(arguments.serve, rank=int(os.environ["RANK"]), device=torch.device(job.training.device))
    peer.run(job, turns)
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)
