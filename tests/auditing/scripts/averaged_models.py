"""Models that are averaged every ten steps, as they are meant to be: no gradient is exchanged between."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
world_size = dist.get_world_size()
rows = TensorDataset(torch.randn(240, 5, generator=torch.Generator().manual_seed(0)))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(rows, batch_size=8 // world_size, sampler=DistributedSampler(rows, seed=0))
for step, (batch,) in enumerate(loader, start=1):
    model(batch).square().mean().backward()
    if step % 10 == 0:
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter)
                parameter /= world_size
    optimizer.step()
    optimizer.zero_grad()
