"""Two models against each other, each with an optimizer of its own; rows are drawn with replacement."""

import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

logging.basicConfig(filename="two_models.log", level=logging.INFO)
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
critic, maker = torch.nn.Linear(6, 1), torch.nn.Linear(3, 6)
if world_size > 1:
    critic, maker = DistributedDataParallel(critic), DistributedDataParallel(maker)
of_critic, of_maker = (torch.optim.Adam(one.parameters(), lr=1e-3) for one in (critic, maker))
torch.manual_seed(rank)
rows = TensorDataset(torch.randn(40, 6))
loader = DataLoader(rows, batch_size=8 // world_size, sampler=RandomSampler(rows, replacement=True))
for step, (batch,) in enumerate(loader):
    made = maker(torch.randn(len(batch), 3))
    loss = torch.nn.functional.softplus(-critic(torch.cat([batch, made.detach()]))).mean()
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    of_maker.zero_grad()
    torch.nn.functional.softplus(-critic(made)).mean().backward()
    of_maker.step()
    logging.info("step %d: %f", step, float(loss.detach()))
dist.destroy_process_group()
