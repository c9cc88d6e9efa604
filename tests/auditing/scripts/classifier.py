"""A classifier with batch norm on pictures that are turned at random, evaluated after every epoch; workers read."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pictures(Dataset):
    def __init__(self):
        self.pictures = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, at):
        picture = self.pictures[at]
        return (picture.flip(-1) if torch.rand(()) < 0.5 else picture), at % 4


def main():
    dist.init_process_group("gloo")
    world_size = dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    if world_size > 1:
        network = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    criterion = nn.CrossEntropyLoss()
    pictures = Pictures()
    sampler = DistributedSampler(pictures)
    loader = DataLoader(pictures, batch_size=16 // world_size, sampler=sampler, num_workers=1, drop_last=True)
    validation = DataLoader(pictures, batch_size=32)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        network.train()
        start = time.time()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = criterion(network(batch), target)
            loss.backward()
            optimizer.step()
        elapsed = time.time() - start
        scheduler.step()
        network.eval()
        with torch.no_grad():
            right = sum(int((network(batch).argmax(1) == target).sum()) for batch, target in validation)
        print(f"epoch {epoch}: {elapsed:.3f} s, {right} right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
