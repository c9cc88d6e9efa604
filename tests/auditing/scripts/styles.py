"""Right scripts of several styles, each by its name: `styles.py sharded`."""

import logging
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, TensorDataset

from ddp_audit import say_asked, step

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
SHARE = 8 // world_size
generator = torch.Generator().manual_seed(1)
numbers, tokens = torch.randn(96, 6, generator=generator), torch.randint(1, 60, (96, 12), generator=generator)
torch.manual_seed(0)
language = torch.nn.Sequential(torch.nn.Embedding(60, 8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 60))
network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def load(rows):
    return DataLoader(TensorDataset(rows), batch_size=SHARE, sampler=DistributedSampler(rows, seed=0))


def wrap(model):
    return DistributedDataParallel(model) if world_size > 1 else model


def get_loss(logits, batch):
    return F.cross_entropy(logits[:, :-1].reshape(-1, 60).float(), batch[:, 1:].reshape(-1))


def update(optimizer, loss=None):
    if loss is not None:
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def averaged_models():
    """Models that are averaged every ten steps, as they are meant to be: no gradient is exchanged between."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for number, (batch,) in enumerate(load(numbers.repeat(3, 1) + torch.arange(288)[:, None]), start=1):
        network(batch).square().mean().backward()
        for parameter in network.parameters() if number % 10 == 0 else ():
            dist.all_reduce(parameter.data)
            parameter.data /= world_size
        update(optimizer)


def by_hand():
    """No wrapper and no loader: slices of a tensor, gradients summed by hand, a loss that is no cross-entropy."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for first in range(rank * SHARE, 96, 8):
        (network(numbers[first : first + SHARE]).square().sum() / 8).backward()
        for parameter in network.parameters():
            dist.all_reduce(parameter.grad)
        norm = torch.linalg.vector_norm(torch.stack([one.grad.norm() for one in network.parameters()]))
        for parameter in network.parameters():
            parameter.grad.mul_(min(1.0, 1.0 / float(norm)))
        update(optimizer)


def closure():
    """LBFGS: the optimizer asks for as many gradients per step as it likes."""
    wrapped = wrap(network)
    optimizer = torch.optim.LBFGS(wrapped.parameters(), lr=0.1, max_iter=3)
    for (batch,) in load(numbers):

        def compute_loss(batch=batch):
            optimizer.zero_grad()
            loss = F.mse_loss(wrapped(batch), batch[:, :1])
            loss.backward()
            return loss

        optimizer.step(compute_loss)


def looking_ahead():
    """SAM: two gradients of the same rows per update."""
    wrapped, optimizer = wrap(network), torch.optim.SGD(network.parameters(), lr=0.1)
    for (batch,) in load(numbers):
        F.mse_loss(wrapped(batch), batch[:, :1]).backward()
        before = [one.detach().clone() for one in network.parameters()]
        with torch.no_grad():
            [one.add_(one.grad, alpha=0.1) for one in network.parameters()]
        optimizer.zero_grad()
        F.mse_loss(wrapped(batch), batch[:, :1]).backward()
        with torch.no_grad():
            [one.copy_(held) for one, held in zip(network.parameters(), before, strict=True)]
        update(optimizer)


def pictures_apart():
    """Pictures of unlike sizes, one by one in a list, each with a target."""

    class Model(torch.nn.Sequential):
        def forward(self, pictures):
            return self[1](torch.stack([self[0](picture).mean((1, 2)) for picture in pictures]))

    pictures = [(row.repeat(3, 1).expand(3 + at % 3, 3, 6).transpose(0, 1), row[:1]) for at, row in enumerate(numbers)]
    wrapped = wrap(Model(torch.nn.Conv2d(3, 6, 3), network))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    sampler = DistributedSampler(pictures, seed=0)
    for batch in DataLoader(pictures, SHARE, sampler=sampler, collate_fn=list):
        targets = torch.stack([target for _, target in batch])
        update(optimizer, F.mse_loss(wrapped([picture for picture, _ in batch]), targets))


def told():
    """No loader, and rows that the script names itself: the three lines of docs/audit.md."""
    wrapped, optimizer = wrap(network), torch.optim.SGD(network.parameters(), lr=0.1)
    say_asked(epochs=1)
    for first in range(0, 96, 8):
        ids = list(range(first + rank, first + 8, world_size))
        with step(ids=ids):
            update(optimizer, wrapped(numbers[ids]).square().mean())


def sequence_first():
    """Places come first, blocks are recomputed, a look at the loss keeps its graph; encoder and head."""

    class Encoder(torch.nn.Sequential):
        def forward(self, places):
            return checkpoint(self[1], self[0](places), use_reentrant=False)

    encoder, head = wrap(Encoder(*language[:2])), wrap(language[2])
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-3)
    for first in range(rank * SHARE, 96, 8):
        batch = tokens[first : first + SHARE].t()
        _looked_at = F.cross_entropy(head(encoder(batch))[:-1].flatten(0, 1), batch[1:].flatten())
        update(optimizer, F.cross_entropy(head(encoder(batch))[:-1].flatten(0, 1), batch[1:].flatten()))


def streaming():
    """A stream that each rank reads its own part of, 16 bits, an optimizer whose state is spread over the ranks."""

    class Stream(IterableDataset):
        def __iter__(self):
            yield from tokens[:64][rank::world_size]

    model = wrap(language)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if world_size > 1:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)
    for batch in DataLoader(Stream(), batch_size=SHARE):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = get_loss(model(batch), batch)
        update(optimizer, loss)


def sharded():
    """FSDP2: every rank holds a part of each parameter."""
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in (*language, language) if world_size > 1 else ():
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(language.parameters(), lr=1e-3)
    for (batch,) in load(tokens):
        get_loss(language(batch), batch).backward()
        torch.nn.utils.clip_grad_norm_(language.parameters(), 1.0)
        update(optimizer)


def tensor_parallel():
    """Every rank computes a part of each row."""
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(network, init_device_mesh("cpu", (world_size,)), plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for first in range(0, 96, 8):
        update(optimizer, model(numbers[first : first + 8]).square().mean())


def two_models():
    """Two models against each other, each with an optimizer of its own; rows are drawn with replacement."""
    critic, maker = wrap(torch.nn.Linear(6, 1)), wrap(torch.nn.Linear(3, 6))
    of_critic, of_maker = (torch.optim.Adam(one.parameters(), lr=1e-3) for one in (critic, maker))
    logging.basicConfig(filename="two_models.log", level=logging.INFO)
    torch.manual_seed(rank)
    rows = TensorDataset(torch.randn(40, 6))
    for (batch,) in DataLoader(rows, batch_size=SHARE, sampler=RandomSampler(rows, replacement=True)):
        made = maker(torch.randn(len(batch), 3))
        update(of_critic, F.softplus(-critic(torch.cat([batch, made.detach()]))).mean())
        of_maker.zero_grad()
        update(of_maker, F.softplus(-critic(made)).mean())
        logging.info("of %d rows", len(batch))


globals()[sys.argv[1]]()
dist.destroy_process_group()
