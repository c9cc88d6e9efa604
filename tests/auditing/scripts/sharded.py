"""FSDP2: every rank holds a part of each parameter."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
world_size = dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 32), torch.nn.Linear(32, 50))
if world_size > 1:
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = TensorDataset(torch.randint(1, 50, (64, 12), generator=torch.Generator().manual_seed(1)))
loader = DataLoader(rows, batch_size=8 // world_size, sampler=DistributedSampler(rows, seed=0))
for (batch,) in loader:
    logits = model(batch)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 50), batch[:, 1:].reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
