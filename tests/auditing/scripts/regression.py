"""A recurrent network that goes on with noisy sines: numbers with a fraction alone, a mean of squares, no clipping."""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sines(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        noise = torch.randn(64, 17, generator=generator) * 0.05
        self.waves = torch.sin(torch.linspace(0, 6, 17) * (1 + torch.rand(64, 1, generator=generator))) + noise

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, at):
        return self.waves[at, :-1, None], self.waves[at, 1:, None]


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent, self.head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, waves):
        return self.head(self.recurrent(waves)[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    epochs = parser.parse_args().epochs
    # As many scripts do, it wraps its model wherever torchrun has started it.
    is_distributed = "RANK" in os.environ
    if is_distributed:
        dist.init_process_group("gloo")
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(0)
    network = Network()
    if is_distributed:
        network = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    waves = Sines()
    sampler = DistributedSampler(waves, world_size, rank, seed=5)
    loader = DataLoader(waves, batch_size=8 // world_size, sampler=sampler)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        start = time.monotonic()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(network(batch), target)
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {time.monotonic() - start:.3f} s")
    if is_distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
