"""A loop on Hugging Face accelerate as its documentation advises: `accumulate`, losses divided by the step's labels."""

import torch
from torch.utils.data import DataLoader, Subset

from benchmarks.throughput.peers.feeding import (
    Rows,
    class_loss,
    collators,
    feeding_settings,
    load_model,
    rows_in_order,
)

settings = feeding_settings


def run(job, turns):
    """Run blocks until nobody asks."""
    rows = Rows(job)
    while (setting := turns.setting()) is not None:
        _run_setting(job, rows, setting, turns)


def _run_setting(job, rows, setting, turns):
    from accelerate import Accelerator

    training = job.training
    accumulation = job.global_batch_size // training.world_size // setting["micro_batch_size"]
    accelerator = Accelerator(
        gradient_accumulation_steps=accumulation,
        cpu=training.device == "cpu",
        mixed_precision="no" if training.precision == "fp32" else training.precision,
    )
    # Two settings in one process: the first one's accumulation would else be kept.
    accelerator.gradient_state.plugin_kwargs["num_steps"] = accumulation
    model = load_model(job)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=training.weight_decay, fused=True)
    loader = DataLoader(
        Subset(rows, rows_in_order(job, setting, first_block=turns.first_block)),
        batch_size=setting["micro_batch_size"],
        collate_fn=collators(job)[setting["collator"]],
        pin_memory=training.device == "cuda",
    )
    model, optimizer, loader = accelerator.prepare(model.train(), optimizer, loader)
    batches = iter(loader)
    while turns.next() is not None:
        losses = []
        for index in range(job.steps_per_block + 1):
            parts = []
            for _ in range(accumulation):
                part = next(batches, None)
                if part is None:
                    batches = iter(loader)
                    part = next(batches)
                parts.append(part)
            done = _step(accelerator, model, optimizer, parts, max_grad_norm=training.max_grad_norm)
            if index == 0:
                turns.start()
            else:
                losses += done
        turns.finish(losses)
    accelerator.free_memory()


def _step(accelerator, model, optimizer, parts, *, max_grad_norm):
    """Apply one update; return the sum of the losses of every micro-batch."""
    # Of a text that is continued the first token is not predicted; a class is one label.
    labels = [part["labels"][:, 1:] if part["labels"].ndim == 2 else part["labels"] for part in parts]
    num_labels = sum((part != -100).sum() for part in labels)
    num_labels = accelerator.gather(num_labels).sum()
    # accumulate divides by the number of micro-batches, DDP by the number of processes.
    weight = len(parts) * accelerator.num_processes
    losses = []
    for part in parts:
        with accelerator.accumulate(model):
            loss = _loss_of(model, part, num_labels)
            accelerator.backward(loss * weight)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach() * num_labels)
    return losses


def _loss_of(model, part, num_labels):
    """Return a micro-batch's part of the mean loss of the step."""
    if part["labels"].ndim == 2:
        return model(**part, use_cache=False, num_items_in_batch=num_labels).loss
    inputs = {name: tensor for name, tensor in part.items() if name != "labels"}
    return class_loss(model(**inputs), part["labels"], num_labels)
