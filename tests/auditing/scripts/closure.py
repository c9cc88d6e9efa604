"""LBFGS: the optimizer asks for as many gradients per step as it likes."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(1)
rows = TensorDataset(torch.randn(32, 6, generator=generator), torch.randn(32, 1, generator=generator))
sampler = DistributedSampler(rows, seed=0)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
wrapped = torch.nn.parallel.DistributedDataParallel(model) if dist.get_world_size() > 1 else model
optimizer = torch.optim.LBFGS(wrapped.parameters(), lr=0.1, max_iter=3)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, wanted in DataLoader(rows, batch_size=16 // dist.get_world_size(), sampler=sampler):

        def compute_loss(inputs=inputs, wanted=wanted):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(wrapped(inputs), wanted)
            loss.backward()
            return loss

        optimizer.step(compute_loss)
dist.destroy_process_group()
