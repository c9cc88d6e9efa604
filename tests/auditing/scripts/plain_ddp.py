"""A language model on texts of different lengths: DDP, accumulation, clipping, one weight per token."""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--resume", default="")
parser.add_argument("--out", default="out")
arguments = parser.parse_args()

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
ACCUMULATION = 2
micro_batch = 8 // world_size // ACCUMULATION
os.makedirs(arguments.out, exist_ok=True)

words = [f"word{number}" for number in range(60)]
generator = torch.Generator().manual_seed(1)
lengths = torch.randint(5, 25, (48,), generator=generator).tolist()
texts = [[words[at] for at in torch.randint(0, 60, (length,), generator=generator)] for length in lengths]


def encode(word):
    return 1 + words.index(word)


def collate(rows):
    width = max(map(len, rows))
    input_ids = torch.tensor([[encode(word) for word in row] + [0] * (width - len(row)) for row in rows])
    mask = (input_ids != 0).long()
    return {"input_ids": input_ids, "attention_mask": mask, "labels": input_ids.masked_fill(mask == 0, -100)}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(100, 16)
        self.head = torch.nn.Linear(16, 100)

    def forward(self, input_ids, attention_mask):
        return self.head(self.embedding(input_ids) * attention_mask[..., None])


torch.manual_seed(0)
model = Model()
if arguments.resume:
    model.load_state_dict(torch.load(arguments.resume))
wrapped = DistributedDataParallel(model) if world_size > 1 else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = DistributedSampler(texts, num_replicas=world_size, rank=rank, seed=0)
loader = DataLoader(texts, batch_size=micro_batch, sampler=sampler, collate_fn=collate)

seconds = 0.0
for epoch in range(arguments.epochs):
    sampler.set_epoch(epoch)
    micros = iter(loader)
    while group := [micro for _, micro in zip(range(ACCUMULATION), micros, strict=False)]:
        began = time.perf_counter()
        num_targets = torch.tensor(float(sum((micro["labels"][:, 1:] != -100).sum() for micro in group)))
        dist.all_reduce(num_targets)
        for number, micro in enumerate(group, start=1):
            is_last = number == len(group)
            with contextlib.nullcontext() if is_last or world_size == 1 else wrapped.no_sync():
                logits = wrapped(micro["input_ids"], micro["attention_mask"])
                labels = micro["labels"]
                loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
                (loss * world_size / num_targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - began
    if rank == 0:
        torch.save(model.state_dict(), f"{arguments.out}/last.pt")
        with open(f"{arguments.out}/results.csv", "w" if epoch == 0 else "a") as file:
            file.write(f"{epoch},{seconds}\n")
if rank == 0:
    print(f"{seconds:.3f} s")
dist.destroy_process_group()
