"""`python -m tests.phantom.apart FOLDER`: two ranks that exchange what they should, then something different each.

Writes what rank 0 was left with, and how each rank ended.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def main(folder: Path) -> None:
    """Fork the ranks and wait for them."""
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, folder)
        pids.append(pid)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    json.dump({**json.loads((folder / "found.json").read_bytes()), "ends": ends}, sys.stdout)


def _be_rank(rank: int, folder: Path) -> None:
    torch.cuda.set_device(rank)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
    summed, gathered = torch.tensor([1.5, rank]).cuda(), [torch.empty(1).cuda() for _ in range(2)]
    dist.all_reduce(summed)
    dist.all_gather(gathered, torch.tensor([10.0 + rank]).cuda())
    largest = torch.tensor([rank]).cuda()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    sent = torch.tensor([7 * (rank + 1)]).cuda()
    dist.broadcast(sent, src=1)
    bucket = torch.full((512,), 3).cuda()
    dist.all_reduce(bucket)
    if rank == 0:
        found = {
            "of a bucket": bucket[0].item(),
            "summed": summed.tolist(),
            "gathered": [part.item() for part in gathered],
        }
        (folder / "found.json").write_text(json.dumps(found | {"largest": largest.item(), "sent": sent.item()}))
    dist.all_reduce(torch.zeros(3 + rank).cuda())
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
