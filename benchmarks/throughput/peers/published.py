"""A loop as it was published: pads every row to the full length and synchronises on every micro-batch.

A rank cuts its share into 8 micro-batches. Each of them is padded to the sequence length, all-reduced by DDP, which is
around the model on one process too, read back with `.item()`, and logged.
"""

import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.throughput.job import padded
from training.process.distributed import join_ranks
from training.workloads.causal_lm import load_model

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ACCUMULATION = 8


def settings(job):
    """Return the one way it was run."""
    share = job.global_batch_size // job.training.world_size
    return [{"micro_batch_size": max(share // _ACCUMULATION, 1)}]


def run(job, turns):
    """Run blocks until nobody asks."""
    log = logging.getLogger(__name__)
    log.setLevel(logging.INFO)
    log.propagate = False
    training = job.training
    with join_ranks(training) as ranks:
        log.addHandler(logging.FileHandler(training.work_dir / f"log-{ranks.rank}.txt"))
        while (setting := turns.setting()) is not None:
            plain = load_model(training.model_dir).to(ranks.device).train()
            model = DistributedDataParallel(plain, process_group=ranks.gradient_group)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=training.weight_decay)
            precision = setting.get("precision", training.precision)
            autocast = torch.autocast(ranks.device.type, _DTYPES[precision], enabled=precision != "fp32")
            while (block := turns.next()) is not None:
                losses = []
                for index, step in enumerate(job.steps_of(block)):
                    parts = list(_micro_batches(job, step, ranks.rank, setting["micro_batch_size"]))
                    for number, part in enumerate(parts):
                        inputs = {name: tensor.to(ranks.device) for name, tensor in part.items()}
                        with autocast:
                            loss = model(**inputs, use_cache=False).loss
                        (loss / len(parts)).backward()
                        log.info("step %d micro-batch %d loss %.4f", step, number, loss.item())
                        if index > 0:
                            losses.append(loss.detach() * int((part["labels"][:, 1:] != -100).sum()))
                    torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
                    optimizer.step()
                    optimizer.zero_grad()
                    if index == 0:
                        turns.start()
                turns.finish(losses)


def _micro_batches(job, step, rank, size):
    """Yield the rank's share of a step as a DistributedSampler deals it out, padded to the sequence length."""
    mine = job.rows_of(step)[rank :: dist.get_world_size()]
    for start in range(0, len(mine), size):
        rows = [job.tokens(int(row)) for row in mine[start : start + size]]
        yield padded(rows, length=job.training.seq_len)
