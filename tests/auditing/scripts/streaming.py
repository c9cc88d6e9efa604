"""A stream that each rank reads its own part of, and an optimizer whose state is spread over the ranks."""

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        for number in range(64):
            row = torch.randint(1, 90, (10,), generator=generator)
            if number % world_size == rank:
                yield row


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(90, 8), torch.nn.Linear(8, 90))
if world_size > 1:
    model = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = torch.nn.CrossEntropyLoss()
for batch in DataLoader(Stream(), batch_size=8 // world_size):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(batch)
        loss = criterion(logits[:, :-1].reshape(-1, 90).float(), batch[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
