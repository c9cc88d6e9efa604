"""Hugging Face Trainer, held between two steps by a callback until its next turn."""

import torch
from torch.utils.data import Subset

from benchmarks.throughput.peers.feeding import (
    Rows,
    class_loss,
    collators,
    feeding_settings,
    load_model,
    rows_in_order,
)

_MANY_STEPS = 1_000_000
_LOGGING_STEPS = 10
_BATCH_REBALANCE = "batch_rebalance"
"""Deals the rows of a step to processes and micro-batches so that all of them cost about the same."""


def settings(job):
    """Return collator, order and micro-batch sizes; its own order too, whose micro-batches vary about that size."""
    evened = ("padding", "flattening") if job.training.world_size > 1 else ("padding",)
    names = [name for name in collators(job) if name in evened]
    return feeding_settings(job) + [
        {"collator": collator, "order": _BATCH_REBALANCE, "micro_batch_size": size}
        for collator in names
        for size in job.micro_batch_sizes
        # Of one row each there is nothing to even out.
        if size > 1
    ]


def run(job, turns):
    """Run blocks until nobody asks."""
    rows = Rows(job)
    while (setting := turns.setting()) is not None:
        _train(job, rows, setting, turns)


def _train(job, rows, setting, turns):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    training, size = job.training, setting["micro_batch_size"]
    losses = []

    class HeldTrainer(Trainer):
        """Its steps have the rows of the blocks, and what a micro-batch lost is kept for the check."""

        def _get_train_sampler(self, train_dataset=None):
            sampler = super()._get_train_sampler(train_dataset)
            if setting["order"] == _BATCH_REBALANCE:
                # The rows of a step stay those that everybody has; which process has which is the sampler's choice.
                sampler.shuffle = False
            return sampler

        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = super().training_step(model, inputs, num_items_in_batch)
            losses.append(loss * num_items_in_batch / training.world_size)
            return loss

        def log(self, *_, **__):
            """Keep quiet: what it would print has been read from the device and gathered by now."""

    class Hold(TrainerCallback):
        """Waits after the last step of a block; the clock starts after the first."""

        steps_done = 0

        def on_train_begin(self, args, state, control, **_):
            control.should_training_stop = turns.next() is None

        def on_step_end(self, args, state, control, **_):
            self.steps_done += 1
            if self.steps_done == 1:
                losses.clear()
                turns.start()
            elif self.steps_done == job.steps_per_block + 1:
                self.steps_done = 0
                turns.finish(losses)
                control.should_training_stop = turns.next() is None

    arguments = TrainingArguments(
        output_dir=str(training.work_dir / "trainer"),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=job.global_batch_size // training.world_size // size,
        max_steps=_MANY_STEPS,
        learning_rate=0.0,
        lr_scheduler_type="constant",
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        bf16=training.precision == "bf16",
        fp16=training.precision == "fp16",
        use_cpu=training.device == "cpu",
        ddp_backend="gloo" if training.device == "cpu" and training.world_size > 1 else None,
        ddp_find_unused_parameters=False,
        logging_steps=_LOGGING_STEPS,
        logging_nan_inf_filter=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        train_sampling_strategy=_BATCH_REBALANCE if setting["order"] == _BATCH_REBALANCE else "sequential",
    )
    trainer = HeldTrainer(
        model=load_model(job),
        args=arguments,
        train_dataset=Subset(rows, rows_in_order(job, setting, first_block=turns.first_block)),
        data_collator=collators(job)[setting["collator"]],
        compute_loss_func=None if training.workload == "causal_lm" else class_loss,
        callbacks=[Hold()],
    )
    trainer.train()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
