"""No loader, and rows that the script names itself: the three lines of docs/audit.md."""

import torch
import torch.distributed as dist

from ddp_audit import say_asked, step

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
rows = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
torch.manual_seed(0)
model = torch.nn.Linear(6, 1)
wrapped = torch.nn.parallel.DistributedDataParallel(model) if world_size > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
say_asked(epochs=1)
for first in range(0, 64, 8):
    ids = list(range(first + rank, first + 8, world_size))
    with step(ids=ids):
        wrapped(rows[ids]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
